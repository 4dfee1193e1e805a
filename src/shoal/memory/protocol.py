"""The messages of a node's memory service, as bytes.

Other nodes and programs ask over the network (the service `MEMORY` of the node's data listener) for what lies on the
node. Tasks of the node ask for anything at a unix socket in the node's folder, and get what does not lie there as a
descriptor of memory. Each message is its length and a packed struct; bytes of extents follow a message plain.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.depot.handshake import BadMessageError
from shoal.errors import InputError
from shoal.memory.books import FreedError, UnknownError
from shoal.memory.handle import Ahead, Allocation
from shoal.memory.layout import FullError, Range
from shoal.memory.wishes import Wish

HEAD_BYTES = 4
LONGEST_BYTES = 16 << 20
_KINDS: dict[str, type[InputError]] = {"full": FullError, "freed": FreedError, "unknown": UnknownError}


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A node whose memory can be used."""

    name: str
    address: str
    """`host:port` of its data listener; empty: it has none."""
    encrypted: bool = True


# ---- from other nodes ----------------------------------------------------------------------------------------------


class RoomAsked(msgspec.Struct, frozen=True, tag=True):
    """How much is free?"""


class RoomTold(msgspec.Struct, frozen=True, tag=True):
    free: int


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Take these extents of an allocation, all or none. `coming`: they are copied there, and read after `Update`."""

    record: Allocation
    indexes: list[int]
    coming: bool = False


class Read(msgspec.Struct, frozen=True, tag=True):
    """Bytes of an extent, counted from its beginning; they follow the answer."""

    record: Allocation
    index: int
    offset: int
    length: int


class Write(msgspec.Struct, frozen=True, tag=True):
    """Bytes for an extent; they follow once they are welcome. `pass_on`: to its other holders, too."""

    record: Allocation
    index: int
    offset: int
    length: int
    pass_on: bool


class Drop(msgspec.Struct, frozen=True, tag=True):
    """An allocation is freed."""

    record: Allocation


class RecordAsked(msgspec.Struct, frozen=True, tag=True):
    """What is known of an allocation, and which of its extents are there?"""

    record: Allocation


class RecordTold(msgspec.Struct, frozen=True, tag=True):
    record: Allocation
    indexes: list[int]


class Update(msgspec.Struct, frozen=True, tag=True):
    """Extents have found other holders."""

    record: Allocation


class Keep(msgspec.Struct, frozen=True, tag=True):
    """As long as this connection is there, the allocations of this session are."""

    run: str


# ---- from tasks ----------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A task begins to ask; the mark of its run, as its node made it."""

    mark: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    number: int
    folder: str
    run: str


class AllocAsked(msgspec.Struct, frozen=True, tag=True):
    wish: Wish
    instead: str = ""


class GetAsked(msgspec.Struct, frozen=True, tag=True):
    """Answered with a descriptor, and where in it the bytes begin."""

    record: Allocation
    begin: int
    end: int
    ahead: Ahead | None = None


class Filled(msgspec.Struct, frozen=True, tag=True):
    offset: int


class PutAsked(msgspec.Struct, frozen=True, tag=True):
    """Comes with a descriptor that has the bytes."""

    record: Allocation
    begin: int
    length: int


class AheadAsked(msgspec.Struct, frozen=True, tag=True):
    record: Allocation
    ranges: list[Range]


class AheadTold(msgspec.Struct, frozen=True, tag=True):
    ahead: Ahead


class PartitionAsked(msgspec.Struct, frozen=True, tag=True):
    record: Allocation


class PartitionTold(msgspec.Struct, frozen=True, tag=True):
    ranges: dict[str, list[Range]]


# ---- from both -----------------------------------------------------------------------------------------------------


class ObjectsAsked(msgspec.Struct, frozen=True, tag=True):
    """Which allocations of a run, or of all, exist: on this node for other nodes, on any node for tasks?"""

    run: str


class ObjectsTold(msgspec.Struct, frozen=True, tag=True):
    records: list[Allocation]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It was done, or may be."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It was not done, and this is why."""

    kind: str
    message: str
    remedy: str | None = None


Message: TypeAlias = (
    RoomAsked
    | RoomTold
    | Reserve
    | Read
    | Write
    | Drop
    | RecordAsked
    | RecordTold
    | Update
    | Keep
    | Hello
    | Welcome
    | AllocAsked
    | GetAsked
    | Filled
    | PutAsked
    | AheadAsked
    | AheadTold
    | PartitionAsked
    | PartitionTold
    | ObjectsAsked
    | ObjectsTold
    | Done
    | Refused
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


def refusal(error: InputError) -> Refused:
    """An error, to be raised again on the other side."""
    kind = next((kind for kind, form in _KINDS.items() if isinstance(error, form)), "")
    return Refused(kind, error.message, error.remedy)


def checked(message: Message) -> Message:
    """The answer itself, or the error that it tells of."""
    if isinstance(message, Refused):
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
