"""The broker's whole vocabulary: events that arrive (past tense) and commands it answers with (imperative).

What arrives in one wake-up travels as one event with a list, so that a batch costs one call.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import NOTHING, Amounts
from shoal.core.resources import Resources


class Cramped(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a task reads does not fit on the disks of some nodes."""

    need: int
    """Bytes of all that it reads."""
    tried: tuple[int, ...] = ()
    """Nodes that have no room for it."""
    most: int = 0
    """The most bytes that one of these could give it."""


class TaskResult(msgspec.Struct, frozen=True, gc=False):
    """How one attempt of one task ended."""

    task: int
    attempt: int
    outcome: AttemptOutcome
    duration: float = 0.0
    used: Amounts = NOTHING
    """What it used at most of each of `SIZED`; 0 where that is not known."""
    need: int = 0
    """Of an attempt without room: bytes of all that it reads."""
    room: int = 0
    """Likewise: the most that the node can have for it when nothing else runs there."""


class TasksReady(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The inputs of these tasks exist."""

    tasks: list[int]


class TasksEnded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The runner reports attempts that ended."""

    results: list[TaskResult]
    ready_follows: bool = False
    """If one of the results is accepted, a `TasksReady` follows at once, even an empty one: start nothing before it, so
    that an order which prefers the newest tasks sees the consumers of what has just been made."""


class TaskGrew(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A running task uses more of a resource than was expected of it; nobody has ended it for that."""

    task: int
    attempt: int
    amount: int
    """What it uses now."""
    total: int = 0
    """What all running tasks together use now; 0 if that is not known."""
    resource: str = "memory"
    """One of `SIZED`."""


class CancelRequested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The user does not want these tasks any more."""

    tasks: list[int]


class CapacityChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The node has another amount of resources from now on."""

    node: Resources


class CapsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The throttle allows so many places for the lanes under each of these caps from now on; what runs goes on."""

    caps: dict[str, int | None]
    """None: the cap does not limit."""


class DrainRequested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Start nothing more (disk full, the user's Ctrl-C, a failure with fail-fast); what runs may finish."""


class DrainEnded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Starting is allowed again."""


class TimePassed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The moment asked for with `WakeAt` has come."""


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
    """Run these tasks one after another in the place of one; most often it is one task.

    Several tasks form a bundle: so short that handing them over one by one would cost more than they do. A second
    `Start` with the same place adds to what waits there, or begins anew where nothing is left.
    """

    tasks: tuple[int, ...]
    attempts: tuple[int, ...]
    place: int = 0
    sizes: Amounts = NOTHING
    """What each of them is expected to use of each of `SIZED`, as learned; 0 where nothing was. More memory or disk
    than that is to be told with `TaskGrew`."""


class Accept(msgspec.Struct, frozen=True, tag=True, gc=False):
    """This attempt's result is the task's result; nothing else will be accepted for it."""

    task: int
    attempt: int


class Retry(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The attempt did not succeed; the task is tried again after `delay` seconds."""

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
    """Why there is no room for it anywhere."""


class Kill(msgspec.Struct, frozen=True, tag=True, gc=False):
    """End this attempt; it will be reported like any other end, with this outcome."""

    task: int
    attempt: int
    outcome: AttemptOutcome = AttemptOutcome.CANCELLED


class WakeAt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send `TimePassed` at this time; only the earliest one matters."""

    when: float


Command: TypeAlias = Start | Accept | Retry | GiveUp | Kill | WakeAt
