"""The memory server of a node: handles requests of other nodes and of tasks, frees unused memory and restores replicas.

Other nodes and programs read and write the extents of this node. For its tasks, the server calls the same service as a
program would. Every second, and when nodes or runs change, it frees allocations that nothing keeps any more, and gives
extents that have lost a replica another one.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Collection, Mapping

from shoal.data.channel import Channel
from shoal.data.listener import CLOSE_SECONDS, Acceptor, DataListener
from shoal.data.memory.allocation_table import check_handle, lacking
from shoal.data.memory.handle import Allocation
from shoal.data.memory.protocol import (
    HEAD_BYTES,
    AllocateRequest,
    DescriptorLine,
    DropRequest,
    FilledReply,
    GetRequest,
    HelloRequest,
    KeepRequest,
    MemoryDoneReply,
    MemoryNode,
    Message,
    ObjectsReply,
    ObjectsRequest,
    PartitionReply,
    PartitionRequest,
    PrefetchReply,
    PrefetchRequest,
    PutRequest,
    ReadRequest,
    RecordReply,
    RecordRequest,
    ReserveRequest,
    RoomReply,
    RoomRequest,
    UpdateRequest,
    WelcomeReply,
    WriteRequest,
    as_allocation,
    decode,
    encode,
    length_of,
    receive,
    refusal,
    send,
    without_extents,
)
from shoal.data.memory.segments import NodeExtents
from shoal.data.memory.service import MemoryService
from shoal.data.transfer_messages import MEMORY, BadMessageError, RefusedError
from shoal.errors import InputError
from shoal.resources.memory_layout import with_holders

UPKEEP_SECONDS = 1.0
UPKEEP_CLOSE_SECONDS = 5.0
"""Seconds for which `close` waits for maintenance in progress."""
TASKS = b"tasks"
_log = logging.getLogger(__name__)


class MemoryServer:
    """Serves the extents of a node to tasks and to other nodes."""

    def __init__(self, service: MemoryService, here: NodeExtents, listener: DataListener | None = None) -> None:
        """Without a listener, other nodes cannot reach it."""
        self.service, self._here, self._listener = service, here, listener
        self._sessions: dict[str, int] = {}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._tasks = Acceptor(_listen(here.segments.socket_path), DescriptorLine, _admit_task, self._attend_task)
        self.address = listener.address if listener is not None else ""
        self.encrypted = listener is None or listener.encrypted
        if listener is not None:
            listener.offer(MEMORY, self._attend_peer)
        self._upkeep = threading.Thread(target=self._keep_up, name="memory upkeep", daemon=True)
        self._upkeep.start()

    @property
    def socket_path(self) -> str:
        """The path of the socket for tasks of this node."""
        return self._here.segments.socket_path

    def tell(self, number: int, nodes: Mapping[int, MemoryNode], runs: Collection[str]) -> None:
        """Takes the list of nodes, the own number among them, and the active runs."""
        self.service.tell(number, nodes)
        self.service.runs = frozenset(runs)
        self._here.tell(runs)
        self._wake.set()

    def close(self) -> None:
        """Ends all connections and frees everything; the listener stays open."""
        self._closed = True
        self._wake.set()
        self._upkeep.join(UPKEEP_CLOSE_SECONDS)
        if self._listener is not None:
            self._listener.withdraw(MEMORY, CLOSE_SECONDS)
        self._tasks.close()
        self.service.shut()

    # ---- other nodes ---------------------------------------------------------------------------------------------

    def _attend_peer(self, channel: Channel) -> None:
        kept: list[str] = []
        try:
            while True:
                message = receive(channel)
                if isinstance(message, KeepRequest):
                    self._keep(message.run, kept)
                    send(channel, MemoryDoneReply())
                    continue
                try:
                    self._answer_peer(channel, message)
                except InputError as error:
                    send(channel, refusal(error))
        finally:
            with self._guard:
                for run in kept:
                    self._sessions[run] -= 1
                    if not self._sessions[run]:
                        del self._sessions[run]

    def _keep(self, run: str, kept: list[str]) -> None:
        if run not in kept:
            kept.append(run)
            with self._guard:
                self._sessions[run] = self._sessions.get(run, 0) + 1

    def _answer_peer(self, channel: Channel, message: Message) -> None:
        match message:
            case ReadRequest(record, index, offset, length):
                descriptor = self._here.open(record, index, offset, length)
                try:
                    send(channel, MemoryDoneReply(), more=True)
                    channel.send_file(descriptor, offset, length)
                finally:
                    os.close(descriptor)
            case WriteRequest(record, index, offset, length, pass_on):

                def fill(descriptor: int) -> None:
                    send(channel, MemoryDoneReply())
                    channel.receive_file(descriptor, offset, length, summed=False)

                self.service.write_and_pass_on(record, index, offset, length, fill, pass_on=pass_on)
                send(channel, MemoryDoneReply())
            case _:
                send(channel, self._told(message))

    def _told(self, message: Message) -> Message:
        """Returns the reply to a request without bytes."""
        match message:
            case RoomRequest():
                return RoomReply(self._here.free_bytes())
            case ReserveRequest(record, indexes, coming):
                self._here.reserve(record, indexes, coming=coming)
                return MemoryDoneReply()
            case DropRequest(record):
                return RecordReply(self._here.drop(record), [])
            case RecordRequest(record):
                return RecordReply(*self._here.record(record))
            case UpdateRequest(record):
                self._here.update(record)
                return MemoryDoneReply()
            case ObjectsRequest(run):
                return ObjectsReply(self._here.objects(run))
            case _:
                raise BadMessageError("a message that other nodes do not send")

    # ---- tasks ---------------------------------------------------------------------------------------------------

    def _attend_task(self, line: DescriptorLine, _service: bytes) -> None:
        while True:
            head, descriptors = line.receive(HEAD_BYTES)
            try:
                packed, _ = line.receive(length_of(head))
                try:
                    self._answer_task(line, decode(packed), descriptors)
                except InputError as error:
                    line.send(encode(refusal(error)))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _answer_task(self, line: DescriptorLine, message: Message, descriptors: list[int]) -> None:
        service = self.service
        if isinstance(message, GetRequest | PutRequest | PrefetchRequest):
            check_handle(message.record)
        match message:
            case GetRequest(record, begin, end, ahead):
                descriptor, offset = service.fetched(record, begin, end, ahead)
                try:
                    line.send(encode(FilledReply(offset)), (descriptor,))
                finally:
                    os.close(descriptor)
                return
            case HelloRequest(mark):
                answer: Message = WelcomeReply(service.number, self._here.segments.folder, self._run_of(mark))
            case AllocateRequest(wish, instead):
                made = service.alloc(
                    wish.size,
                    replicas=wish.replicas,
                    spread=wish.spread,
                    block_bytes=wish.block_bytes,
                    name=wish.name,
                    run=wish.run,
                    instead=instead,
                )
                answer = ObjectsReply([made])
            case PutRequest(record, begin, length):
                if len(descriptors) != 1 or os.fstat(descriptors[0]).st_size < length:
                    raise BadMessageError("a put without its bytes")
                service.put_file(record, begin, length, descriptors[0])
                answer = MemoryDoneReply()
            case PrefetchRequest(record, ranges):
                answer = PrefetchReply(service.prefetch(record, ranges))
            case PartitionRequest(record):
                answer = PartitionReply(service.partition(record))
            case ObjectsRequest(run):
                answer = ObjectsReply(service.objects(run))
            case DropRequest(record):
                service.free(record)
                answer = MemoryDoneReply()
            case _:
                raise BadMessageError("a message that tasks do not send")
        line.send(encode(answer))

    def _run_of(self, mark: str) -> str:
        """Returns the run of a task's mark, which is the node's number and the name of the run."""
        run = mark.partition(".")[2]
        return run if run in self.service.runs else mark

    # ---- maintenance ---------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        while not self._closed:
            self._wake.wait(UPKEEP_SECONDS)
            self._wake.clear()
            service = self.service
            if self._closed or service.number not in service.nodes:
                continue  # the list of nodes is not known yet
            with self._guard:
                sessions = list(self._sessions)
            self._here.drop_unkept(sessions, service.nodes)
            for record in self._here.objects(""):
                try:
                    self._mend(record)
                except (InputError, OSError) as error:
                    _log.warning("an allocation has lost a replica, which is not restored yet: %s", error)

    def _mend(self, record: Allocation) -> None:
        """Restores missing replicas; the first remaining holder of an extent is responsible for that."""
        service, nodes = self.service, self.service.nodes
        ours = [
            index
            for index in lacking(record, nodes)
            if next(holder for holder in record.extents[index].holders if holder in nodes) == service.number
        ]
        room = service.room() if ours else {}
        for index in ours:
            holders = [holder for holder in record.extents[index].holders if holder in nodes]
            size = record.extents[index].end - record.extents[index].begin
            others = [number for number in room if number not in holders and room[number] >= size]
            new = sorted(others, key=lambda number: -room[number])[: record.replicas - len(holders)]
            for number in new:
                room[number] -= size
            if new:  # as long as no node has room, it has fewer
                record = self._copy(record, index, holders, new)

    def _copy(self, record: Allocation, index: int, holders: list[int], new: list[int]) -> Allocation:
        """Copies an extent to new holders; writes to it are blocked meanwhile."""
        service = self.service
        size = record.extents[index].end - record.extents[index].begin
        with self._here.order(record.id, index):
            changed = as_allocation(with_holders(record, index, (*holders, *new)))
            descriptor = self._here.open(record, index, 0, size)
            try:
                for number in new:
                    service.peers.ask(service.place_of(number), ReserveRequest(changed, [index], True))
                    message = WriteRequest(without_extents(changed), index, 0, size, False)
                    service.peers.write(service.place_of(number), message, descriptor, 0)
                    service.peers.ask(service.place_of(number), UpdateRequest(changed))
            finally:
                os.close(descriptor)
            self._here.update(changed)
        for number in {holder: None for extent in changed.extents for holder in extent.holders}:
            if number != service.number and number in service.nodes:
                try:
                    service.peers.ask(service.place_of(number), UpdateRequest(changed))
                except (InputError, OSError):
                    continue  # it learns of the new holders with its next request for an extent that it does not have
        return changed


def _listen(path: str) -> socket.socket:
    """Makes a socket for tasks of this user, in a directory that no other user may enter."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(256)
    return listener


def _admit_task(line: DescriptorLine) -> bytes:
    """Accepts processes of this user and of root."""
    credentials = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (os.geteuid(), 0):
        raise RefusedError("a process of another user")
    return TASKS
