"""In fault simulations "why" has an answer for every unfinished task at every sampled moment, and it is true."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from shoal.core.dependencies import DagFlow
from shoal.core.explain.answer import Answer, Cap, ResourceHolder, RunAnswer, WaitCause
from shoal.core.explain.scheduler_source import SingleNodeSource, explain_held
from shoal.core.scheduler import Lane
from shoal.core.scheduler_messages import CapsChanged
from shoal.sim.cluster.fault_schedule import FaultInjectionRun
from shoal.sim.cluster.scenario import draw_cluster
from shoal.sim.node import Violation
from shoal.sim.oracle import check_answer, check_held, expect_counts, popped
from shoal.sim.run import SimulatedRun
from shoal.sim.scenario import draw_scenario
from support.case import BrokerCase, lane, node
from support.graphs import graph_of

SEEDS = 60
CHUNK = 20
EVENTS = 7
"""Between two moments at which all are asked, on one node."""
SECONDS = 0.17
"""The same on a cluster."""


BETWEEN_RUNS = {WaitCause.UP_TO_DATE, WaitCause.WOULD_RUN}
"""Given only while no run is under way."""
NEVER_SIMULATED = BETWEEN_RUNS | {
    WaitCause.EXCLUDED,
    WaitCause.TURN,
    WaitCause.FETCHING,
    WaitCause.ANOTHER_RUN,
    WaitCause.NODE_LOST,
}
"""Runs of single targets, results that are told apart from what they make ready, depots and several runs are not; a
node is declared lost and its tasks are placed anew in one step."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_answer_on_one_node_is_true(first: int) -> None:
    answers = on_one_node(range(first, first + CHUNK))
    assert answers.total() > 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_answer_on_a_cluster_is_true(first: int) -> None:
    answers = on_clusters(range(first, first + CHUNK), SECONDS)
    assert answers.keys() >= {WaitCause.NEEDS, WaitCause.RUNNING, WaitCause.RESOURCES, WaitCause.ARRIVING}


def test_the_seeds_meet_every_kind_of_trouble() -> None:
    """Answers that are never given are never found wrong."""
    answers = on_one_node(range(100, 150)) + on_clusters(range(240, 290), 1.1)
    assert set(WaitCause) - answers.keys() == NEVER_SIMULATED, answers


def on_one_node(seeds: range) -> Counter[WaitCause]:
    """The answers in all these runs."""
    answers: Counter[WaitCause] = Counter()
    for seed in seeds:
        run = SimulatedRun(draw_scenario(seed), explain_interval=EVENTS)
        run.execute()
        answers += run.answers
    return answers


def on_clusters(seeds: range, seconds: float) -> Counter[WaitCause]:
    answers: Counter[WaitCause] = Counter()
    for seed in seeds:
        run = FaultInjectionRun(draw_cluster(seed))
        run.play(explain_interval=seconds)
        answers += run.explain_oracle.answers
    return answers


def test_asking_does_not_change_a_run() -> None:
    for seed in range(5):
        plain, asked = (
            FaultInjectionRun(draw_cluster(seed)).play(),
            FaultInjectionRun(draw_cluster(seed)).play(explain_interval=SECONDS),
        )
        assert plain.makespan == asked.makespan and plain.ends == asked.ends


# ---- the check can fail ----------------------------------------------------------------------------------------------


def waiting() -> tuple[BrokerCase, Answer]:
    case = BrokerCase(node(cores=1), [lane()])
    case.ready(0, 1)
    graph = graph_of("a:\nb:")
    flow = DagFlow(graph)
    flow.ready()
    return case, SingleNodeSource(graph, flow.status, case.broker, 0.0).explain(1)


def test_a_true_answer_passes() -> None:
    case, answer = waiting()
    check_held(answer, case.broker, 0.0, popped(case.broker))


@pytest.mark.parametrize(
    "cause",
    [WaitCause.RUNNING, WaitCause.RETRY, WaitCause.STOPPING, WaitCause.TURN, WaitCause.ARRIVING, WaitCause.DONE],
)
def test_a_false_cause_is_found_out(cause: WaitCause) -> None:
    case, answer = waiting()
    with pytest.raises(Violation):
        check_held(msgspec.structs.replace(answer, cause=cause), case.broker, 0.0, popped(case.broker))


