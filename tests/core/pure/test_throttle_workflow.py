"""Whole workflows on a modelled node under a throttle: what limits them, and what is known of their tasks."""

from __future__ import annotations

import pytest

from shoal.core.graph import Graph, GraphBuilder
from shoal.core.policies.throttle.registry import regime
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile as TaskProfile
from shoal.sim.forecast import learned_demand
from shoal.sim.throttled_workflow import TaskDemand, ThrottledRun, ThrottledSimulation

TWO_CORES = Resources.of({"cores": 2 * FRACTION, "memory": 1 << 30})
WAITS = {"nap": TaskDemand({"cpu": 0.005})}
BURNS = {"burn": TaskDemand({"cpu": 0.5})}


def bag(category: str, count: int, **declared: str | int) -> Graph:
    builder = GraphBuilder("test")
    profile = TaskProfile(category=category, resources=Resources.parse({"cores": 1, **declared}))
    for number in range(count):
        builder.task(f"{category}{number}", "true", outputs=[f"{category}{number}"], profile=profile)
    return builder.build()


def played(graph: Graph, seconds: float, throttle: str, demands: dict[str, TaskDemand]) -> ThrottledSimulation:
    return ThrottledRun(graph, [seconds] * len(graph), TWO_CORES, regime(throttle), demands).execute()


def test_tasks_that_wait_are_run_by_the_dozen_where_a_throttle_looks_and_by_the_core_where_none_does() -> None:
    graph = bag("nap", 600)
    assert played(graph, 1.0, "contract", WAITS).makespan == pytest.approx(300.0)
    assert played(graph, 1.0, "slots=10", WAITS).makespan == pytest.approx(60.0)
    assert played(graph, 1.0, "adaptive", WAITS).makespan < 100.0


def test_tasks_that_compute_take_what_the_processors_give_under_every_throttle() -> None:
    graph = bag("burn", 200)
    for throttle in ("contract", "slots=8", "adaptive"):
        found = played(graph, 1.0, throttle, BURNS)
        assert found.makespan == pytest.approx(100.0, rel=0.03)
        assert found.processors > 0.97


def test_what_bears_only_so_many_outside_is_found_without_being_seen() -> None:
    demands = {"call": TaskDemand({"cpu": 0.01}, bears=6)}
    found = played(bag("call", 2000), 1.0, "adaptive", demands)
    assert found.makespan < 1.1 * 2000 / 6
    assert found.together["call"] < 14


def test_what_is_declared_is_never_exceeded() -> None:
    graph = bag("nap", 200, memory="256M")
    found = played(graph, 1.0, "slots=10", WAITS)
    assert found.most == 4
    assert found.makespan == pytest.approx(50.0)


def test_a_learned_profile_says_what_is_used_and_how_many_are_borne() -> None:
    errors = {"cpu": 0.001, "disk": 0.001, "network": 0.001}
    burning = UsageProfile({"cpu": 0.5, "disk": 0.0, "network": 0.0}, errors, seconds=1.0, level=2)
    assert learned_demand(burning, 2.0, 0.5) == TaskDemand({"cpu": 0.25}, 0, 0.5)
    calling = UsageProfile({"cpu": 0.002, "disk": 0.0, "network": 0.0}, errors, seconds=0.2, level=9)
    assert learned_demand(calling, 0.2, 1.0) == TaskDemand({"cpu": 0.002}, 9, 1.0)
