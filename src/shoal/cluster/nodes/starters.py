"""What all ways of starting nodes have in common: handles, phases, and what `local`, `ssh` and `slurm` promise.

A starter keeps nothing in memory that matters: everything needed to ask for a node and to end it is in its handle,
which goes to a file as JSON. So a later process goes on where an earlier one was ended. Which nodes there should be is
for `shoal.cluster.nodes.factory` to decide.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from shoal.errors import InputError, ShoalError

NODE_NAME = "SHOAL_NODE"
"""The environment variable that tells an agent the name in its handle, so that the two are known to belong together."""


class NotAnsweringError(ShoalError):
    """The batch system or a host does not answer now: nothing is known, and nothing may be concluded from that."""


class LocalHandle(msgspec.Struct, frozen=True, tag="local"):
    """A process on this machine; the pid alone would not do, since pids are used again."""

    name: str
    pid: int
    ticks: int
    """When the process was started, in clock ticks after boot."""
    boot: str
    """Which boot of the machine that was."""
    log: str


class SshHandle(msgspec.Struct, frozen=True, tag="ssh"):
    """A process on another machine."""

    name: str
    host: str
    pid: int
    ticks: int
    boot: str
    log: str


class SlurmHandle(msgspec.Struct, frozen=True, tag="slurm"):
    """A job of Slurm, or one element of an array (`123_4`)."""

    name: str
    job: str
    log: str


Handle = LocalHandle | SshHandle | SlurmHandle


class NodePhase(Enum):
    """Where a node is in its life, as far as whoever started it can tell."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class NodeStatus(msgspec.Struct, frozen=True):
    """What is known of a node: its phase, why that is so in words, and when its allocation ends."""

    phase: NodePhase
    reason: str = ""
    ends_at: float | None = None
    is_ending: bool = False
    """It runs no longer than it takes to end: nothing may be expected of it."""


class RemoteSetup(msgspec.Struct, frozen=True):
    """How nodes are run on one host, where it may be otherwise than here."""

    command: list[str]
    environment: dict[str, str]
    logs: str
    access: str
    """Where the access file is."""


class StartResult(msgspec.Struct, frozen=True):
    """What came of starting: the nodes that were started, and a sentence for each thing that stood in the way."""

    handles: tuple[Handle, ...] = ()
    problems: tuple[str, ...] = ()


class Starter(Protocol):
    """One way of getting nodes."""

    def start(self, count: int, beside: Iterable[Handle] = ()) -> StartResult:
        """Starts up to `count` nodes; `beside` are those that there are, where places are counted."""

    def poll(self, handles: Iterable[Handle]) -> dict[Handle, NodeStatus]:
        """How nodes stand, with one question for all of them; raises NotAnsweringError if nothing can be said."""

    def stop(self, handles: Iterable[Handle]) -> None:
        """Asks nodes to end and sees to it that they do; those that have ended are passed over."""


def new_names(count: int) -> list[str]:
    """Names that no other node has had."""
    stem = uuid.uuid4().hex[:12]
    return [f"{stem}-{number}" for number in range(count)]


def encode_handles(handles: Sequence[Handle]) -> bytes:
    return msgspec.json.encode(handles)


def decode_handles(data: bytes, file: str | None = None) -> list[Handle]:
    """The handles that `encode_handles` wrote."""
    try:
        return msgspec.json.decode(data, type=list[Handle])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError("the list of started nodes cannot be read", file=file, remedy="it is damaged") from None
