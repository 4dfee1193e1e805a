"""Properties of every scheduler: each task is done once, nothing is shared, nothing hangs, order is kept.

The simulated pool itself asserts that no unit is used by two tasks at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.graph import Graph, GraphBuilder
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile
from shoal.petri import NetFlow, net_of_graph
from shoal.petri.net import task_number
from shoal.resources.machine import machine
from shoal.resources.manager import ResourceManager
from shoal.resources.scheduler_interface import CoAllocation
from shoal.schedulers import (
    DagWork,
    Flow,
    LookAhead,
    Rescheduling,
    Scheduler,
    base,
    co_allocation,
    look_ahead,
    performance_model,
    rescheduling,
    transfer_costs,
)
from shoal.sim.worker_pool import MachineLoss, Pool

EXAMPLES = settings(max_examples=50, deadline=None)
UNTIRING = Rescheduling(attempts=1000, losses=1000)
HOSTS = ["h0", "h1", "h2", "h3"]
NAMED: list[Callable[[Flow, ResourceManager], Scheduler]] = [
    base,
    rescheduling,
    look_ahead,
    co_allocation,
    performance_model,
    lambda flow, steward: transfer_costs(flow, steward, lambda _: {"h2": [(0, 9)]}, needs=lambda _: {"x": [(0, 9)]}),
]


@st.composite
def graphs(draw: st.DrawFn, *, most_nodes: int = 1) -> Graph:
    """Up to twelve tasks, each after some of the earlier ones, some of which run nothing."""
    dice = Random(draw(st.integers(0, 1 << 30)))
    builder = GraphBuilder("random")
    for number in range(draw(st.integers(1, 12))):
        nodes = dice.randint(1, most_nodes)
        asked = {"cores": dice.randint(1, 3) * FRACTION} | ({"nodes": nodes * FRACTION} if nodes > 1 else {})
        builder.task(
            f"t{number}",
            None if dice.random() < 0.15 else "true",
            after=[other for other in range(number) if dice.random() < 0.3],
            profile=Profile(resources=Resources.of(asked), cores_declared=True),
        )
    return builder.build()


def numbers(pool: Pool, graph: Graph) -> list[int]:
    """The tasks in the order in which they were done, by their numbers in the graph."""
    return [int(ran.name.split()[0]) for ran in pool.ran if ran.outcome == "done"]


def holds_order(graph: Graph, pool: Pool) -> bool:
    """Whether no task began before those that it comes after had ended; tasks that run nothing pass that on."""
    ended = {int(ran.name.split()[0]): ran.ended for ran in pool.ran if ran.outcome == "done"}
    ready = [0.0] * len(graph)
    for task in range(len(graph)):
        ready[task] = max((ended.get(other, ready[other]) for other in graph.predecessors_of(task)), default=0.0)
    return all(ran.began >= ready[int(ran.name.split()[0])] for ran in pool.ran)


def forest(machines: int = 4) -> ResourceManager:
    return ResourceManager([machine(name, cores=3) for name in HOSTS[:machines]])


@given(graphs(), st.sampled_from(NAMED), st.integers(0, 999), st.booleans())
@EXAMPLES
def test_every_scheduler_does_every_task_of_a_graph_once_and_in_order(
    graph: Graph, make: Callable[[Flow, ResourceManager], Scheduler], seed: int, as_net: bool
) -> None:
    flow: Flow = NetFlow(net_of_graph(graph), seed) if as_net else DagWork(graph)
    steward = forest()
    scheduler = make(flow, steward)
    pool = Pool(scheduler, seed)
    pool.run()
    wanted = [task for task in range(len(graph)) if graph.actions[task] is not None]
    assert sorted(numbers(pool, graph)) == wanted
    assert holds_order(graph, pool)
    assert scheduler.is_idle and not steward.held and not steward.waiting


@given(graphs(), st.integers(0, 999))
@EXAMPLES
def test_a_graph_and_its_net_hand_out_the_same_tasks_under_the_same_constraints(graph: Graph, seed: int) -> None:
    dice = Random(seed)
    net = NetFlow(net_of_graph(graph), seed)
    dag = DagWork(graph)
    in_net: dict[int, int] = {}
    in_dag: list[int] = []
    while True:
        while (task := net.next()) is not None:
            in_net[task_number(net.extract(task).transition)] = task
        while (number := dag.next()) is not None:
            assert task_number(dag.extract(number).transition) == number
            in_dag.append(number)
        assert sorted(in_net) == sorted(in_dag)
        if not in_dag:
            break
        done = in_dag.pop(dice.randrange(len(in_dag)))
        net.inject(in_net.pop(done), None)
        dag.inject(done, None)
    assert net.is_finished and dag.is_finished


@given(
    graphs(most_nodes=2),
    st.integers(0, 999),
    st.floats(0.0, 0.5),
    st.lists(st.floats(0.0, 20.0), max_size=2),
    st.booleans(),
)
@EXAMPLES
def test_failures_and_lost_machines_cost_attempts_but_no_task(
    graph: Graph, seed: int, failing: float, moments: list[float], as_net: bool
) -> None:
    flow: Flow = NetFlow(net_of_graph(graph), seed) if as_net else DagWork(graph)
    steward = forest()
    scheduler = Scheduler(
        flow, steward, drawing=LookAhead(ahead=2, most=3), asking=CoAllocation(), rescheduling=UNTIRING
    )
    losses = [MachineLoss(moment, host) for moment, host in zip(moments, HOSTS, strict=False)]
    pool = Pool(scheduler, seed, failing=failing, losses=losses)
    pool.run()
    wanted = [task for task in range(len(graph)) if graph.actions[task] is not None]
    assert sorted(numbers(pool, graph)) == wanted and not scheduler.failures
    assert holds_order(graph, pool)
    assert scheduler.is_idle and not steward.held and not steward.waiting


@given(st.integers(0, 300), st.integers(1, 8), st.integers(0, 16), st.integers(0, 99))
@EXAMPLES
def test_looking_ahead_never_hangs_behind_tasks_without_resources(
    hopeless: int, ahead: int, more: int, seed: int
) -> None:
    builder = GraphBuilder("hidden")
    for number in range(hopeless):
        builder.task(f"gpu{number}", "true", profile=Profile(resources=Resources.of({"gpus": FRACTION})))
    for number in range(3):
        builder.task(f"core{number}", "true", profile=Profile(resources=Resources.of({"cores": FRACTION})))
    steward = ResourceManager([machine("a", cores=2)], may_grow=True)
    scheduler = look_ahead(DagWork(builder.build()), steward, drawing=LookAhead(ahead=ahead, most=ahead + more))
    Pool(scheduler, seed).run()
    assert scheduler.done == 3 and len(scheduler.status()) == hopeless
