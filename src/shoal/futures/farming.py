"""What a client and the farms of a cluster say to each other about Python calls.

On the wire there are five messages: a client asks any agent which farms there are, and each farm about calls; the
answers; and whoever comes after a client that was killed has its calls ended. Everything about calls travels as items
in a `Stream` inside `CallsAsked` and `CallsTold`. Functions, arguments and results are pickled bytes, which are opened
only in workers and in the client's own program.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.futures.stream import Part
from shoal.model.resources import Resources
from shoal.runner.call_errors import CallCancelledError, CallError, pickled
from shoal.runner.call_messages import CallRequest, CallResult, Outcome
from shoal.store.directory import NodeInfo

UNKNOWN = -1
"""What a farm has heard of a client that it does not know, or not any more."""


class FarmsAsked(msgspec.Struct, frozen=True, tag=True):
    """Which agents are there?"""


class FarmsTold(msgspec.Struct, frozen=True, tag=True):
    nodes: dict[int, NodeInfo]


class CallsAsked(msgspec.Struct, frozen=True, tag=True):
    """A client to a farm; without parts it only says that it lives, and wants to hear the same."""

    client: str
    """Names one connection of one client, from `Opening` to `Closing`."""
    first: int
    parts: list[Part]
    heard: int


class CallsTold(msgspec.Struct, frozen=True, tag=True):
    """A farm to a client."""

    client: str
    first: int
    parts: list[Part]
    heard: int


class CallsUnwanted(msgspec.Struct, frozen=True, tag=True):
    """To a farm, of a client that is gone: the answer, that it is unknown, comes when nothing of it runs any more."""

    client: str
    """What the names of all its connections begin with, up to a dot."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An agent's answer to what it does not do; on the wire the same as `shoal.agent.messages.Refused`."""

    why: str


# ---- items from clients --------------------------------------------------------------------------------------------


class Opening(msgspec.Struct, frozen=True, tag=True):
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


class Closing(msgspec.Struct, frozen=True, tag=True):
    """Nothing more is wanted, neither results."""


ToFarm: TypeAlias = Opening | FunctionGiven | FunctionDropped | CallsGiven | CallCancelled | Closing


# ---- items from farms ----------------------------------------------------------------------------------------------


class FarmTold(msgspec.Struct, frozen=True, tag=True):
    """What the farm has; comes first, and when it changes."""

    resources: Resources
    refusal: str = ""
    """Why it takes no calls of this client."""
    leaving: bool = False
    """It takes no more of them."""


class CallsEnded(msgspec.Struct, frozen=True, tag=True):
    results: list[CallResult]


FromFarm: TypeAlias = FarmTold | CallsEnded

encode_item = msgspec.msgpack.Encoder().encode
decode_to_farm = msgspec.msgpack.Decoder(ToFarm).decode
decode_from_farm = msgspec.msgpack.Decoder(FromFarm).decode


def client_of(connection: str) -> str:
    """Which client a connection is one of."""
    return connection.partition(".")[0]


def not_run(task: int, attempt: int, error: CallError) -> CallResult:
    """The result of an attempt that no worker got."""
    outcome: Outcome = "cancelled" if isinstance(error, CallCancelledError) else "error"
    return CallResult(task, attempt, outcome, b"", pickled(error), str(error), 0.0, 0.0, 0.0, 0.0, 0, b"")


def lost(task: int, attempt: int, when: float) -> CallResult:
    """The result of an attempt of which nothing more will be heard; `when` is 0 if it was certainly not begun."""
    return CallResult(task, attempt, "lost", b"", None, "", when, when, 0.0, 0.0, 0, b"")
