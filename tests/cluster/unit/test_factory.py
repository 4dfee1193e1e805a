"""How many nodes there should be, under a clock that the tests turn."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cluster.nodes.factory import (
    LONGEST_PAUSE,
    Action,
    Bounds,
    CancelNode,
    DrainNode,
    Factory,
    FactoryNode,
    PollInterval,
    QueueLength,
    SubmitNodes,
)
from shoal.cluster.nodes.starters import NodePhase
from shoal.core.policies.retry import can_finish
from shoal.errors import InputError

BOUNDS = Bounds(minimum=0, maximum=10, idle_seconds=100, start_seconds=10, per_round=4, tasks_per_node=2)


def running(name: str, idle_since: float | None = None, ends_at: float | None = None) -> FactoryNode:
    return FactoryNode(name, NodePhase.RUNNING, True, None, idle_since, ends_at)


def waiting(name: str) -> FactoryNode:
    return FactoryNode(name, NodePhase.WAITING)


def test_an_empty_queue_asks_for_the_minimum() -> None:
    assert Factory(BOUNDS).decide(0, QueueLength(0, 0), []) == []
    assert Factory(Bounds(minimum=3)).decide(0, QueueLength(0, 0), []) == [SubmitNodes(3)]


def test_growth_follows_the_tasks_a_few_nodes_at_a_time() -> None:
    factory = Factory(BOUNDS)
    assert factory.decide(0, QueueLength(5, 0), []) == [SubmitNodes(3)]
    assert factory.decide(0, QueueLength(100, 0), []) == [SubmitNodes(4)]
    assert factory.decide(0, QueueLength(100, 0), [waiting(str(n)) for n in range(8)]) == [SubmitNodes(2)]
    assert factory.decide(0, QueueLength(100, 0), [waiting(str(n)) for n in range(10)]) == []


def test_a_node_that_would_be_busy_for_less_than_it_takes_to_start_is_not_asked_for() -> None:
    factory = Factory(BOUNDS)
    assert factory.wanted(QueueLength(100, 0, seconds_left=1)) == 1
    assert factory.wanted(QueueLength(100, 0, seconds_left=60)) == 3
    assert factory.wanted(QueueLength(100, 0, seconds_left=1e9)) == 10
    assert factory.wanted(QueueLength(3, 0, seconds_left=1e9)) == 2


def test_an_idle_node_goes_after_its_time_and_the_longest_idle_first() -> None:
    factory = Factory(BOUNDS)
    nodes = [running("a", 50), running("b", 20), running("c")]
    assert factory.decide(110, QueueLength(0, 1), nodes) == []
    assert factory.decide(120, QueueLength(0, 1), nodes) == [DrainNode("b")]
    assert factory.decide(150, QueueLength(0, 1), nodes) == [DrainNode("b"), DrainNode("a")]
    assert Factory(Bounds(minimum=2, idle_seconds=100)).decide(150, QueueLength(0, 1), nodes) == [DrainNode("b")]


def test_a_node_at_work_is_never_sent_away() -> None:
    nodes = [running(str(number)) for number in range(8)]
    assert Factory(BOUNDS).decide(1e6, QueueLength(0, 1), nodes) == []


def test_nodes_that_still_wait_are_taken_back_once_they_have_been_too_many_for_a_while() -> None:
    factory = Factory(BOUNDS)
    nodes = [running("a"), waiting("b"), waiting("c")]
    assert factory.decide(0, QueueLength(0, 1), nodes) == []
    assert factory.decide(99, QueueLength(0, 1), nodes) == []
    assert factory.decide(100, QueueLength(0, 1), nodes) == [CancelNode("b"), CancelNode("c")]


def test_only_the_surplus_is_taken_back_and_the_latest_asked_for_first() -> None:
    factory = Factory(BOUNDS)
    nodes = [running("a"), waiting("b"), waiting("c"), waiting("d")]
    assert factory.decide(0, QueueLength(3, 1), nodes) == []
    assert factory.decide(100, QueueLength(3, 1), nodes) == [CancelNode("c"), CancelNode("d")]


def test_a_short_lull_takes_nothing_back() -> None:
    factory = Factory(BOUNDS)
    nodes = [running("a"), waiting("b")]
    assert factory.decide(0, QueueLength(0, 1), nodes) == []
    assert factory.decide(60, QueueLength(9, 1), nodes) == [SubmitNodes(3)]
    assert factory.decide(130, QueueLength(0, 1), nodes) == []


def test_a_node_whose_allocation_ends_is_replaced_within_the_maximum() -> None:
    factory = Factory(BOUNDS)
    assert factory.decide(95, QueueLength(2, 2), [running("a", ends_at=100), running("b")]) == [SubmitNodes(1)]
    full = Factory(Bounds(maximum=1, start_seconds=10))
    assert full.decide(95, QueueLength(2, 2), [running("a", ends_at=100)]) == []


def test_allocations_shorter_than_a_start_do_not_fill_the_cluster() -> None:
    nodes = [running(str(number), ends_at=105) for number in range(2)]
    assert Factory(BOUNDS).decide(100, QueueLength(1, 1), nodes[:1]) == [SubmitNodes(1)]
    assert Factory(BOUNDS).decide(100, QueueLength(1, 1), nodes) == []


def test_a_node_whose_agent_was_never_heard_of_is_given_up_and_replaced() -> None:
    factory = Factory(Bounds(maximum=3, join_seconds=50))
    node = FactoryNode("a", NodePhase.RUNNING, running_since=10)
    assert factory.decide(59, QueueLength(1, 0), [node]) == []
    assert factory.decide(60, QueueLength(1, 0), [node]) == [CancelNode("a"), SubmitNodes(1)]


def test_no_node_is_asked_for_while_one_stands_idle() -> None:
    factory = Factory(BOUNDS)
    assert factory.decide(5, QueueLength(20, 0), [running("a", 0.0)]) == [SubmitNodes(4)]
    assert factory.decide(10, QueueLength(20, 0), [running("a", 0.0)]) == []


def test_nodes_that_no_task_fits_on_are_let_go_and_not_asked_for_again_under_the_same_queue() -> None:
    factory = Factory(BOUNDS)
    assert factory.decide(100, QueueLength(6, 0), [running("a", 0.0)]) == [DrainNode("a")]
    assert factory.decide(101, QueueLength(6, 0), []) == []
    assert "do not fit" in factory.pause(101)
    assert factory.decide(102, QueueLength(7, 0), []) == [SubmitNodes(4)]
    assert factory.pause(102) == ""


def test_failed_starts_are_repeated_ever_later_and_a_node_that_joins_ends_that() -> None:
    factory = Factory(BOUNDS)
    now, pauses = 0.0, []
    for _ in range(12):
        factory.start_failed(now)
        begun = now
        assert factory.decide(now, QueueLength(1, 0), []) == []
        while factory.decide(now, QueueLength(1, 0), []) == []:
            now += 1
        pauses.append(now - begun)
    assert pauses[:4] == [5, 10, 20, 40]
    assert pauses[-1] == LONGEST_PAUSE
    factory.start_failed(now)
    assert factory.pause(now) == "13 starts in a row have failed; the next is tried in 10 min 00 s"
    factory.node_joined()
    assert factory.decide(now, QueueLength(1, 0), []) == [SubmitNodes(1)]


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(minimum=3, maximum=2),
        Bounds(minimum=-1),
        Bounds(tasks_per_node=0),
        Bounds(per_round=0),
        Bounds(idle_seconds=-1),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: Bounds) -> None:
    with pytest.raises(InputError):
        Factory(bounds)


def test_polling_slows_down_while_nothing_changes_and_hurries_after_a_change() -> None:
    pace = PollInterval(first=1, growth=2, longest=10)
    assert pace.due(0)
    now, gaps = 0.0, []
    for _ in range(6):
        pace.polled(now, changed=False)
        gaps.append(pace.next - now)
        now = pace.next
    assert gaps == [2, 4, 8, 10, 10, 10]
    pace.polled(now, changed=True)
    assert pace.next == now + 1
    pace.polled(now, changed=False)
    pace.hurry(now)
    assert not pace.due(now)
    assert pace.due(now + 1)


def test_a_task_begins_only_if_it_ends_before_the_allocation_does() -> None:
    assert can_finish(None, 0, 1e9)
    assert can_finish(1000, 0, 900, notice=30)
    assert not can_finish(1000, 0, 970, notice=30)
    assert not can_finish(1000, 0, 900, spread=40, notice=30)
    assert can_finish(1000, 0, None)
    assert not can_finish(1000, 980, None, notice=30)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e5))
def test_more_time_left_never_forbids_a_task(ends_at: float, now: float, expected: float, spread: float) -> None:
    if can_finish(ends_at, now, expected, spread):
        assert can_finish(ends_at + 1, now, expected, spread)
        assert now + expected < ends_at


class World:
    """Nodes that come after a delay, take tasks they can run, and go when drained or when their time is over."""

    def __init__(self, bounds: Bounds, delay: float, lifetime: float | None, fits: bool) -> None:
        self.bounds, self.delay, self.lifetime, self.fits = bounds, delay, lifetime, fits
        self.factory = Factory(bounds)
        self.nodes: dict[str, FactoryNode] = {}
        self.due: dict[str, float] = {}
        self.log: list[tuple[float, Action]] = []
        self.serial = 0

    def step(self, now: float, tasks: int) -> None:
        """One round: time passes, tasks are spread over the nodes that run, then the factory decides."""
        for name, node in list(self.nodes.items()):
            if node.phase is NodePhase.WAITING and now >= self.due[name]:
                ends = None if self.lifetime is None else now + self.lifetime
                self.nodes[name] = FactoryNode(name, NodePhase.RUNNING, True, now, now, ends)
            elif node.draining or (node.ends_at is not None and now >= node.ends_at):
                del self.nodes[name]
        left = tasks if self.fits else 0
        for name, node in self.nodes.items():
            if node.phase is NodePhase.RUNNING:
                taken = min(left, math.ceil(self.bounds.tasks_per_node))
                left -= taken
                idle = None if taken else (node.idle_since if node.idle_since is not None else now)
                self.nodes[name] = FactoryNode(name, node.phase, True, None, idle, node.ends_at)
        placed = (tasks if self.fits else 0) - left
        for action in self.factory.decide(now, QueueLength(tasks - placed, placed), list(self.nodes.values())):
            self.log.append((now, action))
            self.apply(now, action)
        assert len(self.nodes) <= self.bounds.maximum

    def apply(self, now: float, action: Action) -> None:
        if isinstance(action, SubmitNodes):
            assert 0 < action.count <= self.bounds.per_round
            for _ in range(action.count):
                self.serial += 1
                self.nodes[str(self.serial)] = waiting(str(self.serial))
                self.due[str(self.serial)] = now + self.delay
        elif isinstance(action, CancelNode):
            assert self.nodes.pop(action.node).phase is NodePhase.WAITING
        else:
            node = self.nodes[action.node]
            assert node.phase is NodePhase.RUNNING
            assert node.idle_since is not None, "a node at work was sent away"
            self.nodes[action.node] = msgspec.structs.replace(node, draining=True)

    def run(self, begin: float, seconds: float, tasks: int) -> None:
        for round_number in range(int(seconds / 5)):
            self.step(begin + 5.0 * round_number, tasks)


@st.composite
def worlds(draw: st.DrawFn, lifetime: bool = False, fits: bool = True) -> World:
    maximum = draw(st.integers(1, 12))
    bounds = Bounds(
        minimum=draw(st.integers(0, maximum)),
        maximum=maximum,
        idle_seconds=draw(st.sampled_from([0.0, 20.0, 60.0])),
        tasks_per_node=draw(st.sampled_from([1, 2, 7])),
        start_seconds=draw(st.sampled_from([0.0, 15.0, 60.0])),
        per_round=draw(st.integers(1, 4)),
    )
    life = draw(st.sampled_from([None, 200.0])) if lifetime else None
    return World(bounds, draw(st.sampled_from([0.0, 10.0, 120.0])), life, fits)


@settings(max_examples=80, deadline=None)
@given(worlds(lifetime=True), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_the_bounds_hold_and_no_working_node_goes_whatever_the_queue_does(world: World, loads: list[int]) -> None:
    for number, tasks in enumerate(loads):
        world.run(number * 300.0, 300, tasks)


@settings(max_examples=80, deadline=None)
@given(worlds(), st.integers(0, 60))
def test_a_constant_queue_leads_to_rest(world: World, tasks: int) -> None:
    world.run(0, 1500, tasks)
    before = len(world.log)
    world.run(1500, 1500, tasks)
    assert world.log[before:] == []
    kinds = [type(action) for _, action in world.log]
    assert CancelNode not in kinds
    assert DrainNode not in kinds or world.bounds.idle_seconds < world.delay
    assert len(world.nodes) == world.factory.wanted(QueueLength(tasks, 0))


@settings(max_examples=80, deadline=None)
@given(worlds(fits=False), st.integers(1, 60))
def test_tasks_that_fit_on_no_node_do_not_make_nodes_come_and_go(world: World, tasks: int) -> None:
    world.run(0, 3000, tasks)
    assert sum(action.count for _, action in world.log if isinstance(action, SubmitNodes)) <= 2 * world.bounds.maximum
    before = len(world.log)
    world.run(3000, 1000, tasks)
    assert world.log[before:] == []


@settings(max_examples=80, deadline=None)
@given(worlds(), st.integers(0, 60), st.integers(0, 60))
def test_everything_drains_to_the_minimum(world: World, first: int, second: int) -> None:
    world.run(0, 400, first)
    world.run(400, 400, second)
    world.run(800, 1500, 0)
    assert len(world.nodes) == world.bounds.minimum


# ---- what it leaves to the factories of other groups ---------------------------------------------------------------


def test_a_factory_that_can_start_nodes_takes_what_they_will_do() -> None:
    factory = Factory(BOUNDS)
    assert factory.reach(0, QueueLength(100, 0), []) == 20
    assert factory.reach(0, QueueLength(5, 1), []) == 5
    assert factory.reach(0, QueueLength(0, 2), [running("a")]) == 0


def test_while_starts_fail_only_nodes_that_run_count() -> None:
    factory = Factory(BOUNDS)
    factory.start_failed(0)
    assert factory.reach(1, QueueLength(100, 1), [running("a"), waiting("b")]) == 1
    factory.node_joined()
    assert factory.reach(1, QueueLength(100, 1), [running("a"), waiting("b")]) == 19


def test_nodes_that_wait_in_vain_leave_the_work_to_others() -> None:
    factory = Factory(BOUNDS)
    late = FactoryNode("b", NodePhase.WAITING, asked_at=0)
    assert factory.reach(BOUNDS.join_seconds, QueueLength(100, 0), [late]) == 20
    assert factory.reach(BOUNDS.join_seconds + 1, QueueLength(100, 0), [late]) == 0
