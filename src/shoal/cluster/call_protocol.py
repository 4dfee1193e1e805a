"""Protocol of Python calls between a client and the call servers of a cluster: messages and a reliable stream.

Five messages go over the wire: a client asks any agent for the list of call servers, and exchanges requests and replies
with each of them; `EndCallsCommand` ends the calls of a client that was killed. Everything about calls travels as items
in a `CallStream` inside `CallsRequest` and `CallsReply`, which repeats lost parts and keeps their order. Functions,
arguments and results are pickled bytes. Only workers and the client's own program unpickle them.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo
from shoal.execution.calls.messages import CallRequest, CallResult

PART_BYTES = 1024 * 1024
"""Maximum bytes of a part; larger items are split."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Maximum bytes in flight without confirmation."""
REPEAT_SECONDS = 3.0
LONGEST_REPEAT = 60.0
_AROUND = 16
"""Bytes of overhead of a part."""


class StreamPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item, or one part of an item; `more`: further parts follow."""

    data: bytes
    more: bool = False


class CallStream:
    """Both directions of a reliable, ordered stream of items, at one end."""

    def __init__(self) -> None:
        self.heard = 0
        """Number of the last part that has arrived here without a gap."""
        self._unsent: deque[StreamPart] = deque()
        self._sent: deque[StreamPart] = deque()
        """Parts that the other end has not confirmed."""
        self._first = 1
        """Number of the first part in `_sent`, or of the next one if that is empty."""
        self._on_the_way = 0
        self._pause = REPEAT_SECONDS
        self._repeat_at = 0.0
        self._pieces: list[bytes] = []
        self._unacknowledged = 0

    def put(self, item: bytes) -> None:
        """Queues an item for sending."""
        for at in range(0, len(item), PART_BYTES):
            self._unsent.append(StreamPart(item[at : at + PART_BYTES], at + PART_BYTES < len(item)))

    def next_run(self, now: float) -> tuple[int, list[StreamPart]]:
        """Returns the parts that may be sent now, about as much as one part may hold, and the number of the first; the
        list may be empty."""
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
        """Sends all parts again that stayed unconfirmed for a while; returns whether there are any."""
        if not self._sent or now < self._repeat_at:
            return False
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._on_the_way = 0
        self._pause = min(2 * self._pause, LONGEST_REPEAT)
        return True

    def confirm(self, heard: int, now: float) -> None:
        """The other end has received everything up to this part."""
        while self._first <= heard and (self._sent or self._unsent):
            if self._sent:
                self._on_the_way -= len(self._sent.popleft().data) + _AROUND
            else:  # the parts were about to be repeated
                self._unsent.popleft()
            self._first += 1
            self._pause = REPEAT_SECONDS
            self._repeat_at = now + REPEAT_SECONDS

    def take(self, first: int, parts: list[StreamPart]) -> list[bytes]:
        """Takes parts that have arrived; returns the items that are complete now."""
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

    def owes_confirmation(self) -> bool:
        """Whether a confirmation should be sent soon, so that the other end can continue."""
        return self._unacknowledged >= PART_BYTES

    def said(self) -> None:
        """Notes that a confirmation is being sent."""
        self._unacknowledged = 0


UNKNOWN = -1
"""The confirmation that a call server sends to a client that it does not know, or no longer knows."""


class CallServersRequest(msgspec.Struct, frozen=True, tag=True):
    """Requests the list of agents."""


class CallServersReply(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]


class CallsRequest(msgspec.Struct, frozen=True, tag=True):
    """From a client to a call server; without parts it is a heartbeat, and the reply is one, too."""

    client: str
    """Names one connection of one client, from `SessionOpened` to `SessionClosed`."""
    first: int
    parts: list[StreamPart]
    heard: int


class CallsReply(msgspec.Struct, frozen=True, tag=True):
    """From a call server to a client."""

    client: str
    first: int
    parts: list[StreamPart]
    heard: int


class EndCallsCommand(msgspec.Struct, frozen=True, tag=True):
    """Ends all calls of a client that is gone. The reply, that the client is unknown, comes when they have ended."""

    client: str
    """The common prefix of the names of the client's connections, up to a dot."""


class CallsRefusedReply(msgspec.Struct, frozen=True, tag=True):
    """An agent rejects a request; on the wire the same as `shoal.cluster.agent.messages.RefusedReply`."""

    why: str


# ---- items from clients --------------------------------------------------------------------------------------------


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    """The first item: the environment of the program that makes the calls."""

    python: tuple[int, int]
    directory: str
    sys_path: list[str]


class FunctionGiven(msgspec.Struct, frozen=True, tag=True):
    number: int
    pickled: bytes


class FunctionDropped(msgspec.Struct, frozen=True, tag=True):
    number: int


class CallsGiven(msgspec.Struct, frozen=True, tag=True):
    """A bundle: its calls run one after another in one worker, after earlier calls for the same place."""

    place: int
    needs: Resources
    calls: list[CallRequest]


class CallCancelled(msgspec.Struct, frozen=True, tag=True):
    """Cancels a call; its result still follows."""

    task: int
    attempt: int


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """The client wants nothing more, not even results."""


ClientItem: TypeAlias = SessionOpened | FunctionGiven | FunctionDropped | CallsGiven | CallCancelled | SessionClosed


# ---- items from call servers
# ---------------------------------------------------------------------------------------


class CallServerStatus(msgspec.Struct, frozen=True, tag=True):
    """The resources of the call server; sent first, and when they change."""

    resources: Resources
    refusal: str = ""
    """Why it takes no calls of this client."""
    leaving: bool = False
    """It takes no further calls."""


class CallsEnded(msgspec.Struct, frozen=True, tag=True):
    results: list[CallResult]


ServerItem: TypeAlias = CallServerStatus | CallsEnded

encode_item = msgspec.msgpack.Encoder().encode
decode_client_item = msgspec.msgpack.Decoder(ClientItem).decode
decode_server_item = msgspec.msgpack.Decoder(ServerItem).decode


def client_of(connection: str) -> str:
    """Returns the client to which a connection belongs."""
    return connection.partition(".")[0]
