"""Simulated workers for the GSPC schedulers: virtual time, random durations and failures, lost machines.

The pool executes commands as real workers would, and replies to every `SubmitTaskCommand` once. Meanwhile it checks
that no task runs on units that another task still uses. Real workers are in `shoal.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

import msgspec

from shoal.resources.composed_scheduler import ComposedScheduler
from shoal.resources.scheduler_interface import (
    CancelAttemptCommand,
    Command,
    EndingFlow,
    Event,
    FailedEvent,
    FinishedEvent,
    LookEvent,
    ManagerEvents,
    StoppedEvent,
    SubmitTaskCommand,
)

ENDING_SECONDS = 0.01
"""Seconds that a cancelled task takes to end."""


class AttemptLog(msgspec.Struct, frozen=True):
    """Record of one attempt."""

    task: int
    name: str
    attempt: int
    location: str
    nodes: tuple[str, ...]
    way: str
    began: float
    ended: float
    outcome: str
    """`done`, `failed` or `stopped`."""


class MachineLoss(msgspec.Struct, frozen=True):
    """A machine that is lost at a given time."""

    at: float
    machine: str
    location: str = ""


class _UnderWay:
    __slots__ = ("began", "is_broken", "paths", "submit")

    def __init__(self, submit: SubmitTaskCommand, began: float) -> None:
        self.submit, self.began = submit, began
        self.is_broken = False
        """Whether one of its machines is lost, so that no result can arrive any more."""
        self.paths = [(submit.location, path) for place in submit.grant.places for path in place.units]


class Pool:
    """Drives one scheduler until it has nothing more to do."""

    def __init__(
        self,
        scheduler: ComposedScheduler,
        seed: int = 0,
        *,
        seconds: Callable[[SubmitTaskCommand], float] | None = None,
        gives: Callable[[SubmitTaskCommand], object] | None = None,
        failing: float = 0.0,
        losses: Sequence[MachineLoss] = (),
    ) -> None:
        """`seconds` returns the duration of a task, `gives` its return value; `failing` is the probability that an
        attempt fails."""
        self.scheduler = scheduler
        self._ending = scheduler.flow if isinstance(scheduler.flow, EndingFlow) else None
        self.now = 0.0
        self.ran: list[AttemptLog] = []
        self.most_waiting = 0
        self._dice = Random(seed)
        self._seconds = seconds or (lambda submit: self._dice.uniform(0.1, 2.0))
        self._gives = gives or (lambda submit: None)
        self._failing = failing
        self._queue: list[tuple[float, int, Event | MachineLoss]] = []
        self._serial = 0
        self._under_way: dict[tuple[int, int], _UnderWay] = {}
        self._used: dict[tuple[str, str], int] = {}
        """Paths of units in use, with the task that uses each."""
        for loss in losses:
            self._post(loss.at, loss)

    def run(self) -> float:
        """Runs until no events are left; returns the time of the last one."""
        last = 0.0
        self._handle(LookEvent())
        while self._queue:
            self.now, _, event = heappop(self._queue)
            if isinstance(event, MachineLoss):
                self._lose(event)
            elif self._end(event):
                last = self.now
                self._handle(event)
        return last

    def _post(self, at: float, event: Event | MachineLoss) -> None:
        self._serial += 1
        heappush(self._queue, (at, self._serial, event))

    def _handle(self, event: Event) -> None:
        self._perform(self.scheduler.handle(event))
        while self.scheduler.is_hungry or (
            self.scheduler.is_idle and self._ending is not None and self._ending.is_busy
        ):
            self._perform(self.scheduler.handle(LookEvent()))
        self.most_waiting = max(self.most_waiting, self.scheduler.waiting)

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case SubmitTaskCommand():
                    self._begin(command)
                case CancelAttemptCommand():
                    self._post(self.now + ENDING_SECONDS, StoppedEvent(command.task, command.attempt))
                case ManagerEvents():
                    raise AssertionError("unexpected events: no other scheduler shares these resource managers")

    def _begin(self, submit: SubmitTaskCommand) -> None:
        number, attempt = submit.task.id, submit.task.attempt
        found = _UnderWay(submit, self.now)
        for location, path in found.paths:
            self._check_free(location, path, number)
        self._used.update(dict.fromkeys(found.paths, number))
        self._under_way[number, attempt] = found
        seconds = self._seconds(submit)
        fails = self._dice.random() < self._failing
        end: Event = (
            FailedEvent(number, attempt, "it failed by chance")
            if fails
            else FinishedEvent(number, attempt, self._gives(submit), seconds)
        )
        self._post(self.now + seconds, end)

    def _check_free(self, location: str, path: str, number: int) -> None:
        """Checks that no unit on this path, above or below it is in use."""
        for (where, other), user in self._used.items():
            overlaps = other == path or other.startswith(f"{path}/") or path.startswith(f"{other}/")
            assert where != location or not overlaps, f"task {number} gets {path} while {user} uses {other}"

    def _end(self, event: Event) -> bool:
        """Ends the attempt of this event; returns whether it was running."""
        assert isinstance(event, (FinishedEvent, FailedEvent, StoppedEvent))
        key = event.task, event.attempt
        found = self._under_way.get(key)
        if found is None or (found.is_broken and not isinstance(event, StoppedEvent)):
            return False
        del self._under_way[key]
        for path in found.paths:
            self._used.pop(path, None)
        outcome = {FinishedEvent: "done", FailedEvent: "failed", StoppedEvent: "stopped"}[type(event)]
        submit = found.submit
        nodes, name = tuple(submit.grant.nodes()), submit.task.transition.name
        times = found.began, self.now
        self.ran.append(
            AttemptLog(event.task, name, event.attempt, submit.location, nodes, submit.way, *times, outcome)
        )
        return True

    def _lose(self, loss: MachineLoss) -> None:
        """Loses a machine and everything that runs on it."""
        for where, path in list(self._used):
            if where == loss.location and path.partition("/")[0] == loss.machine:
                del self._used[where, path]
        for found in self._under_way.values():
            if found.submit.location == loss.location and loss.machine in found.submit.grant.nodes():
                found.is_broken = True
        happenings = self.scheduler.stewards[loss.location].remove(loss.machine)
        self._handle(ManagerEvents(loss.location, tuple(happenings)))
