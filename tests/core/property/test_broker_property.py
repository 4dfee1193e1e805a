"""The scheduler under random sequences of driver events, with every invariant checked after each event."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.core.invariants import check_broker
from shoal.core.policies.order import ORDERS, TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.scheduler import Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    CapsChanged,
    Command,
    DrainEnded,
    DrainRequested,
    Event,
    GiveUp,
    Start,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
    WakeAt,
)
from support.case import lane, node

TASKS = 40
LANES = [lane(retries=2), lane(cores=2, retries=0), lane(cores=1, gpus=1, retries=1), lane(retries=1, bundled=True)]
SIZES = [node(cores=2, gpus=1), node(cores=4, gpus=1), node(cores=1), node(cores=3, gpus=2), node()]
CAPS = ["a", "a", "", "b"]
"""Of each lane; the first two share one."""
BAD = [
    AttemptOutcome.FAILED,
    AttemptOutcome.CRASHED,
    AttemptOutcome.TIMEOUT,
    AttemptOutcome.LOST,
    AttemptOutcome.UNBEGUN,
    AttemptOutcome.CANCELLED,
]


class BrokerMachine(RuleBasedStateMachine):
    """Knows which attempts run and which tasks are over, from the commands alone."""

    @initialize(order=st.sampled_from(sorted(ORDERS)), patience=st.integers(1, 6), random=st.integers(0, 3))
    def begin(self, order: str, patience: int, random: int) -> None:
        columns = TaskColumns(
            [task % len(LANES) for task in range(TASKS)],
            [task % 5 for task in range(TASKS)],
            [task * 7 % 11 for task in range(TASKS)],
            [float(task * 5 % 13) for task in range(TASKS)],
        )
        lanes = [lane(each.retries, each.bundled) for each in LANES]
        for mine, each, cap in zip(lanes, LANES, CAPS, strict=True):
            mine.resources, mine.cap = each.resources, cap
        self.broker = Scheduler(SIZES[0], columns, lanes, order=order, seed=random, patience=patience)
        self.now = 0.0
        self.arrived = 0
        self.running: dict[int, int] = {}
        self.caps: dict[str, int | None] = {}
        self.place_of: dict[int, int] = {}
        self.ended: list[TaskResult] = []
        self.over: dict[int, str] = {}
        self.wake: float | None = None

    def tell(self, event: Event) -> None:
        self.perform(self.broker.handle(self.now, event))

    def perform(self, commands: list[Command]) -> None:
        self.wake = None
        for command in commands:
            match command:
                case Start(tasks, attempts, place):
                    self.check_cap(tasks[0], place)
                    self.place_of.update(dict.fromkeys(tasks, place))
                    for task, attempt in zip(tasks, attempts, strict=True):
                        assert task not in self.running and task not in self.over
                        self.running[task] = attempt
                case Accept(task) | GiveUp(task):
                    assert task not in self.over, "a task is over once"
                    self.over[task] = type(command).__name__
                case WakeAt(when):
                    self.wake = when

    def check_cap(self, task: int, place: int) -> None:
        """A place that is begun is one of those that the cap allows."""
        name = CAPS[task % len(LANES)]
        cap = self.caps.get(name) if name else None
        if cap is not None:
            places = {self.place_of[other] for other in self.running if CAPS[other % len(LANES)] == name}
            assert len(places | {place}) <= cap, f"{len(places)} places and another under a cap of {cap}"

    @rule(caps=st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers(0, 3), min_size=1))
    def caps_change(self, caps: dict[str, int | None]) -> None:
        before = dict(self.running)
        self.caps.update(caps)
        self.tell(CapsChanged(caps))
        assert before.items() <= self.running.items(), "something was ended for a cap"

    @precondition(lambda self: self.arrived < TASKS)
    @rule(count=st.integers(1, 6))
    def tasks_become_ready(self, count: int) -> None:
        tasks = list(range(self.arrived, min(TASKS, self.arrived + count)))
        self.arrived += len(tasks)
        self.tell(TasksReady(tasks))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), follows=st.booleans())
    def attempts_end(self, data: st.DataObject, follows: bool) -> None:
        tasks = data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, max_size=4, unique=True))
        results = []
        for task in tasks:
            outcome = AttemptOutcome.OK if data.draw(st.booleans()) else data.draw(st.sampled_from(BAD))
            results.append(TaskResult(task, self.running.pop(task), outcome, 0.0005))
        self.ended += results
        self.tell(TasksEnded(results, follows))
        if follows and self.broker.awaiting_ready:
            self.tell(TasksReady([]))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def old_news_arrives(self, data: st.DataObject) -> None:
        result = data.draw(st.sampled_from(self.ended))
        before = dict(self.running)
        self.tell(TasksEnded([TaskResult(result.task, result.attempt, AttemptOutcome.OK, 1.0)]))
        assert self.running == before, "a fenced result started or ended something"

    @rule(task=st.integers(0, TASKS - 1), another=st.integers(0, TASKS - 1))
    def user_cancels(self, task: int, another: int) -> None:
        self.tell(CancelRequested([task, another]))

    @rule(size=st.sampled_from(SIZES))
    def node_changes(self, size: object) -> None:
        self.tell(CapacityChanged(size))  # type: ignore[arg-type]  # one of SIZES

    @rule()
    def drain_begins(self) -> None:
        self.tell(DrainRequested())

    @rule()
    def drain_ends(self) -> None:
        self.tell(DrainEnded())

    @precondition(lambda self: self.wake is not None)
    @rule()
    def time_passes(self) -> None:
        assert self.wake is not None
        self.now = max(self.now, self.wake)
        self.tell(TimePassed())

    @invariant()
    def broker_agrees_with_itself_and_with_what_it_said(self) -> None:
        if not hasattr(self, "broker"):
            return
        check_broker(self.broker)
        assert sorted(self.broker.running) == sorted(self.running)
        held = self.broker.state.keys()
        assert held.isdisjoint(self.over)
        assert len(held) + len(self.over) == self.arrived, "a task has vanished"

    def teardown(self) -> None:
        """Whatever happened: give the broker its node back, and places, and everything it holds comes to an end."""
        if not hasattr(self, "broker"):
            return
        self.tell(DrainEnded())
        self.tell(CapacityChanged(SIZES[3]))
        self.caps_change({"a": 1, "b": 1})
        for _ in range(20 * TASKS):
            if self.broker.idle():
                return
            if self.running:
                task, attempt = self.running.popitem()
                self.tell(TasksEnded([TaskResult(task, attempt, AttemptOutcome.OK, 0.1)]))
            else:
                self.time_passes()
        raise AssertionError(f"the broker never ends: {self.broker.state}")


BrokerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBroker = BrokerMachine.TestCase
