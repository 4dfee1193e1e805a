"""The memory of a cluster as one node or program sees it: allocations over all nodes, ranges from wherever they are.

What lies here in one piece is mapped. Everything else is brought into memory without a name, from the first holder that
answers. Writes go to the first holder that is alive, which passes them on to the others before it answers; one that
cannot be reached holds the write up until the cluster has given it up, so no replica that counts is ever stale.

`whereabouts` finds out who holds what; `serving` answers other nodes and tasks.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InputError
from shoal.memory.ahead import Fetches
from shoal.memory.books import FreedError, UnknownError
from shoal.memory.handle import Ahead, Allocation, Closing
from shoal.memory.here import Here
from shoal.memory.layout import (
    EVEN,
    TURNS,
    FullError,
    Part,
    Range,
    Record,
    check_range,
    lay_out,
    merged,
    partition_of,
    parts_of,
    shown,
)
from shoal.memory.peers import Peers
from shoal.memory.protocol import (
    Drop,
    ObjectsAsked,
    ObjectsTold,
    Place,
    Read,
    RecordTold,
    Reserve,
    RoomAsked,
    RoomTold,
    Write,
    as_allocation,
    without_extents,
)
from shoal.memory.segments import buffer_of, copy_range, mapped, view_of, write_all
from shoal.memory.whereabouts import NEWS_SECONDS, PATIENCE_SECONDS, PAUSE_SECONDS, Whereabouts
from shoal.memory.wishes import Wish, bytes_of, check_data, check_handle, checked_ranges, wished

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

AT_ONCE = 8
"""Extents that are fetched or written at the same time for all who ask."""
TRIES = 3
"""How often an allocation is laid out anew when somebody else took the room."""


class Service(Whereabouts, Closing):
    """Memory over nodes."""

    def __init__(
        self,
        peers: Peers,
        here: Here | None,
        *,
        run: str = "",
        look: Callable[[], Mapping[int, Place]] | None = None,
    ) -> None:
        super().__init__(peers, here, look)
        self.run = run
        self.runs: Collection[str] = ()
        """Those that are on in the cluster."""
        self.kept = "node"
        """What keeps allocations of runs that the cluster does not list."""
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="memory")
        self._fetches = Fetches(self)
        self._dealt_last: int | None = None
        """The node that got the last block of an allocation in turns: the next one begins behind it."""
        self.allocated: Callable[[Allocation], None] = lambda allocation: None
        """Told of every allocation that is made through here."""

    def close(self) -> None:
        """Ends whatever this is part of."""
        self.shut()

    def shut(self) -> None:
        """Lets go of everything."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetches.close()
        self.peers.close()
        if self.here is not None:
            self.here.close()

    # ---- making and freeing --------------------------------------------------------------------------------------

    def alloc(
        self,
        size: int,
        data: ReadableBuffer | None = None,
        *,
        replicas: int = 1,
        spread: str = EVEN,
        block_bytes: int | None = None,
        name: str = "",
        run: str = "",
        instead: str = "",
    ) -> Allocation:
        """So many bytes over the nodes, zeros or `data`."""
        wish = wished(size, replicas, spread, block_bytes, name, run or self.run)
        view = check_data(wish, data)
        allocation = self._reserved(wish, self._keeping_of(wish.name, wish.run, instead))
        self.allocated(allocation)
        if view is not None:
            try:
                self.put(allocation, 0, view)
            except BaseException:
                self.free(allocation)
                raise
        return allocation

    def _reserved(self, wish: Wish, kept: str) -> Allocation:
        """Laid out where there is room, and taken there."""
        for attempt in range(TRIES):
            room = self.room()
            if self._dealt_last is None and room:
                self._dealt_last = secrets.choice(sorted(room))  # programs that allocate once do not all begin alike
            extents = lay_out(
                wish.size,
                room,
                spread=wish.spread,
                block_bytes=wish.block_bytes,
                replicas=wish.replicas,
                here=self.number if self.here is not None else None,
                after=self._dealt_last,
            )
            if wish.spread == TURNS:
                self._dealt_last = extents[-1].holders[0]
            identity = secrets.token_hex(8)
            allocation = Allocation(wish.run, identity, wish.size, extents, wish.name, wish.replicas, self.number, kept)
            try:
                self._reserve(allocation)
                return allocation
            except (FullError, OSError) as error:  # somebody was quicker, or a node has just gone
                if attempt == TRIES - 1:
                    raise error if isinstance(error, InputError) else InputError(str(error)) from None
        raise AssertionError("the last attempt returns or raises")

    def _keeping_of(self, name: str, run: str, instead: str) -> str:
        """What keeps an allocation of that run; the name must be free in it, or that of what is to be replaced."""
        others = self.objects(run) if name else []
        if any(each.name == name and each.id != instead for each in others):
            raise InputError(
                f"run {run!r} has an object {name!r} already", remedy="choose another name, or free that one"
            )
        if run in self.runs:
            return "run"
        return next((each.kept for each in others), self.kept)

    def room(self) -> dict[int, int]:
        """What is free on each node; those that do not answer have nothing."""

        def ask(number: int) -> int:
            if number == self.number and self.here is not None:
                return self.here.free_bytes()
            try:
                told = self.peers.ask(self.place_of(number), RoomAsked())
            except OSError:
                return -1
            assert isinstance(told, RoomTold)
            return told.free

        self.refresh()
        numbers = list(self.nodes)
        free = self._pool.map(ask, numbers)
        return {number: amount for number, amount in zip(numbers, free, strict=True) if amount >= 0}

    def _reserve(self, allocation: Allocation) -> None:
        """At all holders, or at none."""
        wanted: dict[int, list[int]] = {}
        for index, extent in enumerate(allocation.extents):
            for holder in extent.holders:
                wanted.setdefault(holder, []).append(index)
        asked = []
        try:
            for holder, indexes in wanted.items():
                asked.append(holder)
                self._reserve_at(holder, allocation, indexes)
        except (InputError, OSError):
            for holder in asked:
                try:
                    self._drop_at(holder, allocation)
                except InputError:
                    continue  # the one that has refused has nothing of it
            raise

    def _reserve_at(self, holder: int, allocation: Allocation, indexes: list[int]) -> None:
        if holder == self.number and self.here is not None:
            self.here.reserve(allocation, indexes)
        else:
            self.peers.ask(self.place_of(holder), Reserve(allocation, indexes))

    def free(self, allocation: Record) -> None:
        """Gives the memory back on all nodes."""
        asked: set[int] = set()
        waiting = [holder for extent in allocation.extents for holder in extent.holders]
        found, trouble = False, None
        while waiting:
            holder = waiting.pop()
            if holder in asked:
                continue
            asked.add(holder)
            try:
                told = self._drop_at(holder, as_allocation(allocation))
            except InputError as error:
                trouble = error if trouble is None or isinstance(error, FreedError) else trouble
                continue
            if told is not None:
                found = True
                waiting += [each for extent in told.extents for each in extent.holders]
        self.forget(allocation)
        if not found and trouble is not None:
            raise trouble

    def _drop_at(self, holder: int, allocation: Allocation) -> Allocation | None:
        """What the holder knew of it; None if it is not there any more."""
        if holder == self.number and self.here is not None:
            return self.here.drop(allocation)
        if holder not in self.nodes:
            return None
        try:
            told = self.peers.ask(self.place_of(holder), Drop(allocation))
        except OSError:
            return None  # it is about to be given up, with all it has; if it is not, its upkeep frees it
        return told.record if isinstance(told, RecordTold) else None

    # ---- reading -------------------------------------------------------------------------------------------------

    def get(self, allocation: Record, begin: int, end: int, *, ahead: Ahead | None = None) -> memoryview:
        """Bytes to be read. What lies here in one piece is not copied, and shows what is written later."""
        begin, end = check_range(allocation, begin, end)
        if begin == end:
            return memoryview(b"")
        view = self._mapped(allocation, begin, end)
        if view is not None:
            return view
        descriptor, offset = self.fetched(allocation, begin, end, ahead)
        try:
            return view_of(descriptor, offset + end - begin)[offset:]
        finally:
            os.close(descriptor)

    def _mapped(self, allocation: Record, begin: int, end: int) -> memoryview | None:
        if self.here is None or not self.lies_here(allocation, begin, end):
            return None
        parts = parts_of(allocation.extents, begin, end)
        found = mapped(self.here.segments.path(allocation.id, parts[0].index))
        base = allocation.extents[parts[0].index].begin
        return None if found is None else memoryview(found)[begin - base : end - base]

    def has(self, allocation: Record, index: int) -> bool:
        """Whether an extent lies here."""
        return self.here is not None and self.here.has(allocation, index)

    def lies_here(self, allocation: Record, begin: int, end: int) -> bool:
        """Whether a range is on this node in one piece."""
        parts = parts_of(allocation.extents, begin, end)
        return len(parts) == 1 and self.has(allocation, parts[0].index)

    def fetched(self, allocation: Record, begin: int, end: int, ahead: Ahead | None) -> tuple[int, int]:
        """Memory that has the bytes, for the caller to close, and where in it they begin."""
        check_range(allocation, begin, end)
        if ahead is not None:
            found = self._fetches.take(ahead.token, begin, end)
            if found is not None:
                return found
        descriptor = buffer_of(end - begin)
        try:
            self.fill(allocation, begin, end, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, 0

    def fill(self, allocation: Record, begin: int, end: int, descriptor: int) -> None:
        """Brings a range to the beginning of a file."""
        parts = parts_of(allocation.extents, begin, end)
        self._together([partial(self._fetch, allocation, part, descriptor, part.begin - begin) for part in parts])

    def _fetch(self, allocation: Record, part: Part, descriptor: int, at: int) -> None:
        extent = allocation.extents[part.index]
        offset, length = part.begin - extent.begin, part.end - part.begin

        def read(holder: int, record: Allocation) -> None:
            if holder == self.number and self.here is not None:
                source = self.here.open(record, part.index, offset, length)
                try:
                    _copy_apart(source, offset, descriptor, at, length)
                finally:
                    os.close(source)
            else:
                message = Read(without_extents(record), part.index, offset, length)
                self.peers.read(self.place_of(holder), message, descriptor, at)

        self.with_holder(allocation, part.index, read, own_first=True)

    def _together(self, deeds: Sequence[Callable[[], None]]) -> None:
        """Does all of it, and is over only when all is: what they work on may be closed afterwards."""
        if len(deeds) == 1:
            deeds[0]()
            return
        under_way = [self._pool.submit(deed) for deed in deeds]
        wait(under_way)
        for each in under_way:
            each.result()

    def prefetch(self, allocation: Record, ranges: Sequence[Range]) -> Ahead:
        """Begins to bring ranges here; `get` with what is returned waits only for what has not come yet."""
        return self._fetches.begin(allocation, checked_ranges(allocation, ranges))

    # ---- writing -------------------------------------------------------------------------------------------------

    def put(self, allocation: Record, begin: int, data: ReadableBuffer) -> None:
        """Writes bytes from there on, on all replicas."""
        view = bytes_of(data)
        begin, _ = check_range(allocation, begin, begin + len(view))
        if not len(view):
            return
        parts = parts_of(allocation.extents, begin, begin + len(view))
        if all(self._only_here(allocation, part.index) for part in parts):
            for part in parts:
                self._write_here(allocation, part, view[part.begin - begin : part.end - begin])
            return
        descriptor = buffer_of(len(view))
        try:
            write_all(descriptor, view, 0)
            self.put_file(allocation, begin, len(view), descriptor)
        finally:
            os.close(descriptor)

    def _only_here(self, allocation: Record, index: int) -> bool:
        return self.here is not None and allocation.extents[index].holders == (self.number,)

    def _write_here(self, allocation: Record, part: Part, data: memoryview) -> None:
        assert self.here is not None
        offset = part.begin - allocation.extents[part.index].begin
        descriptor = self.here.open(allocation, part.index, offset, len(data))
        try:
            write_all(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def put_file(self, allocation: Record, begin: int, length: int, descriptor: int) -> None:
        """The same with bytes from the beginning of a file."""
        check_range(allocation, begin, begin + length)
        parts = parts_of(allocation.extents, begin, begin + length)
        self._together([partial(self._store, allocation, part, descriptor, part.begin - begin) for part in parts])

    def _store(self, allocation: Record, part: Part, descriptor: int, at: int) -> None:
        offset, length = part.begin - allocation.extents[part.index].begin, part.end - part.begin

        def write(holder: int, record: Allocation) -> None:
            if holder == self.number and self.here is not None:
                self.write_and_pass_on(
                    record,
                    part.index,
                    offset,
                    length,
                    lambda target: _copy_apart(descriptor, at, target, offset, length),
                    pass_on=True,
                )
            else:
                message = Write(without_extents(record), part.index, offset, length, True)
                self.peers.write(self.place_of(holder), message, descriptor, at)

        self.with_holder(allocation, part.index, write, own_first=False)

    def write_and_pass_on(
        self, record: Record, index: int, offset: int, length: int, fill: Callable[[int], None], *, pass_on: bool
    ) -> None:
        """Fills a part of an extent that lies here, and then that of its other holders."""
        assert self.here is not None
        descriptor = self.here.open(record, index, offset, length, coming=not pass_on)
        try:
            if not pass_on or record.replicas == 1:
                fill(descriptor)
                return
            with self.here.order(record.id, index):
                fill(descriptor)
                known, _ = self.here.record(record)
                for holder in known.extents[index].holders:
                    if holder != self.number:
                        self._pass_on(holder, Write(without_extents(known), index, offset, length, False), descriptor)
        finally:
            os.close(descriptor)

    def _pass_on(self, holder: int, message: Write, descriptor: int) -> None:
        """One that is gone has nothing any more; one of which nobody has told us yet is only new."""
        begun = time.monotonic()
        while holder in self.nodes or holder not in self._seen:
            patience = PATIENCE_SECONDS if holder in self.nodes else NEWS_SECONDS
            try:
                self.peers.write(self.place_of(holder), message, descriptor, message.offset)
                return
            except (FreedError, UnknownError):
                return  # it is being freed, or that node has begun anew
            except OSError as error:
                if time.monotonic() - begun > patience:
                    raise InputError(
                        f"a replica of {shown(message.record)} cannot be written: {error}", remedy="write it again"
                    ) from None
            time.sleep(PAUSE_SECONDS)

    # ---- what there is --------------------------------------------------------------------------------------------

    def partition(self, allocation: Record) -> dict[str, list[Range]]:
        """By name of node, the ranges that it holds now; nodes that do not answer hold nothing."""
        check_handle(allocation)
        record, held = self.holding(allocation)
        extents = [
            msgspec.structs.replace(extent, holders=tuple(number for number in held if index in held[number]))
            for index, extent in enumerate(record.extents)
        ]
        return partition_of(extents, {number: place.name for number, place in self.nodes.items()})

    def objects(self, run: str = "") -> list[Allocation]:
        """All allocations of a run, or of all runs, in the order of their names."""
        found: dict[str, Allocation] = {}
        self.refresh()
        for number, place in list(self.nodes.items()):
            if number == self.number and self.here is not None:
                records = self.here.objects(run)
            else:
                try:
                    told = self.peers.ask(place, ObjectsAsked(run))
                except OSError:
                    continue
                assert isinstance(told, ObjectsTold)
                records = told.records
            for record in records:
                found[record.id] = as_allocation(merged(found.get(record.id, record), record))
        return sorted(found.values(), key=lambda each: (each.run, each.name, each.id))


def _copy_apart(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Copies to a place of a file whose position other threads use as well."""
    own = os.open(f"/proc/self/fd/{target}", os.O_RDWR | os.O_CLOEXEC)
    try:
        copy_range(source, offset, own, at, length)
    finally:
        os.close(own)
