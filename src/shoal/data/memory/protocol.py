"""The messages of a node's memory service, as bytes.

Other nodes and programs ask over the network (the service `MEMORY` of the node's data listener) for what lies on the
node. Tasks of the node ask for anything at a unix socket in the node's folder, and get what does not lie there as a
descriptor of memory. Each message is its length and a packed struct; bytes of extents follow a message plain.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from shoal.data.channel import Channel, FileTroubleError, dial, introduce
from shoal.data.memory.allocation_table import AllocationRequest, FreedError, UnknownError
from shoal.data.memory.handle import Ahead, Allocation
from shoal.data.transfer_messages import MEMORY, BadMessageError, DataGrant, RefusedError
from shoal.errors import InputError
from shoal.resources.memory_layout import FullError, Range

HEAD_BYTES = 4
LONGEST_BYTES = 16 << 20
_KINDS: dict[str, type[InputError]] = {"full": FullError, "freed": FreedError, "unknown": UnknownError}


class MemoryNode(msgspec.Struct, frozen=True, array_like=True):
    """A node whose memory can be used."""

    name: str
    address: str
    """`host:port` of its data listener; empty: it has none."""
    encrypted: bool = True


# ---- from other nodes ----------------------------------------------------------------------------------------------


class RoomRequest(msgspec.Struct, frozen=True, tag=True):
    """How much is free?"""


class RoomReply(msgspec.Struct, frozen=True, tag=True):
    free: int


class ReserveRequest(msgspec.Struct, frozen=True, tag=True):
    """Take these extents of an allocation, all or none. `coming`: they are copied there, and read after
    `UpdateRequest`."""

    record: Allocation
    indexes: list[int]
    coming: bool = False


class ReadRequest(msgspec.Struct, frozen=True, tag=True):
    """Bytes of an extent, counted from its beginning; they follow the answer."""

    record: Allocation
    index: int
    offset: int
    length: int


class WriteRequest(msgspec.Struct, frozen=True, tag=True):
    """Bytes for an extent; they follow once they are welcome. `pass_on`: to its other holders, too."""

    record: Allocation
    index: int
    offset: int
    length: int
    pass_on: bool


class DropRequest(msgspec.Struct, frozen=True, tag=True):
    """An allocation is freed."""

    record: Allocation


class RecordRequest(msgspec.Struct, frozen=True, tag=True):
    """What is known of an allocation, and which of its extents are there?"""

    record: Allocation


class RecordReply(msgspec.Struct, frozen=True, tag=True):
    record: Allocation
    indexes: list[int]


class UpdateRequest(msgspec.Struct, frozen=True, tag=True):
    """Extents have found other holders."""

    record: Allocation


class KeepRequest(msgspec.Struct, frozen=True, tag=True):
    """As long as this connection is there, the allocations of this session are."""

    run: str


# ---- from tasks ----------------------------------------------------------------------------------------------------


class HelloRequest(msgspec.Struct, frozen=True, tag=True):
    """A task begins to ask; the mark of its run, as its node made it."""

    mark: str


class WelcomeReply(msgspec.Struct, frozen=True, tag=True):
    number: int
    folder: str
    run: str


class AllocateRequest(msgspec.Struct, frozen=True, tag=True):
    wish: AllocationRequest
    instead: str = ""


class GetRequest(msgspec.Struct, frozen=True, tag=True):
    """Answered with a descriptor, and where in it the bytes begin."""

    record: Allocation
    begin: int
    end: int
    ahead: Ahead | None = None


class FilledReply(msgspec.Struct, frozen=True, tag=True):
    offset: int


class PutRequest(msgspec.Struct, frozen=True, tag=True):
    """Comes with a descriptor that has the bytes."""

    record: Allocation
    begin: int
    length: int


class PrefetchRequest(msgspec.Struct, frozen=True, tag=True):
    record: Allocation
    ranges: list[Range]


class PrefetchReply(msgspec.Struct, frozen=True, tag=True):
    ahead: Ahead


class PartitionRequest(msgspec.Struct, frozen=True, tag=True):
    record: Allocation


class PartitionReply(msgspec.Struct, frozen=True, tag=True):
    ranges: dict[str, list[Range]]


# ---- from both -----------------------------------------------------------------------------------------------------


class ObjectsRequest(msgspec.Struct, frozen=True, tag=True):
    """Which allocations of a run, or of all, exist: on this node for other nodes, on any node for tasks?"""

    run: str


class ObjectsReply(msgspec.Struct, frozen=True, tag=True):
    records: list[Allocation]


class MemoryDoneReply(msgspec.Struct, frozen=True, tag=True):
    """It was done, or may be."""


class MemoryOperationRefused(msgspec.Struct, frozen=True, tag=True):
    """It was not done, and this is why."""

    kind: str
    message: str
    remedy: str | None = None


Message: TypeAlias = (
    RoomRequest
    | RoomReply
    | ReserveRequest
    | ReadRequest
    | WriteRequest
    | DropRequest
    | RecordRequest
    | RecordReply
    | UpdateRequest
    | KeepRequest
    | HelloRequest
    | WelcomeReply
    | AllocateRequest
    | GetRequest
    | FilledReply
    | PutRequest
    | PrefetchRequest
    | PrefetchReply
    | PartitionRequest
    | PartitionReply
    | ObjectsRequest
    | ObjectsReply
    | MemoryDoneReply
    | MemoryOperationRefused
)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message with its length."""
    packed = _encoder.encode(message)
    return len(packed).to_bytes(HEAD_BYTES, "big") + packed


