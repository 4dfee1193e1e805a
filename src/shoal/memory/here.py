"""What one node holds: its books and its segments together, asked from several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from zlib import crc32

from shoal.errors import InputError
from shoal.memory.books import Books
from shoal.memory.handle import Allocation
from shoal.memory.layout import Record, shown
from shoal.memory.segments import Segments
from shoal.memory.wishes import check_handle, check_names

_LOCKS = 64


class Here:
    """The extents of one node."""

    def __init__(self, segments: Segments, limit: int) -> None:
        self.segments = segments
        self._books = Books(limit)
        self._guard = threading.Lock()
        self._orders = [threading.Lock() for _ in range(_LOCKS)]

    def order(self, identity: str, index: int) -> threading.Lock:
        """Held by whoever changes an extent that has replicas, until all of them are changed."""
        return self._orders[crc32(f"{identity}.{index}".encode()) % _LOCKS]

    def free_bytes(self) -> int:
        with self._guard:
            return max(0, self._books.free - self._books.ahead)

    def take_ahead(self, amount: int) -> bool:
        """Whether there is room for bytes that are fetched before they are needed; then it is taken."""
        with self._guard:
            if amount > self._books.free - self._books.ahead:
                return False
            self._books.ahead += amount
            return True

    def give_ahead(self, amount: int) -> None:
        with self._guard:
            self._books.ahead -= amount

    def reserve(self, record: Record, indexes: Collection[int], *, coming: bool = False) -> None:
        """Takes extents, all or none; those that are `coming` are not read before `update` says that they are there."""
        check_names(record)
        check_handle(record)
        if any(not 0 <= index < len(record.extents) for index in indexes):
            raise InputError(f"allocation {shown(record)} has no such extent")
        with self._guard:
            held = self._books.held.get(record.id)
            before = None if held is None else held.record
            new = self._books.reserve(record, indexes, time.monotonic(), coming=coming)
        try:
            for index in new:
                size = record.extents[index].end - record.extents[index].begin
                self.segments.make(record.id, index, size, coming=coming)
        except BaseException:
            with self._guard:
                self._books.take_back(record, new, before)
            for index in new:
                self.segments.remove(record.id, index)
            raise

    def drop(self, record: Record) -> Allocation:
        """An allocation goes; what was known of it."""
        with self._guard:
            held = self._books.expect(record)
            indexes = self._books.give_up(record.id)
        for index in indexes:
            self.segments.remove(record.id, index)
        return _as_handle(held.record)

    def drop_all(self) -> None:
        for record in self.objects(""):
            self._drop_if_there(record)

    def tell(self, runs: Collection[str]) -> None:
        """Which runs are on."""
        with self._guard:
            self._books.runs = frozenset(runs)

    def drop_unkept(self, sessions: Collection[str], nodes: Mapping[int, object]) -> list[Record]:
        """What nobody keeps any more goes."""
        with self._guard:
            found = self._books.unkept(time.monotonic(), sessions, nodes)
            records = [self._books.held[identity].record for identity in found]
        return [record for record in records if self._drop_if_there(record)]

    def _drop_if_there(self, record: Record) -> bool:
        try:
            self.drop(record)
        except InputError:
            return False  # somebody has just freed it
        return True

    def open(self, record: Record, index: int, offset: int, length: int, *, coming: bool = False) -> int:
        """A descriptor of an extent in which these bytes are; whoever asked closes it."""
        with self._guard:
            held = self._books.expect(record)
            coming = coming and index in held.coming
            if index not in held.indexes or (index in held.coming and not coming):
                raise self._books.missing(record)
            extent = held.record.extents[index]
            if not 0 <= offset <= offset + length <= extent.end - extent.begin:
                raise InputError(
                    f"bytes {offset} to {offset + length} are out of bounds of an extent of {shown(record)}"
                )
        try:
            return self.segments.open(record.id, index, coming=coming)
        except FileNotFoundError:  # it was freed between the two
            with self._guard:
                raise self._books.missing(record) from None

    def has(self, record: Record, index: int) -> bool:
        with self._guard:
            held = self._books.held.get(record.id)
            return held is not None and index in held.indexes and index not in held.coming

    def record(self, record: Record) -> tuple[Allocation, list[int]]:
        """What is known of an allocation, and which of its extents are here."""
        with self._guard:
            held = self._books.expect(record)
            return _as_handle(held.record), [index for index in held.indexes if index not in held.coming]

    def known(self, record: Record) -> Allocation | None:
        """What is known of an allocation if some of it is here."""
        with self._guard:
            held = self._books.held.get(record.id)
            return None if held is None else _as_handle(held.record)

    def update(self, record: Record) -> None:
        with self._guard:
            for index in self._books.update(record):
                self.segments.has_come(record.id, index)

    def objects(self, run: str) -> list[Allocation]:
        with self._guard:
            return [_as_handle(record) for record in self._books.of_run(run)]

    def close(self) -> None:
        self.segments.close()


def _as_handle(record: Record) -> Allocation:
    assert isinstance(record, Allocation)
    return record
