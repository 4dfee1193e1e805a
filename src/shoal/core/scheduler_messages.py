"""Events and commands of the scheduler: events are named in the past tense, commands in the imperative.

All results of one wake-up arrive as one event with a list, so that a batch costs one call.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import NOTHING, Amounts
from shoal.core.resources import Resources


class Cramped(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The inputs of a task do not fit on the disks of some nodes."""

    need: int
    """Total size of the inputs in bytes."""
    tried: tuple[int, ...] = ()
    """Nodes that have no room for the inputs."""
    most: int = 0
    """The largest number of bytes that one of these nodes could provide."""


class TaskResult(msgspec.Struct, frozen=True, gc=False):
    """How one attempt of one task ended."""

    task: int
    attempt: int
    outcome: AttemptOutcome
    duration: float = 0.0
    used: Amounts = NOTHING
    """Peak use of each resource in `SIZED`; 0 where it is not known."""
    need: int = 0
    """Outcome `NO_ROOM` only: total size of the inputs in bytes."""
    room: int = 0
    """Outcome `NO_ROOM` only: bytes that the node could provide when nothing else runs there."""


class TasksReady(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The inputs of these tasks exist."""

    tasks: list[int]


class TasksEnded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The runner reports attempts that ended."""

    results: list[TaskResult]
    ready_follows: bool = False
    """If a result is accepted, a `TasksReady` event follows immediately, even an empty one. Nothing starts before it,
    so that an order which prefers the newest tasks sees the consumers of these results."""


class TaskGrew(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A running task uses more of a resource than was reserved for it; it has not been killed."""

    task: int
    attempt: int
    amount: int
    """Current use of the task."""
    total: int = 0
    """Current use of all running tasks together; 0 if unknown."""
    resource: str = "memory"
    """One of `SIZED`."""


class CancelRequested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The user cancels these tasks."""

    tasks: list[int]


class CapacityChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The total resources of the node have changed."""

    node: Resources


class CapsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """New limits of the throttle: places for the lanes under each cap. Running tasks continue."""

    caps: dict[str, int | None]
    """None: no limit."""


class DrainRequested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Start nothing more (disk full, Ctrl-C, a failure with fail-fast); running tasks may finish."""


class DrainEnded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tasks may start again."""


class TimePassed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The time requested with `WakeAt` has come."""


Event: TypeAlias = (
    TasksReady
    | TasksEnded
    | TaskGrew
    | CancelRequested
    | CapacityChanged
    | CapsChanged
    | DrainRequested
    | DrainEnded
    | TimePassed
)


class Start(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run these tasks one after another in one place (a worker); usually it is one task.

    Several tasks form a bundle: they are so short that starting them one by one would cost more than running them. A
    second `Start` with the same place adds tasks to the bundle there, or begins a new bundle if none is left.
    """

    tasks: tuple[int, ...]
    attempts: tuple[int, ...]
    place: int = 0
    sizes: Amounts = NOTHING
    """Learned size of each resource in `SIZED` for each task; 0 where none was learned. The runner reports use of
    memory or disk above that size with `TaskGrew`."""


class Accept(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The result of this attempt is the result of the task; no other result of the task will be accepted."""

    task: int
    attempt: int


class Retry(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The attempt was not successful; the task is repeated after `delay` seconds."""

    task: int
    attempt: int
    outcome: AttemptOutcome
    delay: float


class GiveUp(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The task is over without a result."""

    task: int
    attempt: int
    """0 when it never ran."""
    outcome: AttemptOutcome
    cramped: Cramped | None = None
    """Why no node has room for the inputs."""


class Kill(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Kill this attempt; its end is reported like any other, with this outcome."""

    task: int
    attempt: int
    outcome: AttemptOutcome = AttemptOutcome.CANCELLED


class WakeAt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send `TimePassed` at this time; only the earliest request matters."""

    when: float


Command: TypeAlias = Start | Accept | Retry | GiveUp | Kill | WakeAt
