"""Machines sorted by how much of something is free on each, kept as bit masks.

A machine is one bit. Finding the machine that fits best is a look at the lowest bit of a number. Narrowing the search
to machines with a label or with other things free is an `and` of numbers. Nothing here ever walks all machines.
"""

from __future__ import annotations

from collections.abc import Iterator

_FINENESS = 3
"""Free memory is known to so many bits behind the first: to an eighth."""


class Levels:
    """Which machines have exactly so many units free."""

    __slots__ = ("masks", "occupied")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self.occupied = 0
        """Bit n is set if any machine is at level n."""

    def put(self, bit: int, level: int) -> None:
        mask = self.masks.get(level, 0)
        if not mask:
            self.occupied |= 1 << level
        self.masks[level] = mask | bit

    def drop(self, bit: int, level: int) -> None:
        left = self.masks[level] ^ bit
        self.masks[level] = left
        if not left:
            self.occupied ^= 1 << level

    def move(self, bit: int, old: int, new: int) -> None:
        """`drop` and `put` in one, because every grant does this."""
        if old == new:
            return
        masks = self.masks
        left = masks[old] ^ bit
        masks[old] = left
        if not left:
            self.occupied ^= 1 << old
        mask = masks.get(new, 0)
        if not mask:
            self.occupied |= 1 << new
        masks[new] = mask | bit

    def upward(self, lowest: int) -> Iterator[int]:
        """The masks of the levels from `lowest` on, fullest machines first."""
        rest = self.occupied >> lowest
        while rest:
            low = rest & -rest
            yield self.masks[lowest + low.bit_length() - 1]
            rest ^= low

    def downward(self) -> Iterator[int]:
        """All masks, emptiest machines first."""
        rest = self.occupied
        while rest:
            level = rest.bit_length() - 1
            yield self.masks[level]
            rest ^= 1 << level

    def at_least(self, lowest: int) -> int:
        found = 0
        for mask in self.upward(lowest):
            found |= mask
        return found


def memory_level(size: int) -> int:
    """The level of so many bytes; more bytes are never at a lower one."""
    bits = size.bit_length()
    if bits <= _FINENESS:
        return size
    return (bits - _FINENESS << _FINENESS) + (size >> bits - _FINENESS - 1 & (1 << _FINENESS) - 1)


def members(mask: int) -> Iterator[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low


def lowest(mask: int, count: int) -> int:
    """The lowest `count` bits of those set."""
    if count == 1:
        return mask & -mask
    if mask.bit_count() == count:
        return mask
    found = 0
    for _ in range(count):
        low = mask & -mask
        found |= low
        mask ^= low
    return found
