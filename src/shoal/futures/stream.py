"""Items between a client and the farm of an agent: whole, in order and each once, over a line that may lose messages.

Items are cut into parts that fit a frame. Parts are numbered. The other side says up to which number it has heard
everything; what it has not heard of after a while is sent again, and what comes twice or out of order is dropped. Only
so many bytes are on their way at a time, because an agent's post keeps no more than that for a receiver that is slow.
Time is an argument. What the items are is not known here, and neither is how parts travel.
"""

from __future__ import annotations

from collections import deque

import msgspec

PART_BYTES = 1024 * 1024
"""Larger items are cut."""
WINDOW_BYTES = 8 * 1024 * 1024
"""So much may be on its way without having been heard of."""
REPEAT_SECONDS = 3.0
LONGEST_REPEAT = 60.0
_AROUND = 16
"""What a part weighs beside its data."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item, or a part of one that is not the last."""

    data: bytes
    more: bool = False


class Stream:
    """Both directions, seen from one side."""

    def __init__(self) -> None:
        self.heard = 0
        """Everything up to this part has arrived here."""
        self._unsent: deque[Part] = deque()
        self._sent: deque[Part] = deque()
        """Parts that the other side has not said to have heard."""
        self._first = 1
        """Number of the first part in `_sent`, or of the next one if that is empty."""
        self._on_the_way = 0
        self._pause = REPEAT_SECONDS
        self._repeat_at = 0.0
        self._pieces: list[bytes] = []
        self._unacknowledged = 0

    def put(self, item: bytes) -> None:
        """Something to be sent."""
        for at in range(0, len(item), PART_BYTES):
            self._unsent.append(Part(item[at : at + PART_BYTES], at + PART_BYTES < len(item)))

    def next_run(self, now: float) -> tuple[int, list[Part]]:
        """What may be sent now, about as much as one part may hold, and the number of the first; perhaps nothing."""
        first = self._first + len(self._sent)
        chosen: list[Part] = []
        size = 0
        while self._unsent and self._on_the_way < WINDOW_BYTES:
            weight = len(self._unsent[0].data) + _AROUND
            if chosen and size + weight > PART_BYTES:
                break
            part = self._unsent.popleft()
            chosen.append(part)
            size += weight
            self._on_the_way += weight
        if chosen:
            if not self._sent:
                self._repeat_at = now + self._pause
            self._sent.extend(chosen)
        return first, chosen

    def repeat(self, now: float) -> bool:
        """Sends everything again that was not heard of for a while; whether there is such a thing."""
        if not self._sent or now < self._repeat_at:
            return False
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._on_the_way = 0
        self._pause = min(2 * self._pause, LONGEST_REPEAT)
        return True

    def confirm(self, heard: int, now: float) -> None:
        """The other side has heard everything up to this part."""
        while self._first <= heard and (self._sent or self._unsent):
            if self._sent:
                self._on_the_way -= len(self._sent.popleft().data) + _AROUND
            else:  # it was about to be repeated
                self._unsent.popleft()
            self._first += 1
            self._pause = REPEAT_SECONDS
            self._repeat_at = now + REPEAT_SECONDS

    def take(self, first: int, parts: list[Part]) -> list[bytes]:
        """Parts have arrived: the items that are whole now."""
        items = []
        for number, part in enumerate(parts, first):
            if number != self.heard + 1:
                continue
            self.heard = number
            self._unacknowledged += len(part.data) + _AROUND
            self._pieces.append(part.data)
            if not part.more:
                items.append(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))
                self._pieces = []
        return items

    def owes_word(self) -> bool:
        """Whether the other side should be told soon what we have heard, so that it can go on."""
        return self._unacknowledged >= PART_BYTES

    def said(self) -> None:
        """The other side is being told what we have heard."""
        self._unacknowledged = 0
