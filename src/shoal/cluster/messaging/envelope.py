"""Wire frames: an envelope with some messages of one sender, as bytes, and a queue of packed messages. Pure.

A frame is a msgpack array `[version, cluster, sender, serial, messages]`. The first four fields keep their meaning and
position in all future versions, so that peers of different versions can at least report the difference; the messages
are decoded only after the version was checked. They are tagged structs of types that the user of this module lists.
Nothing else comes out of a frame: no code, no pickles, no classes chosen by the sender.

Roles and transport are outside this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from shoal.errors import ShoalError

VERSION = 1
"""Protocol version. It increases when a message changes its meaning or loses a field; added fields with defaults need
no new version."""

FRAME_LIMIT_BYTES = 16 * 1024 * 1024
HEADER_BYTES = 1024
"""Upper limit of everything in a frame except its messages."""

NAME_LENGTH = 200

M = TypeVar("M")
Name = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class BadFrame(ShoalError):  # noqa: N818  # the frame is bad, not the program
    """The bytes are not a valid frame, or a message does not fit into one."""


class OtherVersion(BadFrame):
    """The sender uses another version; only the header of its frame was decoded."""

    def __init__(self, version: int, serial: int) -> None:
        super().__init__(f"version {version}")
        self.version = version
        self.serial = serial


class Envelope(msgspec.Struct, Generic[M], frozen=True, array_like=True):
    """A decoded frame."""

    version: int
    cluster: str
    sender: str
    """The sender's name for itself, which is not authenticated."""
    serial: int
    """Number of the envelope at its sender; in a reply, that of the request."""
    messages: list[M]


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """A frame whose messages are not decoded yet."""

    version: Count
    cluster: Name
    sender: Name
    serial: Count
    messages: msgspec.Raw


class Codec(Generic[M]):
    """Encodes and decodes frames, for one set of message types."""

    def __init__(self, kind: object, *, version: int = VERSION, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        """`kind`: the union of the message types, which are tagged structs."""
        self.version = version
        self.limit_bytes = limit_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._header = msgspec.msgpack.Decoder(_Header)
        self._messages = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]  # known only at run time

    def packed(self, message: M) -> bytes:
        """Encodes one message for a frame; `BadFrame` if it is too large for any."""
        data = self._encoder.encode(message)
        if len(data) > self.limit_bytes - HEADER_BYTES:
            raise BadFrame(f"a message of {len(data)} bytes does not fit into a frame of {self.limit_bytes}")
        return data

    def frame(self, cluster: str, sender: str, serial: int, packed: Sequence[bytes]) -> bytes:
        """Makes a frame of packed messages; the caller keeps their sum within the limit."""
        raw = [msgspec.Raw(data) for data in packed]
        return self._encoder.encode(Envelope(self.version, cluster, sender, serial, raw))

    def encode(self, envelope: Envelope[M]) -> bytes:
        """Encodes an envelope, with the version that it states."""
        return self._encoder.encode(envelope)

    def decode(self, frame: bytes | memoryview) -> Envelope[M]:
        """Decodes a frame. Raises nothing but `BadFrame`, whatever the bytes are."""
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
    """A queue of packed messages, each with the serial of the envelope to which it belongs (0: any)."""

    __slots__ = ("_limit_bytes", "_waiting", "bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._limit_bytes = limit_bytes
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, packed: bytes, serial: int = 0) -> int:
        """Appends a message, which always stays; returns how many of the oldest were dropped to make room for it."""
        dropped = 0
        self._waiting.append((serial, packed))
        self.bytes += len(packed)
        while self.bytes > self._limit_bytes and len(self._waiting) > 1:
            self.bytes -= len(self._waiting.popleft()[1])
            dropped += 1
        return dropped

    def first(self, most_bytes: int) -> tuple[int, list[bytes]]:
        """Returns serial and messages of the next envelope; they stay here until `sent` is called."""
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
        """The first `count` messages were sent."""
        for _ in range(count):
            self.bytes -= len(self._waiting.popleft()[1])
