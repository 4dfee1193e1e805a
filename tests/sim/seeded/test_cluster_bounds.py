"""No simulated run is shorter than the lower bound, and orders that leave no core idle keep Graham's promise."""

from __future__ import annotations

from random import Random

import pytest

from shoal.core.policies.order import ORDERS
from shoal.core.policies.stealing import POLICIES
from shoal.core.resources import Resources
from shoal.sim.cluster.result import achievable
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import GIGABIT, ClusterSpec, NodeSpec
from shoal.sim.lower_bound import Capacity, lower_bound
from shoal.sim.predictions import predict
from shoal.sim.synthetic_graphs import SHAPES
from shoal.sim.workloads.registry import make_workload

WORKLOADS = (
    "bag:tasks=300",
    "pipeline:tasks=300",
    "fan-out:tasks=300",
    "fan-in:tasks=300",
    "all-pairs:side=15",
    "stacking:locality=30,tasks=300",
    "fmri:volumes=20",
    "moldyn:molecules=2",
)
ROUNDING = 1 - 1e-9


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_policy_beats_the_lower_bound(workload: str, policy: str) -> None:
    for seed in range(3):
        random = Random(f"{workload} {policy} {seed}")
        work = make_workload(workload, seed)
        kind = NodeSpec(cores=random.randint(1, 4), speed=random.choice((0.5, 1.0, 2.0)), link=GIGABIT)
        spec = ClusterSpec(nodes=random.randint(1, 9), node=kind, latency=random.choice((0.0, 1e-4, 1e-2)))
        options = SimulationOptions(policy=policy, order=random.choice(list(ORDERS)), seed=seed)
        played = ClusterRun(work, spec, options).execute()
        bound = lower_bound(work, Capacity.of([(kind.cores, kind.speed)] * spec.nodes)).seconds
        assert played.failed == 0
        assert played.makespan >= bound * ROUNDING
        assert achievable(work, spec) >= bound * ROUNDING


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_order_keeps_grahams_promise(shape: str, order: str) -> None:
    for seed in range(8):
        random = Random(f"{shape} {order} {seed}")
        graph = SHAPES[shape](random, random.randint(1, 120), None)
        seconds = [random.choice((0.0, random.random(), 10 * random.random())) for _ in range(len(graph))]
        cores = random.randint(1, 6)
        forecast = predict(graph, seconds, Resources.parse({"cores": cores}), order)
        longest = forecast.critical_path
        assert forecast.makespan * ROUNDING <= forecast.work / cores + (1 - 1 / cores) * longest
        assert forecast.makespan >= max(forecast.work / cores, longest) * ROUNDING


def test_no_task_waits_for_a_file_that_another_one_was_fetching() -> None:
    """Tasks with two inputs, each of which may be under way for another task: one of 10,000 once waited for ever."""
    work = make_workload("all-pairs:side=100", 1)
    spec = ClusterSpec(nodes=32, node=NodeSpec(link=1.92 * GIGABIT))
    run = ClusterRun(work, spec, SimulationOptions(policy="mlb"))
    run.at(100.0, _too_late, None, None)
    assert run.execute().failed == 0


def _too_late(*_: None) -> None:
    raise AssertionError("a task waits for ever")
