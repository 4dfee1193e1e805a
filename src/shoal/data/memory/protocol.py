"""Protocol of a node's memory service: messages, connections to other nodes, and descriptor passing within a node.

Other nodes and programs access the extents of a node over the network (the service `MEMORY` of its data listener).
Tasks of the node send any request to a unix socket in the node's directory, and get bytes from other nodes as a memory
descriptor. A message is its length and a packed struct; bytes of extents follow a message unencoded.
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
    """A node that offers memory."""

    name: str
    address: str
    """`host:port` of its data listener; empty: it has none."""
    encrypted: bool = True


# ---- from other nodes ----------------------------------------------------------------------------------------------


class RoomRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the number of free bytes."""


class RoomReply(msgspec.Struct, frozen=True, tag=True):
    free: int


class ReserveRequest(msgspec.Struct, frozen=True, tag=True):
    """Reserves extents of an allocation, all or none. `coming`: they are copied there, and read after
    `UpdateRequest`."""

    record: Allocation
    indexes: list[int]
    coming: bool = False


class ReadRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests bytes at an offset of an extent; they follow the reply."""

    record: Allocation
    index: int
    offset: int
    length: int


class WriteRequest(msgspec.Struct, frozen=True, tag=True):
    """Writes bytes of an extent; they follow after the reply. `pass_on`: forward them to the other holders."""

    record: Allocation
    index: int
    offset: int
    length: int
    pass_on: bool


class DropRequest(msgspec.Struct, frozen=True, tag=True):
    """Frees an allocation."""

    record: Allocation


class RecordRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests what a node knows of an allocation, and which of its extents are there."""

    record: Allocation


class RecordReply(msgspec.Struct, frozen=True, tag=True):
    record: Allocation
    indexes: list[int]


class UpdateRequest(msgspec.Struct, frozen=True, tag=True):
    """Extents have new holders."""

    record: Allocation


class KeepRequest(msgspec.Struct, frozen=True, tag=True):
    """Keeps the allocations of a session for as long as this connection exists."""

    run: str


# ---- from tasks ----------------------------------------------------------------------------------------------------


class HelloRequest(msgspec.Struct, frozen=True, tag=True):
    """Opens the connection of a task; contains the mark of its run, as made by its node."""

    mark: str


class WelcomeReply(msgspec.Struct, frozen=True, tag=True):
    number: int
    folder: str
    run: str


class AllocateRequest(msgspec.Struct, frozen=True, tag=True):
    wish: AllocationRequest
    instead: str = ""


class GetRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests a range; the reply comes with a descriptor and the offset of the bytes in it."""

    record: Allocation
    begin: int
    end: int
    ahead: Ahead | None = None


class FilledReply(msgspec.Struct, frozen=True, tag=True):
    offset: int


class PutRequest(msgspec.Struct, frozen=True, tag=True):
    """Writes bytes, which come with a descriptor."""

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
    """Requests the allocations of a run, or of all: those on this node for other nodes, those of the cluster for
    tasks."""

    run: str


class ObjectsReply(msgspec.Struct, frozen=True, tag=True):
    records: list[Allocation]


class MemoryDoneReply(msgspec.Struct, frozen=True, tag=True):
    """The request was carried out, or may be."""


class MemoryOperationRefused(msgspec.Struct, frozen=True, tag=True):
    """The request was rejected, for this reason."""

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
    """Encodes a message with its length."""
    packed = _encoder.encode(message)
    return len(packed).to_bytes(HEAD_BYTES, "big") + packed


def length_of(head: bytes) -> int:
    """Returns how many bytes of the message follow."""
    length = int.from_bytes(head, "big")
    if not 0 < length <= LONGEST_BYTES:
        raise BadMessageError("a message with an invalid length")
    return length


def decode(packed: bytes) -> Message:
    try:
        return _decoder.decode(packed)
    except msgspec.MsgspecError as error:
        raise BadMessageError(f"a message that cannot be decoded: {error}") from None


def refusal(error: InputError) -> MemoryOperationRefused:
    """Encodes an error, which the peer raises again."""
    kind = next((kind for kind, form in _KINDS.items() if isinstance(error, form)), "")
    return MemoryOperationRefused(kind, error.message, error.remedy)


def checked(message: Message) -> Message:
    """Returns the reply, or raises the error that it contains."""
    if isinstance(message, MemoryOperationRefused):
        raise _KINDS.get(message.kind, InputError)(message.message, remedy=message.remedy)
    return message


def without_extents(record: Allocation) -> Allocation:
    """Returns a copy without extents: enough to identify an allocation at one of its holders."""
    return msgspec.structs.replace(record, extents=())


def as_allocation(record: object) -> Allocation:
    """Returns an allocation from a handle or from a node's record."""
    if isinstance(record, Allocation):
        return record
    return msgspec.convert(record, Allocation, from_attributes=True)


PATIENCE_SECONDS = 30.0
"""Seconds for which a node may be silent during a request."""
MOST_IDLE = 4
"""Maximum number of idle connections that are kept to one node."""


def send(channel: Channel, message: Message, *, more: bool = False) -> None:
    channel.send(encode(message), more=more)


def receive(channel: Channel) -> Message:
    return decode(channel.receive(length_of(channel.receive(HEAD_BYTES))))


class Peers:
    """Connections of one service to all nodes."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._guard = threading.Lock()
        self._idle: dict[MemoryNode, list[Channel]] = {}
        self._closed = False
        self.received_bytes = 0
        """Bytes of extents received from other nodes."""

    def ask(self, place: MemoryNode, message: Message) -> Message:
        """Returns the reply, or raises the error that it contains."""
        return self._asked(place, message, lambda channel: None)

    def read(self, place: MemoryNode, message: ReadRequest, descriptor: int, at: int) -> None:
        """Reads bytes of an extent into a position of a file."""

        def take(channel: Channel) -> None:
            channel.receive_file(descriptor, at, message.length, summed=False)
            with self._guard:
                self.received_bytes += message.length

        self._asked(place, message, take)

    def write(self, place: MemoryNode, message: WriteRequest, descriptor: int, offset: int) -> None:
        """Writes bytes of a file to an extent."""

        def give(channel: Channel) -> None:
            channel.send_file(descriptor, offset, message.length)
            checked(receive(channel))

        self._asked(place, message, give)

    def dial(self, place: MemoryNode) -> Channel:
        """Opens a new connection."""
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
        """Sends a request over an idle connection, or a new one if that was closed meanwhile."""
        with self._guard:
            kept = self._idle.get(place)
            channel = kept.pop() if kept else None
        if channel is not None:
            try:
                return self._over(channel, place, message, then)
            except ConnectionError:
                pass  # the peer has closed an idle connection, or is gone: a new connection will tell
        return self._over(self.dial(place), place, message, then)

    def _over(self, channel: Channel, place: MemoryNode, message: Message, then: Callable[[Channel], None]) -> Message:
        try:
            send(channel, message)
            answer = receive(channel)
            if not isinstance(answer, MemoryOperationRefused):
                then(channel)
        except InputError:  # the exchange is complete, so the connection can be used again
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
    """A connection within the machine that can pass descriptors."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        sent = socket.send_fds(self.socket, [data], list(descriptors))
        self.socket.sendall(memoryview(data)[sent:])

    def receive(self, length: int) -> tuple[bytes, list[int]]:
        """Returns exactly `length` bytes, and the descriptors that came with the first of them."""
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
