"""What one node holds of all allocations, and how much it may hold. Pure: the bytes themselves are in `segments`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from shoal.errors import InputError
from shoal.memory.layout import FullError, Record, merged, shown
from shoal.model.quantities import show_bytes

REMEMBERED = 10_000
"""Allocations that were freed are remembered for a while, to tell a double free from a wrong handle."""
SETTLING_SECONDS = 10.0
"""For so long an allocation is kept of whose run nothing has been heard yet."""


class FreedError(InputError):
    """The allocation was freed before."""


class UnknownError(InputError):
    """There is no such allocation, or none any more."""


class Held:
    """What is held of one allocation."""

    def __init__(self, record: Record, now: float) -> None:
        self.record = record
        self.indexes: dict[int, None] = {}
        """Extents that lie here."""
        self.coming: set[int] = set()
        """Those of them that are being copied here, and are not to be read yet."""
        self.unkept_since: float | None = now
        """Since when nothing that was heard of keeps it; None: something does."""

    def bytes(self) -> int:
        return sum(self.record.extents[index].end - self.record.extents[index].begin for index in self.indexes)


class Books:
    """The extents of one node, and its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.ahead = 0
        """Bytes that were fetched ahead of their use; they give way to allocations."""
        self.runs: Collection[str] = ()
        """Those that are on, as far as is known."""
        self.held: dict[str, Held] = {}
        self._freed: dict[str, None] = {}

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)

    def reserve(self, record: Record, indexes: Collection[int], now: float, *, coming: bool = False) -> list[int]:
        """Takes extents; returns those that were not here before. `coming`: they are read only after `update`."""
        held = self.held.get(record.id)
        new = [index for index in indexes if held is None or index not in held.indexes]
        amount = sum(record.extents[index].end - record.extents[index].begin for index in new)
        if amount > self.free:
            raise FullError(
                f"{show_bytes(amount)} of shared memory are asked for, and {show_bytes(self.free)} of "
                f"{show_bytes(self.limit)} are free on this node",
                remedy="free what is not needed, or give the agent more with --shared-memory",
            )
        if held is None:
            held = self.held[record.id] = Held(record, now)
        else:
            held.record = merged(held.record, record)
        if record.kept == "run" and record.run in self.runs:
            held.unkept_since = None
        held.indexes.update(dict.fromkeys(new))
        if coming:
            held.coming.update(new)
        self.used += amount
        return new

    def take_back(self, record: Record, indexes: Collection[int], before: Record | None) -> None:
        """Extents that were reserved could not be made; what was here and known before stays."""
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

    def update(self, record: Record) -> list[int]:
        """Extents have found other holders; those that have come here by that."""
        held = self.held.get(record.id)
        if held is None:
            return []
        held.record = merged(held.record, record)
        come = [index for index in sorted(held.coming) if record.extents[index] == held.record.extents[index]]
        held.coming.difference_update(come)
        return come

    def give_up(self, identity: str) -> list[int]:
        """An allocation is gone; the extents that were here."""
        held = self.held.pop(identity, None)
        if held is None:
            return []
        self.used -= held.bytes()
        self._freed[identity] = None
        if len(self._freed) > REMEMBERED:
            del self._freed[next(iter(self._freed))]
        return list(held.indexes)

    def expect(self, record: Record) -> Held:
        """What is held of an allocation that must be here."""
        held = self.held.get(record.id)
        if held is None:
            raise self.missing(record)
        return held

    def missing(self, record: Record) -> InputError:
        """Why an allocation is not here."""
        if record.id in self._freed:
            return FreedError(f"allocation {shown(record)} was freed already", remedy="free each allocation once")
        return UnknownError(
            f"there is no allocation {shown(record)}",
            remedy="its run has ended, or the handle is from another cluster",
        )

    def of_run(self, run: str) -> list[Record]:
        """All allocations of a run of which something is here; without a run, of all runs."""
        return [held.record for held in self.held.values() if not run or held.record.run == run]

    def unkept(self, now: float, sessions: Collection[str], nodes: Mapping[int, object]) -> list[str]:
        """Allocations that nothing keeps any more: runs that are over, programs and nodes that are gone."""
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


def lacking(record: Record, there: Iterable[int]) -> list[int]:
    """Extents that have fewer holders than they should, of nodes that are there, but still one."""
    alive = set(there)
    found = []
    for index, extent in enumerate(record.extents):
        count = sum(holder in alive for holder in extent.holders)
        if 0 < count < record.replicas:
            found.append(index)
    return found
