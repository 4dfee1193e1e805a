"""The memory service of a node or program: allocations over all nodes, reads and writes of their extents, prefetches.

Extents on this node are mapped. Others are copied into anonymous memory, from the first holder that replies. Writes go
to the first holder that is alive, which forwards them to the others before it replies. A holder that is unreachable
delays the write until the cluster has declared it lost, so no replica that counts is ever stale.

`ExtentLocations` finds the holders of extents, `Fetches` prefetches ranges, `MemoryService` combines both.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.data.memory.allocation_table import (
    AllocationRequest,
    FreedError,
    UnknownError,
    bytes_of,
    check_handle,
    checked_ranges,
)
from shoal.data.memory.handle import Ahead, AllocatingHandle, Allocation
from shoal.data.memory.protocol import (
    DropRequest,
    MemoryNode,
    ObjectsReply,
    ObjectsRequest,
    Peers,
    ReadRequest,
    RecordReply,
    RecordRequest,
    ReserveRequest,
    RoomReply,
    RoomRequest,
    WriteRequest,
    as_allocation,
    without_extents,
)
from shoal.data.memory.segments import NodeExtents, buffer_of, copy_range, mapped, view_of, write_all
from shoal.errors import InputError
from shoal.resources.memory_layout import (
    TURNS,
    AllocationRecord,
    ExtentPart,
    FullError,
    Range,
    check_range,
    lay_out,
    merged,
    partition_of,
    parts_of,
    shown,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


PATIENCE_SECONDS = 20.0
"""Seconds to wait for a holder that does not reply: longer than the cluster needs to declare a node lost."""
NEWS_SECONDS = 5.0
"""Seconds within which every node has learned of a new one."""
PAUSE_SECONDS = 0.2
NOBODY = -1


class ExtentLocations:
    """The nodes, and the extents that each of them holds."""

    def __init__(
        self, peers: Peers, here: NodeExtents | None, look: Callable[[], Mapping[int, MemoryNode]] | None
    ) -> None:
        """`look` requests the list of nodes anew, for programs that are not informed of changes."""
        self.peers, self.here = peers, here
        self.number = NOBODY
        self.nodes: dict[int, MemoryNode] = {}
        self._seen: set[int] = set()
        """Nodes of earlier lists."""
        self._look = look
        self._guard = threading.Lock()
        self._newer: dict[str, Allocation] = {}
        """Allocations whose extents have other holders than their handles say."""

    def tell(self, number: int, nodes: Mapping[int, MemoryNode]) -> None:
        """Takes the list of nodes and the own number. A node whose number has changed holds nothing any more."""
        if self.number not in (NOBODY, number) and self.here is not None:
            self.here.drop_all()
        self.number, self.nodes = number, dict(nodes)
        self._seen.update(nodes)

    def place_of(self, number: int) -> MemoryNode:
        """Returns the memory service of a node; OSError if the node is gone."""
        place = self.nodes.get(number)
        if place is None:
            raise ConnectionRefusedError(f"node {number} is gone")
        return place

    def forget(self, allocation: AllocationRecord) -> None:
        """The allocation is freed."""
        with self._guard:
            self._newer.pop(allocation.id, None)

    def with_holder(
        self, allocation: AllocationRecord, index: int, use: Callable[[int, Allocation], None], *, own_first: bool
    ) -> None:
        """Calls `use` with the first holder of an extent that replies; waits for holders that may still reply."""
        begun = time.monotonic()
        while True:
            record = self.newest(allocation)
            holders = [holder for holder in record.extents[index].holders if holder in self.nodes]
            if own_first and self.number in holders:
                holders.sort(key=lambda holder: holder != self.number)
            trouble: Exception | None = None
            for holder in holders:
                try:
                    use(holder, record)
                    return
                except FreedError:
                    raise
                except (UnknownError, OSError) as error:
                    trouble = trouble if isinstance(trouble, UnknownError) else error
            if not self._found_newer(record):
                if isinstance(trouble, UnknownError):
                    raise trouble
                waited = time.monotonic() - begun
                is_gone = not holders and self._seen.issuperset(record.extents[index].holders)
                if is_gone or waited > (PATIENCE_SECONDS if holders else NEWS_SECONDS):
                    raise lost(record, index)
                time.sleep(PAUSE_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        if self._look is not None:
            self.nodes = dict(self._look())
            self._seen.update(self.nodes)

    def newest(self, allocation: AllocationRecord) -> Allocation:
        """Returns the newest record of an allocation; extents without replicas never change their holders."""
        if allocation.replicas > 1:
            newer = self.here.known(allocation) if self.here is not None else None
            if newer is None:
                with self._guard:
                    newer = self._newer.get(allocation.id)
            if newer is not None:
                return as_allocation(merged(newer, allocation))
        return as_allocation(allocation)

    def _found_newer(self, record: Allocation) -> bool:
        """Asks all nodes for newer holders of extents."""
        if record.replicas == 1:
            return False
        for number, place in list(self.nodes.items()):
            if number == self.number:
                continue
            try:
                told = self.peers.ask(place, RecordRequest(record))
            except (InputError, OSError):
                continue
            assert isinstance(told, RecordReply)
            newer = merged(record, told.record)
            if newer is not record:
                with self._guard:
                    self._newer[record.id] = as_allocation(newer)
                return True
        return False

    def holding(self, allocation: AllocationRecord) -> tuple[Allocation, dict[int, list[int]]]:
        """Returns the newest record of an allocation, and the extents of each node that replies, by number."""
        record, held = self.newest(allocation), dict[int, list[int]]()
        trouble: InputError | None = None
        numbers = {holder: None for extent in record.extents for holder in extent.holders}
        for number in list(numbers) if record.replicas == 1 else list(self.nodes):
            try:
                if number == self.number and self.here is not None:
                    known, indexes = self.here.record(record)
                elif number in self.nodes:
                    told = self.peers.ask(self.place_of(number), RecordRequest(record))
                    assert isinstance(told, RecordReply)
                    known, indexes = told.record, told.indexes
                else:
                    continue
            except InputError as error:
                if number in numbers:
                    trouble = error if trouble is None or isinstance(error, FreedError) else trouble
                continue
            except OSError:
                continue
            held[number] = indexes
            record = as_allocation(merged(record, known))
        if not held and trouble is not None:
            raise trouble
        return record, held


def lost(record: AllocationRecord, index: int) -> InputError:
    extent = record.extents[index]
    return InputError(
        f"bytes {extent.begin} to {extent.end} of allocation {shown(record)} were lost with their nodes",
        remedy="allocate and write them again; with replicas=2 an allocation survives the loss of a node",
    )


PREFETCH_AT_ONCE = 4
MOST_BYTES = 1 << 30
"""Maximum bytes of prefetches in a program that is not a node; a node has its limit."""


class PrefetchOwner(Protocol):
    """The service that prefetches."""

    here: NodeExtents | None

    def fill(self, allocation: AllocationRecord, begin: int, end: int, descriptor: int) -> None: ...

    def lies_here(self, allocation: AllocationRecord, begin: int, end: int) -> bool: ...


class _Coming:
    """A range that is being prefetched."""

    def __init__(self, begin: int, end: int, descriptor: int, future: Future[None]) -> None:
        self.begin, self.end, self.descriptor, self.future = begin, end, descriptor, future


class Fetches:
    """All prefetches of one service."""

    def __init__(self, owner: PrefetchOwner) -> None:
        self._owner = owner
        self._guard = threading.Lock()
        self._coming: dict[str, list[_Coming]] = {}
        """By token, the oldest first."""
        self._bytes = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(PREFETCH_AT_ONCE, thread_name_prefix="memory ahead")

    def begin(self, allocation: AllocationRecord, ranges: Sequence[Range]) -> Ahead:
        """Starts to prefetch as many of the ranges as there is room for."""
        ahead = Ahead(secrets.token_hex(8), tuple((begin, end) for begin, end in ranges))
        coming = []
        for begin, end in ahead.ranges:
            if begin == end or self._closed or self._owner.lies_here(allocation, begin, end):
                continue
            if self._take_room(end - begin):
                descriptor = buffer_of(end - begin)
                future = self._pool.submit(self._owner.fill, allocation, begin, end, descriptor)
                coming.append(_Coming(begin, end, descriptor, future))
        if coming:
            with self._guard:
                self._coming[ahead.token] = coming
        return ahead

    def take(self, token: str, begin: int, end: int) -> tuple[int, int] | None:
        """Waits for a prefetched range; returns its descriptor, for the caller to close, and the offset of the range in
        it.

        A range that is taken as a whole is not kept for others.
        """
        with self._guard:
            coming = self._coming.get(token, [])
            found = next((each for each in coming if each.begin <= begin and end <= each.end), None)
            if found is None:
                return None
            descriptor = os.dup(found.descriptor)
            is_last = (found.begin, found.end) == (begin, end)
            if is_last:
                coming.remove(found)
                if not coming:
                    del self._coming[token]
        try:
            found.future.result()
        except (InputError, OSError, CancelledError):
            os.close(descriptor)
            descriptor = -1
        if is_last:
            self._let_go(found)
        return None if descriptor < 0 else (descriptor, begin - found.begin)

    def close(self) -> None:
        """Drops unclaimed ranges, as soon as nothing is written to them any more."""
        self._closed = True
        with self._guard:
            left = [each for coming in self._coming.values() for each in coming]
            self._coming.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in left:
            each.future.add_done_callback(partial(self._let_go_after, each))

    def _take_room(self, amount: int) -> bool:
        """Makes room by dropping the oldest unclaimed ranges."""
        while True:
            here = self._owner.here
            with self._guard:
                if here.take_ahead(amount) if here is not None else self._bytes + amount <= MOST_BYTES:
                    self._bytes += amount
                    return True
                oldest = self._oldest()
            if oldest is None:
                return False
            self._let_go(oldest)

    def _oldest(self) -> _Coming | None:
        for token, coming in self._coming.items():
            for each in coming:
                if each.future.done():
                    coming.remove(each)
                    if not coming:
                        del self._coming[token]
                    return each
        return None

    def _let_go_after(self, gone: _Coming, _: Future[None]) -> None:
        self._let_go(gone)

    def _let_go(self, gone: _Coming) -> None:
        os.close(gone.descriptor)
        amount = gone.end - gone.begin
        with self._guard:
            self._bytes -= amount
        if self._owner.here is not None:
            self._owner.here.give_ahead(amount)


AT_ONCE = 8
"""Maximum number of extents that are read or written at the same time, over all requests."""
TRIES = 3
"""Number of attempts to place an allocation when others take the room first."""


class MemoryService(ExtentLocations, AllocatingHandle):
    """Memory over nodes."""

    def __init__(
        self,
        peers: Peers,
        here: NodeExtents | None,
        *,
        run: str = "",
        look: Callable[[], Mapping[int, MemoryNode]] | None = None,
    ) -> None:
        super().__init__(peers, here, look)
        self.run = run
        self.runs: Collection[str] = ()
        """The active runs of the cluster."""
        self.kept = "node"
        """Returns what keeps allocations of runs that the cluster does not list."""
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="memory")
        self._fetches = Fetches(self)
        self._dealt_last: int | None = None
        """The node that got the last block of an allocation in turns: the next one begins after it."""
        self.allocated: Callable[[Allocation], None] = lambda allocation: None
        """Called with every allocation that is made by this service."""

    def close(self) -> None:
        """Ends the owner of this service."""
        self.shut()

    def shut(self) -> None:
        """Releases all resources."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._fetches.close()
        self.peers.close()
        if self.here is not None:
            self.here.close()

    # ---- making and freeing --------------------------------------------------------------------------------------

    def _allocate(self, wish: AllocationRequest, instead: str) -> Allocation:
        allocation = self._reserved(wish, self._keeping_of(wish.name, wish.run, instead))
        self.allocated(allocation)
        return allocation

    def _reserved(self, wish: AllocationRequest, kept: str) -> Allocation:
        """Chooses nodes with room and reserves the extents there."""
        for attempt in range(TRIES):
            room = self.room()
            if self._dealt_last is None and room:
                # at random, so that programs that allocate once do not all begin at the same node
                self._dealt_last = secrets.choice(sorted(room))
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
            except (FullError, OSError) as error:  # another allocation was faster, or a node has just disappeared
                if attempt == TRIES - 1:
                    raise error if isinstance(error, InputError) else InputError(str(error)) from None
        raise AssertionError("the last attempt returns or raises")

    def _keeping_of(self, name: str, run: str, instead: str) -> str:
        """Returns what keeps an allocation of that run; the name must be free in it, or that of the replaced
        allocation."""
        others = self.objects(run) if name else []
        if any(each.name == name and each.id != instead for each in others):
            raise InputError(
                f"run {run!r} already has an object {name!r}", remedy="choose another name, or free that one"
            )
        if run in self.runs:
            return "run"
        return next((each.kept for each in others), self.kept)

    def room(self) -> dict[int, int]:
        """Returns the free bytes of each node; nodes that do not reply have none."""

        def ask(number: int) -> int:
            if number == self.number and self.here is not None:
                return self.here.free_bytes()
            try:
                told = self.peers.ask(self.place_of(number), RoomRequest())
            except OSError:
                return -1
            assert isinstance(told, RoomReply)
            return told.free

        self.refresh()
        numbers = list(self.nodes)
        free = self._pool.map(ask, numbers)
        return {number: amount for number, amount in zip(numbers, free, strict=True) if amount >= 0}

    def _reserve(self, allocation: Allocation) -> None:
        """Reserves the extents at all holders, or at none."""
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
                    continue  # the holder that has refused has reserved nothing
            raise

    def _reserve_at(self, holder: int, allocation: Allocation, indexes: list[int]) -> None:
        if holder == self.number and self.here is not None:
            self.here.reserve(allocation, indexes)
        else:
            self.peers.ask(self.place_of(holder), ReserveRequest(allocation, indexes))

    def free(self, allocation: AllocationRecord) -> None:
        """Frees the allocation on all nodes."""
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
        """Returns the record of the holder; None if it is gone."""
        if holder == self.number and self.here is not None:
            return self.here.drop(allocation)
        if holder not in self.nodes:
            return None
        try:
            told = self.peers.ask(self.place_of(holder), DropRequest(allocation))
        except OSError:
            return None  # it will be declared lost with all its extents; if not, its maintenance frees it
        return told.record if isinstance(told, RecordReply) else None

    # ---- reading -------------------------------------------------------------------------------------------------

    def get(self, allocation: AllocationRecord, begin: int, end: int, *, ahead: Ahead | None = None) -> memoryview:
        """Returns bytes for reading. A range that lies on this node in one piece is not copied, and shows later
        writes."""
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

    def _mapped(self, allocation: AllocationRecord, begin: int, end: int) -> memoryview | None:
        if self.here is None or not self.lies_here(allocation, begin, end):
            return None
        parts = parts_of(allocation.extents, begin, end)
        found = mapped(self.here.segments.path(allocation.id, parts[0].index))
        base = allocation.extents[parts[0].index].begin
        return None if found is None else memoryview(found)[begin - base : end - base]

    def has(self, allocation: AllocationRecord, index: int) -> bool:
        """Whether an extent is on this node."""
        return self.here is not None and self.here.has(allocation, index)

    def lies_here(self, allocation: AllocationRecord, begin: int, end: int) -> bool:
        """Whether a range is on this node in one piece."""
        parts = parts_of(allocation.extents, begin, end)
        return len(parts) == 1 and self.has(allocation, parts[0].index)

    def fetched(self, allocation: AllocationRecord, begin: int, end: int, ahead: Ahead | None) -> tuple[int, int]:
        """Returns memory with the bytes, for the caller to close, and their offset in it."""
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

    def fill(self, allocation: AllocationRecord, begin: int, end: int, descriptor: int) -> None:
        """Copies a range to the beginning of a file."""
        parts = parts_of(allocation.extents, begin, end)
        self._together([partial(self._fetch, allocation, part, descriptor, part.begin - begin) for part in parts])

    def _fetch(self, allocation: AllocationRecord, part: ExtentPart, descriptor: int, at: int) -> None:
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
                message = ReadRequest(without_extents(record), part.index, offset, length)
                self.peers.read(self.place_of(holder), message, descriptor, at)

        self.with_holder(allocation, part.index, read, own_first=True)

    def _together(self, deeds: Sequence[Callable[[], None]]) -> None:
        """Runs all operations concurrently and returns when all have ended, since their files may be closed
        afterwards."""
        if len(deeds) == 1:
            deeds[0]()
            return
        under_way = [self._pool.submit(deed) for deed in deeds]
        wait(under_way)
        for each in under_way:
            each.result()

    def prefetch(self, allocation: AllocationRecord, ranges: Sequence[Range]) -> Ahead:
        """Starts to prefetch ranges; `get` with the result waits only for ranges that have not arrived."""
        return self._fetches.begin(allocation, checked_ranges(allocation, ranges))

    # ---- writing -------------------------------------------------------------------------------------------------

    def put(self, allocation: AllocationRecord, begin: int, data: ReadableBuffer) -> None:
        """Writes `data` at offset `begin`, on all replicas."""
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

    def _only_here(self, allocation: AllocationRecord, index: int) -> bool:
        return self.here is not None and allocation.extents[index].holders == (self.number,)

    def _write_here(self, allocation: AllocationRecord, part: ExtentPart, data: memoryview) -> None:
        assert self.here is not None
        offset = part.begin - allocation.extents[part.index].begin
        descriptor = self.here.open(allocation, part.index, offset, len(data))
        try:
            write_all(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def put_file(self, allocation: AllocationRecord, begin: int, length: int, descriptor: int) -> None:
        """Like `put`, with bytes from the beginning of a file."""
        check_range(allocation, begin, begin + length)
        parts = parts_of(allocation.extents, begin, begin + length)
        self._together([partial(self._store, allocation, part, descriptor, part.begin - begin) for part in parts])

    def _store(self, allocation: AllocationRecord, part: ExtentPart, descriptor: int, at: int) -> None:
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
                message = WriteRequest(without_extents(record), part.index, offset, length, True)
                self.peers.write(self.place_of(holder), message, descriptor, at)

        self.with_holder(allocation, part.index, write, own_first=False)

    def write_and_pass_on(
        self,
        record: AllocationRecord,
        index: int,
        offset: int,
        length: int,
        fill: Callable[[int], None],
        *,
        pass_on: bool,
    ) -> None:
        """Fills a part of an extent on this node, then forwards it to the other holders."""
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
                        self._pass_on(
                            holder, WriteRequest(without_extents(known), index, offset, length, False), descriptor
                        )
        finally:
            os.close(descriptor)

    def _pass_on(self, holder: int, message: WriteRequest, descriptor: int) -> None:
        """Forwards a write. A lost holder has no extents any more; an unknown one is new and not yet in the list."""
        begun = time.monotonic()
        while holder in self.nodes or holder not in self._seen:
            patience = PATIENCE_SECONDS if holder in self.nodes else NEWS_SECONDS
            try:
                self.peers.write(self.place_of(holder), message, descriptor, message.offset)
                return
            except (FreedError, UnknownError):
                return  # it is being freed, or that node has restarted
            except OSError as error:
                if time.monotonic() - begun > patience:
                    raise InputError(
                        f"a replica of {shown(message.record)} cannot be written: {error}", remedy="write it again"
                    ) from None
            time.sleep(PAUSE_SECONDS)

    # ---- contents -------------------------------------------------------------------------------------------------

    def partition(self, allocation: AllocationRecord) -> dict[str, list[Range]]:
        """Returns, per node name, the ranges that the node holds now; nodes that do not reply hold nothing."""
        check_handle(allocation)
        record, held = self.holding(allocation)
        extents = [
            msgspec.structs.replace(extent, holders=tuple(number for number in held if index in held[number]))
            for index, extent in enumerate(record.extents)
        ]
        return partition_of(extents, {number: place.name for number, place in self.nodes.items()})

    def objects(self, run: str = "") -> list[Allocation]:
        """Returns all allocations of a run, or of all runs, sorted by name."""
        found: dict[str, Allocation] = {}
        self.refresh()
        for number, place in list(self.nodes.items()):
            if number == self.number and self.here is not None:
                records = self.here.objects(run)
            else:
                try:
                    told = self.peers.ask(place, ObjectsRequest(run))
                except OSError:
                    continue
                assert isinstance(told, ObjectsReply)
                records = told.records
            for record in records:
                found[record.id] = as_allocation(merged(found.get(record.id, record), record))
        return sorted(found.values(), key=lambda each: (each.run, each.name, each.id))


def _copy_apart(source: int, offset: int, target: int, at: int, length: int) -> None:
    """Copies with explicit offsets, since other threads use the file position as well."""
    own = os.open(f"/proc/self/fd/{target}", os.O_RDWR | os.O_CLOEXEC)
    try:
        copy_range(source, offset, own, at, length)
    finally:
        os.close(own)
