"""What waits to be sent to one receiver: bounded, the oldest is dropped first. Pure.

All that goes over the wire may be lost, and whoever needs an answer asks again. So for a receiver that is away the
newest messages are worth keeping and the old ones are not.
"""

from __future__ import annotations

from collections import deque


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