def length_of(head: bytes) -> int:
    """How many bytes of message follow."""
    length = int.from_bytes(head, "big")
    if not 0 < length <= LONGEST_BYTES:
        raise BadMessageError("a message without a proper length")
    return length


def decode(packed: bytes) -> Message:
    try:
        return _decoder.decode(packed)
    except msgspec.MsgspecError as error:
        raise BadMessageError(f"a message that is not understood: {error}") from None


def refusal(error: InputError) -> MemoryOperationRefused:
    """An error, to be raised again on the other side."""
    kind = next((kind for kind, form in _KINDS.items() if isinstance(error, form)), "")
    return MemoryOperationRefused(kind, error.message, error.remedy)


def checked(message: Message) -> Message:
    """The answer itself, or the error that it tells of."""
    if isinstance(message, MemoryOperationRefused):
        raise _KINDS.get(message.kind, InputError)(message.message, remedy=message.remedy)
    return message


def without_extents(record: Allocation) -> Allocation:
    """Enough to name an allocation to somebody who holds some of it."""
    return msgspec.structs.replace(record, extents=())


def as_allocation(record: object) -> Allocation:
    """A record that came as a handle or as what a node knows."""
    if isinstance(record, Allocation):
        return record
    return msgspec.convert(record, Allocation, from_attributes=True)


PATIENCE_SECONDS = 30.0
"""How long a node may be silent while it is asked."""
MOST_IDLE = 4
"""Connections to one node that are kept without a question."""


def send(channel: Channel, message: Message, *, more: bool = False) -> None:
    channel.send(encode(message), more=more)


def receive(channel: Channel) -> Message:
    return decode(channel.receive(length_of(channel.receive(HEAD_BYTES))))


class Peers:
    """All nodes that one service asks."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._guard = threading.Lock()
        self._idle: dict[MemoryNode, list[Channel]] = {}
        self._closed = False
        self.received_bytes = 0
        """Of extents, from other nodes."""

    def ask(self, place: MemoryNode, message: Message) -> Message:
        """The answer, or the error that it tells of."""
        return self._asked(place, message, lambda channel: None)

    def read(self, place: MemoryNode, message: ReadRequest, descriptor: int, at: int) -> None:
        """Bytes of an extent, to that place of a file."""

        def take(channel: Channel) -> None:
            channel.receive_file(descriptor, at, message.length, summed=False)
            with self._guard:
                self.received_bytes += message.length

        self._asked(place, message, take)

    def write(self, place: MemoryNode, message: WriteRequest, descriptor: int, offset: int) -> None:
        """Bytes of a file, for an extent."""

        def give(channel: Channel) -> None:
            channel.send_file(descriptor, offset, message.length)
            checked(receive(channel))

        self._asked(place, message, give)

    def dial(self, place: MemoryNode) -> Channel:
        """A connection of its own."""
        host, _, port = place.address.rpartition(":")
        if not port.isdigit():
            raise ConnectionRefusedError(f"{place.name} has no address for other nodes")
        grant = DataGrant(host, int(port), self._token, place.encrypted)
        channel = dial(grant, PATIENCE_SECONDS)
        try:
            introduce(channel, grant, MEMORY)
        except RefusedError as error:
            channel.close()
            raise ConnectionRefusedError(str(error)) from None
        except OSError:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, {}
        for channels in idle.values():
            for channel in channels:
                channel.close()

    def _asked(self, place: MemoryNode, message: Message, then: Callable[[Channel], None]) -> Message:
        """Over a connection that is there, or a new one; one that was kept may have been closed meanwhile."""
        with self._guard:
            kept = self._idle.get(place)
            channel = kept.pop() if kept else None
        if channel is not None:
            try:
                return self._over(channel, place, message, then)
            except ConnectionError:
                pass  # the other side has closed it for want of questions, or is gone: a new one will tell
        return self._over(self.dial(place), place, message, then)

    def _over(self, channel: Channel, place: MemoryNode, message: Message, then: Callable[[Channel], None]) -> Message:
        try:
            send(channel, message)
            answer = receive(channel)
            if not isinstance(answer, MemoryOperationRefused):
                then(channel)
        except InputError:  # the whole exchange is over, and the connection as good as before
            self._keep(channel, place)
            raise
        except FileTroubleError as error:
            channel.close()
            raise OSError(error.errno, str(error)) from None
        except OSError:
            channel.close()
            raise
        self._keep(channel, place)
        return checked(answer)

    def _keep(self, channel: Channel, place: MemoryNode) -> None:
        with self._guard:
            kept = self._idle.setdefault(place, [])
            if not self._closed and len(kept) < MOST_IDLE:
                kept.append(channel)
                return
        channel.close()


class DescriptorLine:
    """A connection within the machine, over which descriptors can be passed."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        sent = socket.send_fds(self.socket, [data], list(descriptors))
        self.socket.sendall(memoryview(data)[sent:])

    def receive(self, length: int) -> tuple[bytes, list[int]]:
        """Exactly so many bytes, and the descriptors that came with the first of them."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, length, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            while len(data) < length:
                more = self.socket.recv(length - len(data))
                if not more:
                    raise ConnectionResetError("the other side has closed the connection")
                data += more
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return data, descriptors

    def end(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self.socket.close()
