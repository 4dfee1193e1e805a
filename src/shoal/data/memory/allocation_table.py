"""The allocation table of one node (its extents and memory limit), and checks of allocation requests. Pure.

The bytes themselves are in `shoal.data.memory.segments`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import index as whole
from pickle import PickleBuffer
from typing import TYPE_CHECKING

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError
from shoal.resources.memory_layout import (
    SPREADS,
    AllocationRecord,
    FullError,
    Range,
    check_range,
    damaged,
    merged,
    shown,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


REMEMBERED = 10_000
"""Seconds for which freed allocations are remembered, to distinguish a double free from a wrong handle."""
SETTLING_SECONDS = 10.0
"""Seconds for which an allocation is kept if the node does not know its run yet."""


class FreedError(InputError):
    """The allocation was freed before."""


class UnknownError(InputError):
    """The allocation does not exist, or no longer exists."""


class HeldAllocation:
    """The extents of one allocation that are on this node."""

    def __init__(self, record: AllocationRecord, now: float) -> None:
        self.record = record
        self.indexes: dict[int, None] = {}
        """Indexes of the extents on this node."""
        self.coming: set[int] = set()
        """Indexes of those that are still being copied here and must not be read."""
        self.unkept_since: float | None = now
        """Since when no known run or session keeps it; None: one does."""

    def bytes(self) -> int:
        return sum(self.record.extents[index].end - self.record.extents[index].begin for index in self.indexes)


class AllocationTable:
    """The extents of one node, and its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.ahead = 0
        """Bytes that were prefetched; they make room for allocations."""
        self.runs: Collection[str] = ()
        """The active runs, as far as the node knows."""
        self.held: dict[str, HeldAllocation] = {}
        self._freed: dict[str, None] = {}

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)

    def reserve(
        self, record: AllocationRecord, indexes: Collection[int], now: float, *, coming: bool = False
    ) -> list[int]:
        """Reserves extents; returns those that were not here before. `coming`: they are read only after `update`."""
        held = self.held.get(record.id)
        new = [index for index in indexes if held is None or index not in held.indexes]
        amount = sum(record.extents[index].end - record.extents[index].begin for index in new)
        if amount > self.free:
            raise FullError(
                f"{show_bytes(amount)} of shared memory are requested, but only {show_bytes(self.free)} of "
                f"{show_bytes(self.limit)} are free on this node",
                remedy="free unused allocations, or increase the agent's --shared-memory",
            )
        if held is None:
            held = self.held[record.id] = HeldAllocation(record, now)
        else:
            held.record = merged(held.record, record)
        if record.kept == "run" and record.run in self.runs:
            held.unkept_since = None
        held.indexes.update(dict.fromkeys(new))
        if coming:
            held.coming.update(new)
        self.used += amount
        return new

    def take_back(self, record: AllocationRecord, indexes: Collection[int], before: AllocationRecord | None) -> None:
        """Reverts a reservation whose extents could not be made; earlier extents stay."""
        held = self.held.get(record.id)
        if held is None:
            return
        bytes_before = held.bytes()
        for index in indexes:
            held.indexes.pop(index, None)
            held.coming.discard(index)
        self.used -= bytes_before - held.bytes()
        if not held.indexes:
            del self.held[record.id]
        elif before is not None:
            held.record = msgspec.structs.replace(
                held.record,
                extents=tuple(
                    before.extents[index] if index in indexes and extent == record.extents[index] else extent
                    for index, extent in enumerate(held.record.extents)
                ),
            )

    def update(self, record: AllocationRecord) -> list[int]:
        """Takes new holders of extents; returns the extents that are now on this node."""
        held = self.held.get(record.id)
        if held is None:
            return []
        held.record = merged(held.record, record)
        come = [index for index in sorted(held.coming) if record.extents[index] == held.record.extents[index]]
        held.coming.difference_update(come)
        return come

    def give_up(self, identity: str) -> list[int]:
        """Removes an allocation; returns the extents that were here."""
        held = self.held.pop(identity, None)
        if held is None:
            return []
        self.used -= held.bytes()
        self._freed[identity] = None
        if len(self._freed) > REMEMBERED:
            del self._freed[next(iter(self._freed))]
        return list(held.indexes)

    def expect(self, record: AllocationRecord) -> HeldAllocation:
        """Returns the entry of an allocation that must be here."""
        held = self.held.get(record.id)
        if held is None:
            raise self.missing(record)
        return held

    def missing(self, record: AllocationRecord) -> InputError:
        """Returns the error for an allocation that is not here."""
        if record.id in self._freed:
            return FreedError(f"allocation {shown(record)} is already freed", remedy="free each allocation once")
        return UnknownError(
            f"there is no allocation {shown(record)}",
            remedy="its run has ended, or the handle is from another cluster",
        )

    def of_run(self, run: str) -> list[AllocationRecord]:
        """Returns the allocations of `run` that have an extent on this node; if `run` is empty, those of all runs."""
        return [held.record for held in self.held.values() if not run or held.record.run == run]

    def unkept(self, now: float, sessions: Collection[str], nodes: Mapping[int, object]) -> list[str]:
        """Returns allocations that nothing keeps any more: their runs are over, or their programs or nodes are gone."""
        over = []
        for identity, held in self.held.items():
            record = held.record
            if record.kept == "node":
                is_kept = record.owner in nodes
            else:
                is_kept = record.run in (self.runs if record.kept == "run" else sessions)
            if is_kept:
                held.unkept_since = None
            elif held.unkept_since is None:
                held.unkept_since = now if record.kept == "session" else now - SETTLING_SECONDS
            if held.unkept_since is not None and now - held.unkept_since >= SETTLING_SECONDS:
                over.append(identity)
        return over


