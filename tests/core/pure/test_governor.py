"""The throttle controller and its scheduler on a modelled machine: which tasks run, how many, and when."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shoal.core.invariants import check_broker
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.throttle.controller import ControllerState
from shoal.core.policies.throttle.readings import NodeSample
from shoal.core.policies.throttle.registry import regime
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.resources import Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Command, Event, Start, TaskResult, TasksEnded, TasksReady
from shoal.core.throttle_controller import ThrottleController
from shoal.errors import InputError
from support.case import node

TICK = 0.1


class Machine:
    """Tasks of each category take so many seconds and use this share of the processors while they run."""

    def __init__(
        self,
        throttle: str,
        cores: int,
        seconds: Mapping[str, float],
        use: float = 0.0,
        known: Mapping[str, UsageProfile] | None = None,
        resources: Resources | None = None,
    ) -> None:
        self.names = list(seconds)
        self.seconds, self.use = seconds, use
        chosen = regime(throttle)
        lanes = [Lane(resources or Resources(()), cap=chosen.cap_for(name), elastic=True) for name in self.names]
        self.lane_of: list[int] = []
        self.broker = Scheduler(node(cores=cores), TaskColumns(self.lane_of), lanes, order="fifo")
        self.governor = ThrottleController(chosen, self.broker, cores, known)
        self.now = 0.0
        self.ends: list[tuple[float, int, int]] = []
        self.done: list[int] = []
        self.most = 0
        self.tell(self.governor.begin())

    def bring(self, name: str, count: int) -> None:
        first = len(self.lane_of)
        self.lane_of += [self.names.index(name)] * count
        self.tell(TasksReady(list(range(first, first + count))))

    def tell(self, event: Event) -> None:
        self.obey(self.broker.handle(self.now, event))
        check_broker(self.broker)
        self.most = max(self.most, len(self.broker.running))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                for task, attempt in zip(command.tasks, command.attempts, strict=True):
                    self.ends.append((self.now + self.seconds[self.names[self.lane_of[task]]], task, attempt))

    def run(self, until: float) -> None:
        while self.now < until:
            self.now += TICK
            over = [end for end in self.ends if end[0] <= self.now]
            self.ends = [end for end in self.ends if end[0] > self.now]
            if over:
                results = [
                    TaskResult(task, attempt, AttemptOutcome.OK, self.seconds[self.names[self.lane_of[task]]])
                    for _, task, attempt in over
                ]
                self.governor.ended(self.now, results)
                self.done += [result.task for result in results]
                self.tell(TasksEnded(results))
            if self.governor.wants_sample(self.now):
                user = min(1.0, self.use * len(self.broker.running))
                self.governor.sample(self.now, NodeSample(user=user, running=self.governor.running()))
            caps = self.governor.look(self.now)
            if caps is not None:
                self.tell(caps)


def test_it_begins_with_as_many_tasks_as_there_are_cores() -> None:
    machine = Machine("adaptive", 4, {"a": 1.0})
    machine.bring("a", 100)
    assert len(machine.broker.running) == 4


def test_tasks_that_only_wait_run_in_greater_numbers_than_there_are_cores() -> None:
    machine = Machine("adaptive", 2, {"a": 0.5})
    machine.bring("a", 5000)
    machine.run(40.0)
    assert machine.most >= 16
    told = machine.governor.news()
    assert told[0].verdict.cap == 2 and told[-1].category == "a"


def test_it_begins_with_what_an_earlier_run_found() -> None:
    machine = Machine("adaptive", 2, {"a": 1.0}, known={"a": UsageProfile({}, {}, level=12)})
    machine.bring("a", 100)
    machine.run(0.2)
    assert len(machine.broker.running) == 12


def test_what_an_earlier_run_measured_without_finding_a_number_holds_nobody_back() -> None:
    known = {"a": UsageProfile({"cpu": 0.05}, {"cpu": 0.001}, 1.0)}
    machine = Machine("adaptive", 4, {"a": 1.0}, use=0.05, known=known)
    machine.bring("a", 400)
    machine.run(0.5)
    (told,) = machine.governor.standing()
    assert told.verdict.state is ControllerState.PROFILING and told.running == 4
    machine.run(30.0)
    assert machine.most > 8


def test_what_is_declared_is_never_exceeded() -> None:
    machine = Machine("adaptive", 8, {"a": 0.5}, resources=node(licence=1))
    machine.broker.contract.resize(node(cores=8, licence=3))
    machine.bring("a", 500)
    machine.run(30.0)
    assert machine.most == 3 and len(machine.done) > 150


@pytest.mark.parametrize("count", [1, 3, 7])
def test_slots_are_exact_over_all_categories(count: int) -> None:
    machine = Machine(f"slots={count}", 2, {"a": 0.3, "b": 0.7, "c": 1.1})
    for name in "abcabc":
        machine.bring(name, 10)
    machine.run(3.0)
    assert machine.most == count
    machine.run(60.0)
    assert machine.most == count and len(machine.done) == 60


def test_the_contract_alone_has_no_caps() -> None:
    machine = Machine("contract", 2, {"a": 1.0}, resources=node(licence=1))
    machine.broker.contract.resize(node(cores=2, licence=30))
    machine.bring("a", 100)
    machine.run(1.0)
    assert machine.most == 30 and not machine.governor.news()


def test_who_waits_for_its_turn_has_it_when_nobody_else_has_anything_to_start() -> None:
    machine = Machine("weasel", 1, {"a": 0.2, "b": 0.2})
    machine.bring("a", 6)
    machine.bring("b", 6)
    machine.run(0.2)
    assert [told.verdict.cap for told in machine.governor.standing()] == [1, 0]
    machine.run(3.5)
    assert len(machine.done) == 12, "b did not wait for the end of a control period"


def test_categories_that_come_together_share_the_cores_at_the_beginning() -> None:
    machine = Machine("adaptive", 8, dict.fromkeys("abcd", 1.0))
    machine.lane_of += [task % 4 for task in range(80)]
    machine.tell(machine.governor.begin(range(80)))
    machine.tell(TasksReady(list(range(80))))
    assert len(machine.broker.running) == 8
    machine.run(2.0)
    assert machine.most == 8


def test_a_category_that_comes_later_begins_beside_the_others_at_once() -> None:
    machine = Machine("adaptive", 8, {"a": 1.0, "b": 1.0})
    machine.bring("a", 80)
    machine.run(0.5)
    machine.bring("b", 80)
    assert machine.governor.running() == {"a": 8, "b": 4}


def test_a_category_still_at_its_beginning_takes_over_what_others_have_left() -> None:
    machine = Machine("adaptive", 8, {"short": 1.0, "long": 3.0})
    machine.bring("short", 8)
    machine.run(0.3)
    machine.bring("long", 40)
    machine.run(0.6)
    assert machine.governor.running()["long"] == 4
    machine.run(1.3)
    assert machine.governor.running() == {"long": 8}
    (told,) = machine.governor.standing()
    assert told.verdict.reason == "8 of category 'long' run together until it is known what one of them uses"


@pytest.mark.parametrize("throttle", ["adaptive", "weasel"])
def test_every_category_comes_to_its_end(throttle: str) -> None:
    machine = Machine(throttle, 2, {"a": 0.5, "b": 0.3, "c": 0.7}, use=0.4)
    for name in "abc":
        machine.bring(name, 40)
    machine.run(200.0)
    assert len(machine.done) == 120


def test_tasks_that_are_over_in_no_time_are_left_alone() -> None:
    machine = Machine("adaptive", 2, {"a": 0.001})
    machine.bring("a", 3000)
    machine.run(20.0)
    assert machine.most == 2 and not machine.governor.news() and len(machine.done) > 300


def test_memory_that_tasks_were_seen_to_use_bounds_their_number_where_it_is_not_sized() -> None:
    machine = Machine("adaptive", 2, {"a": 0.5})
    machine.broker.contract.resize(node(cores=2, memory="1G"))
    machine.bring("a", 3000)
    machine.governor.weigh(0, 100 << 20)
    machine.run(60.0)
    assert 5 <= machine.most <= 10


def test_a_name_that_is_no_throttle_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no throttle 'fast'") as refused:
        regime("fast")
    assert "slots=N" in (refused.value.remedy or "")
    for name in ("slots=0", "slots=-1", "slots=x", "slots"):
        with pytest.raises(InputError):
            regime(name)
