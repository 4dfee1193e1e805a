"""The interface of node starters (local, ssh, slurm), and their common types: handles, phases and results.

A starter keeps no durable state in memory: everything needed to query a node and to end it is in its handle, which is
written to a file as JSON. So a later process continues where an earlier one ended. `shoal.cluster.nodes.factory`
decides how many nodes there should be.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from shoal.errors import InputError, ShoalError

NODE_NAME = "SHOAL_NODE"
"""Environment variable with the name in the agent's handle, which connects the agent to its handle."""


class NotAnsweringError(ShoalError):
    """The batch system or a host does not reply: nothing is known, and nothing may be concluded from that."""


class LocalHandle(msgspec.Struct, frozen=True, tag="local"):
    """A process on this machine, identified by more than its pid, since pids are reused."""

    name: str
    pid: int
    ticks: int
    """Start time of the process, in clock ticks after boot."""
    boot: str
    """The boot id of the machine."""
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
    """A Slurm job, or one element of an array (`123_4`)."""

    name: str
    job: str
    log: str


Handle = LocalHandle | SshHandle | SlurmHandle


class NodePhase(Enum):
    """The phase of a node's life, as reported by its starter."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class NodeStatus(msgspec.Struct, frozen=True):
    """The state of a node: its phase, the reason as text, and the end of its allocation."""

    phase: NodePhase
    reason: str = ""
    ends_at: float | None = None
    is_ending: bool = False
    """The node is ending, and takes no further tasks."""


class RemoteSetup(msgspec.Struct, frozen=True):
    """How nodes are run on one host, where paths may differ from this machine."""

    command: list[str]
    environment: dict[str, str]
    logs: str
    access: str
    """Path of the access file."""


class StartResult(msgspec.Struct, frozen=True):
    """The nodes that were started, and a message for each problem."""

    handles: tuple[Handle, ...] = ()
    problems: tuple[str, ...] = ()


class Starter(Protocol):
    """Starts and ends nodes of one kind."""

    def start(self, count: int, beside: Iterable[Handle] = ()) -> StartResult:
        """Starts up to `count` nodes; `beside`: existing nodes, for starters with a limited number of places."""

    def poll(self, handles: Iterable[Handle]) -> dict[Handle, NodeStatus]:
        """Returns the status of nodes, with one query for all; raises NotAnsweringError if there is no reply."""

    def stop(self, handles: Iterable[Handle]) -> None:
        """Asks nodes to end and ensures that they do; ignores those that have ended."""


def new_names(count: int) -> list[str]:
    """Returns names that no other node has had."""
    stem = uuid.uuid4().hex[:12]
    return [f"{stem}-{number}" for number in range(count)]


def encode_handles(handles: Sequence[Handle]) -> bytes:
    return msgspec.json.encode(handles)


def decode_handles(data: bytes, file: str | None = None) -> list[Handle]:
    """Decodes the handles that `encode_handles` wrote."""
    try:
        return msgspec.json.decode(data, type=list[Handle])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError("the list of started nodes cannot be read", file=file, remedy="it is damaged") from None