def lacking(record: AllocationRecord, there: Iterable[int]) -> list[int]:
    """Returns the under-replicated extents: those with at least one holder among the nodes in `there`, but fewer than
    required."""
    alive = set(there)
    found = []
    for index, extent in enumerate(record.extents):
        count = sum(holder in alive for holder in extent.holders)
        if 0 < count < record.replicas:
            found.append(index)
    return found


MOST_BYTES = (1 << 63) - 1
MOST_REPLICAS = 1 << 20
LONGEST_NAME = 255
_ID = re.compile("[0-9a-f]{16}")


class AllocationRequest(msgspec.Struct, frozen=True):
    """The checked arguments of an allocation; its names are valid file names."""

    size: int
    replicas: int
    spread: str
    block_bytes: int | None
    name: str
    run: str


def checked_request(
    size: object, replicas: object, spread: object, block_bytes: object, name: object, run: object
) -> AllocationRequest:
    """Checks the arguments of an allocation; any integer type is accepted."""
    if not isinstance(spread, str) or spread not in SPREADS:
        raise InputError(f"invalid spread {spread!r}", remedy=f"use one of {', '.join(SPREADS)}")
    block = None if block_bytes is None else _number("block_bytes", block_bytes, MOST_BYTES)
    return AllocationRequest(
        _number("the size of an allocation", size, MOST_BYTES),
        _number("replicas", replicas, MOST_REPLICAS),
        spread,
        block,
        checked_name(name, "a memory object"),
        checked_name(run, "a run"),
    )


def _number(what: str, value: object, most: int) -> int:
    try:
        found = whole(value)  # type: ignore[arg-type]  # that is what is found out here
    except TypeError:
        raise InputError(
            f"{what} must be a whole number, not {value!r}", remedy="pass an int; sizes are in bytes"
        ) from None
    if abs(found) > most:
        raise InputError(f"{what} cannot be {found}", remedy=f"the maximum is {most}")
    return found


def checked_name(name: object, of_what: str) -> str:
    """Returns the name if it is empty or a valid file name."""
    if not isinstance(name, str):
        raise InputError(f"the name of {of_what} must be a string, not {name!r}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = LONGEST_NAME + 1
    if name in (".", "..") or "/" in name or "\0" in name or length > LONGEST_NAME:
        raise InputError(f"{name!r} cannot be the name of {of_what}", remedy="use a valid file name")
    return name


def bytes_of(data: ReadableBuffer) -> memoryview:
    """Returns the bytes of a contiguous buffer, without a copy."""
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        raise InputError(
            f"a {type(data).__name__} cannot be written to memory", remedy="give bytes, or an array of numbers"
        ) from None
    if not view.c_contiguous:
        raise InputError(
            "an array that is not C-contiguous cannot be written to memory",
            remedy="convert it with numpy.ascontiguousarray",
        )
    return PickleBuffer(view).raw()


def check_data(wish: AllocationRequest, data: ReadableBuffer | None) -> memoryview | None:
    """Returns the initial bytes of an allocation; their number must be its size."""
    if data is None:
        return None
    view = bytes_of(data)
    if len(view) != wish.size:
        raise InputError(f"an allocation of {wish.size} bytes cannot begin with {len(view)}")
    return view


def checked_ranges(record: AllocationRecord, ranges: Sequence[Range]) -> list[Range]:
    """Returns the ranges if they are within the allocation."""
    try:
        pairs = [(begin, end) for begin, end in ranges]
    except (TypeError, ValueError):
        raise InputError(f"ranges cannot be {ranges!r}", remedy="pass a list of pairs (begin, end)") from None
    return [check_range(record, begin, end) for begin, end in pairs]


def check_handle(record: AllocationRecord) -> None:
    """Rejects a handle that was not made by `alloc`: its extents must be contiguous from 0 to the size."""
    begins, ends = [extent.begin for extent in record.extents], [extent.end for extent in record.extents]
    follow = begins[:1] == [0] and ends[-1] == record.size and begins[1:] == ends[:-1]
    if not follow or any(extent.begin >= extent.end for extent in record.extents) or record.replicas < 1:
        raise damaged(record)


def check_names(record: AllocationRecord) -> None:
    """Rejects names that are not valid file names."""
    if _ID.fullmatch(record.id) is None:
        raise InputError(f"{record.id!r} cannot be the id of an allocation", remedy="use the handle returned by alloc")
    checked_name(record.name, "a memory object")
    checked_name(record.run, "a run")
