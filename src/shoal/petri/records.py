"""What a flow tells and is told: tasks, the checkpoint, and the records from which a run can be repeated.

A record says what came from outside (`Put`, `Injected`, `Failed`, `Cancelled`, `Closed`, `Retried`) or what was handed
out (`Fired`, `Extracted`). Firings of steps are not recorded: guards and steps are pure and the choice is seeded, so a
flow that gets the same records at the same moments does the same. The moment is the number of looks that the flow had
taken at its steps and at its tasks (`steps`, `tasks`), two small numbers in every record. Between two records all looks
at steps come before all looks at tasks; `Stepped` is written where that would not hold otherwise.
Values are whatever the user's functions made; who writes the records pickles them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from shoal.errors import InputError
from shoal.petri.transition import Transition


class Moment(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of the records: how far the flow was."""

    steps: int
    tasks: int


class Put(Moment, frozen=True, tag=True):
    """Tokens came from outside."""

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
    """A task gave a result."""

    task: int
    result: Any


class Failed(Moment, frozen=True, tag=True):
    """A task failed for good."""

    task: int
    message: str


class Cancelled(Moment, frozen=True, tag=True):
    """A task was cancelled from outside; those that an eureka cancels follow from other records."""

    task: int


class Closed(Moment, frozen=True, tag=True):
    """No more tokens will come from outside."""


class Retried(Moment, frozen=True, tag=True):
    """What had failed or was set aside may be tried again."""


class Stepped(Moment, frozen=True, tag=True):
    """The bound of one call was reached and no task was found."""


Record: TypeAlias = Put | Fired | Extracted | Injected | Failed | Cancelled | Closed | Retried | Stepped


class Task(msgspec.Struct, frozen=True):
    """One task as it is handed out."""

    id: int
    attempt: int
    """The first is 1; only a result of the latest counts."""
    arguments: dict[str, Any]
    transition: Transition
    values: tuple[Any, ...]

    def command_line(self) -> str:
        """The command to run, for a task that was declared with `command=`."""
        command = self.transition.command
        assert command is not None, f"{self.transition.name} is no command"
        line = self.transition.rendered("the command", command, self.values)
        if not isinstance(line, str):
            raise InputError(
                f"net {self.transition.net!r}: the command of {self.transition.name!r} is {line!r}, not text"
            )
        return line


class Followed(msgspec.Struct, frozen=True):
    """What follows from a result."""

    ready: bool
    """Whether `next` has something to look at."""
    ignored: tuple[int, ...] = ()
    """Tasks that are not wanted any more: their results will be ignored."""
    message: str = ""
    """Why the result was not taken, if it was not."""


class UnhandledFailure(msgspec.Struct, frozen=True):
    """A task that failed for good and had no `on_error`."""

    task: int
    transition: str
    message: str


Trouble = UnhandledFailure
"""Its name in ledgers that Shoal 0.1.0 wrote before."""


class FlightState(msgspec.Struct, frozen=True):
    """A task under way, with the tokens it was fired with, in the order of its ports."""

    task: int
    transition: str
    attempt: int
    values: tuple[Any, ...]


class NetState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run needs to go on as if nothing had happened: the marking and what is under way."""

    net: str
    marking: dict[str, list[tuple[int, Any, str]]]
    """Of each place, oldest first: serial number (0 on plain queues), value, the transition it is barred from or ''."""
    flights: list[FlightState]
    set_aside: dict[str, str]
    """Transitions whose guard or function raised, each with a sentence."""
    failures: list[UnhandledFailure]
    fired_once: list[str]
    closed_groups: list[str]
    closed: bool
    result: tuple[Any, ...]
    """The answer of the net, or empty."""
    agenda: list[str]
    """Transitions to be looked at, in order."""
    steps: int
    tasks: int
    next_task: int
    serial: int
    seed: int | None
    dice: int

    def counts(self) -> dict[str, int]:
        """Tokens on each place, without those that tasks have taken."""
        return {name: len(tokens) for name, tokens in self.marking.items()}
