"""What goes over the wire in one frame: some messages of one sender, as bytes. Pure.

A frame is a msgpack array `[version, cluster, sender, serial, messages]`. The first four fields keep their meaning and
place in every version to come, so that two sides of different versions can at least tell each other so; the messages
are looked at only after the version. They are tagged structs of types that the user of this module names, and nothing
else comes out of a frame: no code, no pickles, no classes chosen by the sender.

Who may say what, and how frames travel, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from shoal.errors import ShoalError

VERSION = 1
"""Goes up when a message changes its meaning or loses a field. Added fields with defaults need no new version."""

FRAME_LIMIT_BYTES = 16 * 1024 * 1024
HEADER_BYTES = 1024
"""More than everything in a frame beside its messages."""

NAME_LENGTH = 200

M = TypeVar("M")
Name = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class BadFrame(ShoalError):  # noqa: N818  # what is bad is the frame
    """These bytes are not a frame of ours, or would not be one."""


class OtherVersion(BadFrame):
    """The sender speaks another version; of its frame only the header was read."""

    def __init__(self, version: int, serial: int) -> None:
        super().__init__(f"version {version}")
        self.version = version
        self.serial = serial


class Envelope(msgspec.Struct, Generic[M], frozen=True, array_like=True):
    """A frame as its receiver sees it."""

    version: int
    cluster: str
    sender: str
    """What the sender says of itself, which proves nothing."""
    serial: int
    """Counts what one sender has sent; in an answer the serial of what is answered."""
    messages: list[M]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """A frame in which the messages have not been looked at yet."""

    version: Count
    cluster: Name
    sender: Name
    serial: Count
    messages: msgspec.Raw


class Codec(Generic[M]):
    """Messages to frames and back, for one set of message types."""

    def __init__(self, kind: object, *, version: int = VERSION, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        """`kind` is the union of the message types: each a struct, told apart by their tags."""
        self.version = version
        self.limit_bytes = limit_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._header = msgspec.msgpack.Decoder(_Header)
        self._messages = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]  # known only at run time

    def packed(self, message: M) -> bytes:
        """One message as it will stand in a frame; `BadFrame` if no frame could hold it."""
        data = self._encoder.encode(message)
        if len(data) > self.limit_bytes - HEADER_BYTES:
            raise BadFrame(f"a message of {len(data)} bytes does not fit into a frame of {self.limit_bytes}")
        return data

    def frame(self, cluster: str, sender: str, serial: int, packed: Sequence[bytes]) -> bytes:
        """A frame around packed messages; whoever packs them keeps their sum within the limit."""
        raw = [msgspec.Raw(data) for data in packed]
        return self._encoder.encode(Envelope(self.version, cluster, sender, serial, raw))

    def encode(self, envelope: Envelope[M]) -> bytes:
        """The frame of an envelope, of whatever version it says."""
        return self._encoder.encode(envelope)

    def decode(self, frame: bytes | memoryview) -> Envelope[M]:
        """What is in a frame. Whatever the bytes are, nothing but `BadFrame` is raised."""
        if len(frame) > self.limit_bytes:
            raise BadFrame(f"{len(frame)} bytes are more than a frame may have")
        try:
            header = self._header.decode(frame)
            if header.version != self.version:
                raise OtherVersion(header.version, header.serial)
            messages: list[M] = self._messages.decode(header.messages)
        except (ValueError, OverflowError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            raise BadFrame(str(error)) from None
        return Envelope(header.version, header.cluster, header.sender, header.serial, messages)


class Outbox:
    """Packed messages in order, each with the serial of the envelope that it belongs to (0: any)."""

    __slots__ = ("_limit_bytes", "_waiting", "bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._limit_bytes = limit_bytes
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, packed: bytes, serial: int = 0) -> int:
        """Append a message, which always stays; returns how many of the oldest were dropped to make room for it."""
        dropped = 0
        self._waiting.append((serial, packed))
        self.bytes += len(packed)
        while self.bytes > self._limit_bytes and len(self._waiting) > 1:
            self.bytes -= len(self._waiting.popleft()[1])
            dropped += 1
        return dropped

    def first(self, most_bytes: int) -> tuple[int, list[bytes]]:
        """What goes into the next envelope: its serial and messages, which stay here until `sent` is told."""
        serial = self._waiting[0][0]
        chosen: list[bytes] = []
        size = 0
        for other, packed in self._waiting:
            size += len(packed)
            if other != serial or (chosen and size > most_bytes):
                break
            chosen.append(packed)
        return serial, chosen

    def sent(self, count: int) -> None:
        """So many messages from the beginning are on their way."""
        for _ in range(count):
            self.bytes -= len(self._waiting.popleft()[1])
