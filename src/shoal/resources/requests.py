"""What is asked of the steward: requirements, each with choices in the order of liking.

A *choice* is what is needed on one machine, say four cores and a GPU with 8 GiB of memory. A *requirement* wants one of
its choices on each of so many different machines. A *request* is several requirements, met together or not at all.
`require` makes them from what people write. Whether there is such a thing is left to `shoal.resources.reservations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError

ANYWHERE = 0
"""As `nodes`: the units may be on any machines, on few if that is possible."""

Wanted: TypeAlias = int | str
"""A unit by number or path, a machine by name, or a label `KEY=VALUE`."""


class Choice(msgspec.Struct, frozen=True):
    """What is needed together on one machine."""

    needs: tuple[tuple[str, int], ...]
    """Class and count, each class once, sorted."""
    memory: int = 0

    def __str__(self) -> str:
        words = [f"{count} {kind}" for kind, count in self.needs]
        if self.memory:
            words.append(f"{show_bytes(self.memory)} of memory")
        return " and ".join(words)


class Requirement(msgspec.Struct, frozen=True):
    """One of several choices, on so many different machines."""

    choices: tuple[Choice, ...]
    nodes: int = 1
    prefer: tuple[Wanted, ...] = ()
    """Where it is liked best, in order; anywhere else will do."""
    only: tuple[str, ...] = ()
    """Labels that a machine must carry, or names of machines of which it must be one."""

    def __str__(self) -> str:
        what = " or ".join(map(str, self.choices))
        if self.nodes == ANYWHERE:
            where = " anywhere"
        else:
            where = " on one node" if self.nodes == 1 else f" on each of {self.nodes} nodes"
        return what + where + (f" with {' and '.join(self.only)}" if self.only else "")


Request: TypeAlias = tuple[Requirement, ...]

Kinds: TypeAlias = str | Mapping[str, int]
"""A class, or classes and counts that are needed together."""


def require(
    *choices: Kinds,
    count: int = 1,
    memory: int = 0,
    nodes: int = 1,
    prefer: Sequence[Wanted] = (),
    only: Sequence[str] = (),
) -> Requirement:
    """`require("core", count=4)`, `require({"core": 4, "gpu": 1}, "node")`: the first choice that fits is granted.

    `count` belongs to classes that are named without one; `memory` is in bytes on each machine.
    """
    _whole(nodes, "nodes", ANYWHERE)
    _whole(memory, "memory", 0)
    if not choices:
        raise InputError("a requirement names no class of resources", remedy='write one, such as require("core")')
    if nodes == ANYWHERE and memory:
        raise InputError(
            "memory cannot be asked for anywhere: it is memory of a machine",
            remedy="say on how many nodes, or leave out the memory",
        )
    for name in only:
        if not isinstance(name, str) or not name:
            raise InputError(f"only={name!r} is neither a label nor the name of a machine")
    for wanted in prefer:
        if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
            raise InputError(f"prefer={wanted!r} is neither a resource nor a machine nor a label")
    return Requirement(tuple(_choice(each, count, memory) for each in choices), nodes, tuple(prefer), tuple(only))


def _choice(kinds: Kinds, count: int, memory: int) -> Choice:
    needs = {kinds: count} if isinstance(kinds, str) else dict(kinds)
    if not needs:
        raise InputError("a choice needs nothing", remedy='write what it needs, such as {"core": 4}')
    for kind, number in needs.items():
        if not isinstance(kind, str) or not kind:
            raise InputError(f"{kind!r} is not a class of resources", remedy="write a name such as 'core'")
        _whole(number, f"the number of {kind}", 1)
    return Choice(tuple(sorted(needs.items())), memory)


def _whole(value: object, what: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} must be a whole number from {least} on, not {value!r}")