def test_false_claims_about_a_shortage_are_found_out() -> None:
    case, answer = waiting()
    short = answer.shortage
    assert short is not None
    replace = msgspec.structs.replace
    wrong = [replace(short, free=5), replace(short, asked=1), replace(short, total=1), replace(short, held_by=2)]
    wrong += [
        replace(short, holders=[ResourceHolder(1, short.holders[0].amount)]),
        replace(short, holders=[ResourceHolder(0, 1)]),
    ]
    for each in wrong:
        with pytest.raises(Violation):
            check_held(replace(answer, shortage=each), case.broker, 0.0, popped(case.broker))


def test_a_false_chain_is_found_out() -> None:
    graph = graph_of("a:\nb: a\nc: b\nx:")
    flow = DagFlow(graph)
    flow.ready()
    true = Answer(2, WaitCause.NEEDS, unfinished=1, chain=[1, 0], links=2, root=Answer(0, WaitCause.RUNNING))

    def check(answer: Answer) -> None:
        check_answer(answer, flow.status, graph.predecessors_of, lambda ready: None)

    check(true)
    replace = msgspec.structs.replace
    for wrong in (
        replace(true, chain=[0]),
        replace(true, chain=[1, 3]),
        replace(true, unfinished=2),
        replace(true, links=3),
        replace(true, cause=WaitCause.RUNNING),
        replace(true, root=Answer(3, WaitCause.RUNNING)),
        replace(true, chain=[1], links=1, root=Answer(1, WaitCause.ARRIVING)),
        replace(true, root=Answer(0, WaitCause.RUNNING, overdue=True), starts=5.0),
        replace(true, root=Answer(0, WaitCause.RESOURCES), starts=5.0),
        replace(true, cause=WaitCause.STOPPING),
    ):
        with pytest.raises(Violation):
            check(wrong)
    with pytest.raises(Violation):
        check_answer(true, flow.status, graph.predecessors_of, lambda ready: None, is_stopping=True)


def test_a_false_place_in_the_queue_is_found_out() -> None:
    case = BrokerCase(node(cores=1), [lane()])
    case.ready(0, 1, 2, 3)
    true = explain_held(case.broker, 2, 0.0)
    check_held(true, case.broker, 0.0, popped(case.broker))
    for wrong in (msgspec.structs.replace(true, ahead=0), msgspec.structs.replace(true, queued=9)):
        with pytest.raises(Violation):
            check_held(wrong, case.broker, 0.0, popped(case.broker))


def test_false_claims_about_a_throttle_are_found_out() -> None:
    case = BrokerCase(node(cores=8), [Lane(node(cores=1), cap="k")])
    case.tell(CapsChanged({"k": 3}))
    case.ready(0, 1, 2, 3)
    true = explain_held(case.broker, 3, 0.0)
    assert true.cause is WaitCause.THROTTLE
    check_held(true, case.broker, 0.0, popped(case.broker))
    for cap in (Cap("k", 2, 3), Cap("k", 3, 4), Cap("other", 3, 3)):
        with pytest.raises(Violation):
            check_held(msgspec.structs.replace(true, cap=cap), case.broker, 0.0, popped(case.broker))


def test_false_numbers_of_a_whole_run_are_found_out() -> None:
    case = BrokerCase(node(cores=1), [lane()])
    case.ready(0, 1, 2)
    graph = graph_of("a:\nb:\nc:\nd: a")
    flow = DagFlow(graph)
    flow.ready()
    source = SingleNodeSource(graph, flow.status, case.broker, 0.0)
    ready = [source.explain(task) for task in range(3)]

    def check(whole: RunAnswer) -> None:
        expect_counts(whole, flow.status, ready, {0})

    true = source.whole()
    check(true)
    for name in ("running", "ready", "waiting", "done", "failed", "doomed"):
        with pytest.raises(Violation):
            check(msgspec.structs.replace(true, **{name: getattr(true, name) + 1}))
    (group,) = true.groups
    more = msgspec.structs.replace(group, count=3)
    other = msgspec.structs.replace(group, example=Answer(1, WaitCause.RETRY))
    for groups in ([], [more], [other], [group, group]):
        with pytest.raises(Violation):
            check(msgspec.structs.replace(true, groups=groups))
