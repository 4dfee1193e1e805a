"""A broker under test: events by short names, what runs by task number, and the checker after every event."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.invariants import check_broker
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources
from shoal.core.scheduler import PASSED_OVER_LIMIT, Lane, Scheduler
from shoal.core.scheduler_messages import (
    CancelRequested,
    CapacityChanged,
    Command,
    DrainEnded,
    DrainRequested,
    Event,
    Start,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
)


def node(**amounts: str | int | float) -> Resources:
    """`node(cores=2, memory="1G")`."""
    return Resources.parse(amounts)


def lane(retries: int = 0, bundled: bool = False, **amounts: str | int | float) -> Lane:
    """One core unless something else is said."""
    return Lane(Resources.parse(amounts or {"cores": 1}), retries, bundled)


class BrokerCase:
    """`lane_of[t]` is the lane of task t; by default there is one lane of one-core tasks."""

    def __init__(
        self,
        has: Resources,
        lanes: Sequence[Lane] | None = None,
        lane_of: Sequence[int] | None = None,
        order: str = "fifo",
        patience: int = PASSED_OVER_LIMIT,
        rank: Sequence[int] = (),
    ) -> None:
        if not isinstance(lane_of, list):  # one that is handed in may grow later
            lane_of = list(lane_of) if lane_of is not None else [0] * 1000
        columns = TaskColumns(lane_of, rank)
        self.broker = Scheduler(has, columns, lanes or [lane()], order=order, patience=patience)
        self.now = 0.0
        self.places: list[int] = []

    def tell(self, event: Event) -> list[Command]:
        """What the broker answers; places, which only drivers care for, are in `places` and not in the commands."""
        commands = self.broker.handle(self.now, event)
        check_broker(self.broker)
        self.places += [command.place for command in commands if isinstance(command, Start)]
        return [Start(each.tasks, each.attempts) if isinstance(each, Start) else each for each in commands]

    def ready(self, *tasks: int) -> list[Command]:
        return self.tell(TasksReady(list(tasks)))

    def end(self, *tasks: int, outcome: AttemptOutcome = AttemptOutcome.OK, duration: float = 1.0) -> list[Command]:
        """The current attempts of these tasks end."""
        attempt = self.broker.attempt
        return self.tell(TasksEnded([TaskResult(task, attempt[task], outcome, duration) for task in tasks]))

    def late(self, task: int, attempt: int, outcome: AttemptOutcome = AttemptOutcome.OK) -> list[Command]:
        return self.tell(TasksEnded([TaskResult(task, attempt, outcome, 1.0)]))

    def cancel(self, *tasks: int) -> list[Command]:
        return self.tell(CancelRequested(list(tasks)))

    def resize(self, has: Resources) -> list[Command]:
        return self.tell(CapacityChanged(has))

    def drain(self) -> list[Command]:
        return self.tell(DrainRequested())

    def end_drain(self) -> list[Command]:
        return self.tell(DrainEnded())

    def pass_time(self, until: float) -> list[Command]:
        self.now = until
        return self.tell(TimePassed())

    @property
    def running(self) -> list[int]:
        return sorted(self.broker.running)


def started(commands: Sequence[Command]) -> list[int]:
    """The tasks that these commands start, in order."""
    return [task for command in commands if isinstance(command, Start) for task in command.tasks]
