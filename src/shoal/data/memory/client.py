"""Clients of the memory layer: `Attached` (a task that uses its node's service), and the memory that this process uses.

A task sends requests to the unix socket of its node's service. It maps extents on the node by itself, without a
request; other ranges are fetched by the service and passed as a memory descriptor. `SHOAL_MEMORY` in the environment is
the path of the socket.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.data.memory.allocation_table import AllocationRequest, bytes_of, checked_ranges
from shoal.data.memory.handle import Ahead, AllocatingHandle, Allocation, Memory
from shoal.data.memory.protocol import (
    HEAD_BYTES,
    AllocateRequest,
    DescriptorLine,
    DropRequest,
    FilledReply,
    GetRequest,
    HelloRequest,
    Message,
    ObjectsReply,
    ObjectsRequest,
    PartitionReply,
    PartitionRequest,
    PrefetchReply,
    PrefetchRequest,
    PutRequest,
    WelcomeReply,
    as_allocation,
    checked,
    decode,
    encode,
    length_of,
)
from shoal.data.memory.segments import buffer_of, file_name, mapped, view_of, write_all
from shoal.errors import InputError
from shoal.resources.memory_layout import AllocationRecord, Range, check_range, parts_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VARIABLE = "SHOAL_MEMORY"
TASK = "SHOAL_TASK"


class Attached(AllocatingHandle):
    """The memory as a task of a node sees its. Every thread has a connection of its own while it requests."""

    def __init__(self, socket_path: str, run: str = "") -> None:
        self._socket_path = socket_path
        self._guard = threading.Lock()
        self._idle: list[DescriptorLine] = []
        told, _ = self._ask(HelloRequest(run))
        assert isinstance(told, WelcomeReply)
        self.number, self._folder, self.run = told.number, told.folder, told.run

    def _allocate(self, wish: AllocationRequest, instead: str) -> Allocation:
        told, _ = self._ask(AllocateRequest(wish, instead))
        assert isinstance(told, ObjectsReply)
        return told.records[0]

    def get(self, allocation: AllocationRecord, begin: int, end: int, *, ahead: Ahead | None = None) -> memoryview:
        """Returns bytes for reading. A range that lies on this node in one piece is not copied, and shows later
        writes."""
        begin, end = check_range(allocation, begin, end)
        if begin == end:
            return memoryview(b"")
        parts = parts_of(allocation.extents, begin, end)
        extent = allocation.extents[parts[0].index]
        if len(parts) == 1 and self.number in extent.holders:
            found = mapped(self._path(allocation, parts[0].index))
            if found is not None:
                return memoryview(found)[begin - extent.begin : end - extent.begin]
        told, descriptors = self._ask(GetRequest(as_allocation(allocation), begin, end, ahead))
        try:
            assert isinstance(told, FilledReply)
            return view_of(descriptors[0], told.offset + end - begin)[told.offset :]
        finally:
            os.close(descriptors[0])

    def put(self, allocation: AllocationRecord, begin: int, data: ReadableBuffer) -> None:
        """Writes `data` at offset `begin`, on all replicas."""
        view = bytes_of(data)
        begin, _ = check_range(allocation, begin, begin + len(view))
        if not len(view) or self._put_here(allocation, begin, view):
            return
        descriptor = buffer_of(len(view))
        try:
            write_all(descriptor, view, 0)
            self._ask(PutRequest(as_allocation(allocation), begin, len(view)), (descriptor,))
        finally:
            os.close(descriptor)

    def _put_here(self, allocation: AllocationRecord, begin: int, view: memoryview) -> bool:
        """Writes a range whose extents are on this node only; False if some are not."""
        parts = parts_of(allocation.extents, begin, begin + len(view))
        if any(allocation.extents[part.index].holders != (self.number,) for part in parts):
            return False
        for part in parts:
            try:
                descriptor = os.open(self._path(allocation, part.index), os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False  # the service reports why
            try:
                offset = part.begin - allocation.extents[part.index].begin
                write_all(descriptor, view[part.begin - begin : part.end - begin], offset)
            finally:
                os.close(descriptor)
        return True

    def prefetch(self, allocation: AllocationRecord, ranges: Sequence[Range]) -> Ahead:
        """Starts to fetch ranges to this node."""
        told, _ = self._ask(PrefetchRequest(as_allocation(allocation), checked_ranges(allocation, ranges)))
        assert isinstance(told, PrefetchReply)
        return told.ahead

    def partition(self, allocation: AllocationRecord) -> dict[str, list[Range]]:
        """Returns, per node name, the ranges that the node holds now."""
        told, _ = self._ask(PartitionRequest(as_allocation(allocation)))
        assert isinstance(told, PartitionReply)
        return told.ranges

    def free(self, allocation: AllocationRecord) -> None:
        """Frees the allocation on all nodes."""
        self._ask(DropRequest(as_allocation(allocation)))

    def objects(self, run: str = "") -> list[Allocation]:
        """Returns all allocations of a run; with an empty run, of all runs."""
        told, _ = self._ask(ObjectsRequest(run))
        assert isinstance(told, ObjectsReply)
        return told.records

    def has(self, allocation: AllocationRecord, index: int) -> bool:
        """Whether an extent is on this node."""
        return os.path.exists(self._path(allocation, index))

    def close(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def _path(self, allocation: AllocationRecord, index: int) -> str:
        return os.path.join(self._folder, file_name(allocation.id, index))

    def _ask(self, message: Message, descriptors: tuple[int, ...] = ()) -> tuple[Message, list[int]]:
        """Returns the reply, with the descriptors that came with it."""
        with self._guard:
            line = self._idle.pop() if self._idle else None
        try:
            if line is None:
                line = self._connected()
            line.send(encode(message), descriptors)
            head, given = line.receive(HEAD_BYTES)
            packed, _ = line.receive(length_of(head))
        except OSError as error:
            if line is not None:
                line.close()
            raise InputError(
                f"the memory service of this node does not reply: {error.strerror or error}",
                remedy="check whether its agent is still running",
            ) from None
        with self._guard:
            self._idle.append(line)
        return checked(decode(packed)), given

    def _connected(self) -> DescriptorLine:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(self._socket_path)
        except OSError:
            connection.close()
            raise
        return DescriptorLine(connection)


_attached: Memory | None = None
_attached_in = 0
_guard = threading.Lock()


def attach() -> Memory:
    """Returns the memory of this process: the one that it has connected to, or that of the node that runs this task."""
    global _attached, _attached_in
    with _guard:
        if _attached is None or _attached_in != os.getpid():
            socket_path = os.environ.get(VARIABLE)
            if not socket_path:
                raise InputError(
                    "this process is not attached to a memory",
                    remedy="call shoal.memory.connect('CLUSTER') or shoal.memory.local() first,"
                    " or run it as a task of a cluster",
                )
            _attached = Attached(socket_path, os.environ.get(TASK, "").partition(":")[0])
            _attached_in = os.getpid()
        return _attached


def enter(memory: Memory) -> None:
    """Makes `memory` the result of `attach` in this process."""
    global _attached, _attached_in
    with _guard:
        _attached, _attached_in = memory, os.getpid()


def leave(memory: Memory) -> None:
    """Removes a closed memory from the results of `attach`."""
    global _attached
    with _guard:
        if _attached is memory:
            _attached = None
