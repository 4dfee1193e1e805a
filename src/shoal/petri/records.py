"""Data exchanged with a running net: tasks, checkpoints, and the records from which a run can be replayed.

A record describes an input from outside (`Put`, `Injected`, `Failed`, `Cancelled`, `Closed`, `Retried`) or what was
handed out (`Fired`, `Extracted`). Firings of steps are not recorded: guards and steps are pure and choices are seeded,
so a flow that gets the same records at the same moments behaves identically. The moment is the number of steps and
tasks that the flow had examined (`steps`, `tasks`), two small numbers in every record. Between two records all steps
are examined before all tasks; `Stepped` is written where that would not hold otherwise. Values are arbitrary Python
objects; the writer of the records pickles them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from shoal.errors import InputError
from shoal.petri.transition import Transition


class Moment(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of the records: the position of the flow."""

    steps: int
    tasks: int


class Put(Moment, frozen=True, tag=True):
    """Tokens from outside were put on a place."""

    place: str
    values: tuple[Any, ...]


class Fired(Moment, frozen=True, tag=True):
    """A task took its tokens."""

    task: int
    transition: str


class Extracted(Moment, frozen=True, tag=True):
    """An attempt of a task was handed out."""

    task: int
    attempt: int


class Injected(Moment, frozen=True, tag=True):
    """A task returned a result."""

    task: int
    result: Any


class Failed(Moment, frozen=True, tag=True):
    """A task failed for good."""

    task: int
    message: str


class Cancelled(Moment, frozen=True, tag=True):
    """A task was cancelled from outside; cancellations by an eureka follow from other records."""

    task: int


class Closed(Moment, frozen=True, tag=True):
    """No more tokens will come from outside."""


class Retried(Moment, frozen=True, tag=True):
    """Failed tasks and disabled transitions may be tried again."""


class Stepped(Moment, frozen=True, tag=True):
    """A call of `next` reached its limit without finding a task."""


Record: TypeAlias = Put | Fired | Extracted | Injected | Failed | Cancelled | Closed | Retried | Stepped


class Task(msgspec.Struct, frozen=True):
    """One task to run."""

    id: int
    attempt: int
    """The first is 1; only results of the latest attempt count."""
    arguments: dict[str, Any]
    transition: Transition
    values: tuple[Any, ...]

    def command_line(self) -> str:
        """The command to run, for a task that was declared with `command=`."""
        command = self.transition.command
        assert command is not None, f"{self.transition.name} has no command"
        line = self.transition.rendered("the command", command, self.values)
        if not isinstance(line, str):
            raise InputError(
                f"net {self.transition.net!r}: the command of {self.transition.name!r} is {line!r}, not text"
            )
        return line


class Followed(msgspec.Struct, frozen=True):
    """Consequences of a result."""

    ready: bool
    """Whether `next` has something to examine."""
    ignored: tuple[int, ...] = ()
    """Cancelled tasks: their results will be ignored."""
    message: str = ""
    """Why the result was rejected; empty if it was accepted."""


class UnhandledFailure(msgspec.Struct, frozen=True):
    """A task that failed for good and had no `on_error`."""

    task: int
    transition: str
    message: str


Trouble = UnhandledFailure
"""Its name in ledgers that Shoal 0.1.0 wrote before."""


class FlightState(msgspec.Struct, frozen=True):
    """A running task, with its input tokens in the order of its ports."""

    task: int
    transition: str
    attempt: int
    values: tuple[Any, ...]


class NetState(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: everything needed to continue a run exactly, the marking and the running tasks."""

    net: str
    marking: dict[str, list[tuple[int, Any, str]]]
    """By place, oldest first: serial number (0 on plain queues), value, and the barred transition or ''."""
    flights: list[FlightState]
    set_aside: dict[str, str]
    """Disabled transitions whose guard or function raised an exception, each with a sentence."""
    failures: list[UnhandledFailure]
    fired_once: list[str]
    closed_groups: list[str]
    closed: bool
    result: tuple[Any, ...]
    """The result of the net, or empty."""
    agenda: list[str]
    """Transitions to examine, in order."""
    steps: int
    tasks: int
    next_task: int
    serial: int
    seed: int | None
    dice: int

    def counts(self) -> dict[str, int]:
        """Number of tokens on each place, without those that tasks have taken."""
        return {name: len(tokens) for name, tokens in self.marking.items()}
