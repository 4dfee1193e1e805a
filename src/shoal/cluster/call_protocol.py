"""What a client and the farms of a cluster say to each other about Python calls.

On the wire there are five messages: a client asks any agent which farms there are, and each farm about calls; the
answers; and whoever comes after a client that was killed has its calls ended. Everything about calls travels as items
in a `CallStream` inside `CallsRequest` and `CallsReply`. Functions, arguments and results are pickled bytes, which are
opened only in workers and in the client's own program.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.execution.calls.messages import CallRequest, CallResult

PART_BYTES = 1024 * 1024
"""Larger items are cut."""
WINDOW_BYTES = 8 * 1024 * 1024
"""So much may be on its way without having been heard of."""
REPEAT_SECONDS = 3.0
LONGEST_REPEAT = 60.0
_AROUND = 16
"""What a part weighs beside its data."""


class StreamPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item, or a part of one that is not the last."""

    data: bytes
    more: bool = False


class CallStream:
    """Both directions, seen from one side."""

    def __init__(self) -> None:
        self.heard = 0
        """Everything up to this part has arrived here."""
        self._unsent: deque[StreamPart] = deque()
        self._sent: deque[StreamPart] = deque()
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
            self._unsent.append(StreamPart(item[at : at + PART_BYTES], at + PART_BYTES < len(item)))

    def next_run(self, now: float) -> tuple[int, list[StreamPart]]:
        """What may be sent now, about as much as one part may hold, and the number of the first; perhaps nothing."""
        first = self._first + len(self._sent)
        chosen: list[StreamPart] = []
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

    def take(self, first: int, parts: list[StreamPart]) -> list[bytes]:
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


UNKNOWN = -1
"""What a farm has heard of a client that it does not know, or not any more."""


class CallServersRequest(msgspec.Struct, frozen=True, tag=True):
    """Which agents are there?"""


class CallServersReply(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]


class CallsRequest(msgspec.Struct, frozen=True, tag=True):
    """A client to a farm; without parts it only says that it lives, and wants to hear the same."""

    client: str
    """Names one connection of one client, from `SessionOpened` to `SessionClosed`."""
    first: int
    parts: list[StreamPart]
    heard: int


class CallsReply(msgspec.Struct, frozen=True, tag=True):
    """A farm to a client."""

    client: str
    first: int
    parts: list[StreamPart]
    heard: int


class EndCallsCommand(msgspec.Struct, frozen=True, tag=True):
    """To a farm, of a client that is gone: the answer, that it is unknown, comes when nothing of it runs any more."""

    client: str
    """What the names of all its connections begin with, up to a dot."""


class CallsRefusedReply(msgspec.Struct, frozen=True, tag=True):
    """An agent's answer to what it does not do; on the wire the same as `shoal.cluster.agent.messages.RefusedReply`."""

    why: str


# ---- items from clients --------------------------------------------------------------------------------------------


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    """The first item: where the program is that makes the calls."""

    python: tuple[int, int]
    directory: str
    sys_path: list[str]


class FunctionGiven(msgspec.Struct, frozen=True, tag=True):
    number: int
    pickled: bytes


class FunctionDropped(msgspec.Struct, frozen=True, tag=True):
    number: int


class CallsGiven(msgspec.Struct, frozen=True, tag=True):
    """A bundle, to be run one after another in one worker, after what was given for the same place before."""

    place: int
    needs: Resources
    calls: list[CallRequest]


class CallCancelled(msgspec.Struct, frozen=True, tag=True):
    """Its result still follows."""

    task: int
    attempt: int


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """Nothing more is wanted, neither results."""


ToFarm: TypeAlias = SessionOpened | FunctionGiven | FunctionDropped | CallsGiven | CallCancelled | SessionClosed


# ---- items from farms ----------------------------------------------------------------------------------------------


class CallServerStatus(msgspec.Struct, frozen=True, tag=True):
    """What the farm has; comes first, and when it changes."""

    resources: Resources
    refusal: str = ""
    """Why it takes no calls of this client."""
    leaving: bool = False
    """It takes no more of them."""


class CallsEnded(msgspec.Struct, frozen=True, tag=True):
    results: list[CallResult]


FromFarm: TypeAlias = CallServerStatus | CallsEnded

encode_item = msgspec.msgpack.Encoder().encode
decode_to_farm = msgspec.msgpack.Decoder(ToFarm).decode
decode_from_farm = msgspec.msgpack.Decoder(FromFarm).decode


def client_of(connection: str) -> str:
    """Which client a connection is one of."""
    return connection.partition(".")[0]
