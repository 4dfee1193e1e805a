"""The flow of a graph: what is ready, what a result makes ready, what can never run."""

from __future__ import annotations

import pytest

from shoal.core.dependencies import DagFlow, FlowState, TaskStatus
from shoal.core.graph import ancestors
from support.graphs import graph_of, names

DIAMOND = "a:\nb: a\nc: a\nd: b c"


def test_tasks_become_ready_when_the_last_thing_they_need_is_done() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    assert flow.ready() == [0]
    assert flow.complete([0]) == [1, 2]
    assert flow.complete([2]) == []
    assert flow.complete([1]) == [3]
    assert flow.complete([3]) == []
    assert flow.state() == FlowState(waiting=0, ready=0, done=4, failed=0, doomed=0)


def test_a_batch_of_results_releases_a_common_successor_once() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    flow.complete([0])
    assert flow.complete([1, 2]) == [3]


def test_results_may_come_from_an_iterator() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    assert flow.complete(task for task in [0]) == [1, 2]


def test_groups_run_nothing_and_pass_on_at_once() -> None:
    graph = graph_of("(top):\na: top\n(one): a\n(two): one\nb: two\n(all): b")
    flow = DagFlow(graph)
    assert names(graph, flow.ready()) == ["a"]
    assert names(graph, flow.complete([1])) == ["b"]
    assert flow.complete([4]) == []
    assert set(flow.status) == {TaskStatus.DONE}


def test_what_an_earlier_run_has_done_is_not_handed_out_again() -> None:
    graph = graph_of(DIAMOND)
    flow = DagFlow(graph)
    assert names(graph, flow.ready(already_done=[0, 1, 0])) == ["c"]
    assert names(graph, flow.complete([2])) == ["d"]


def test_a_run_of_which_everything_is_done_has_nothing_ready() -> None:
    flow = DagFlow(graph_of("a:\n(g): a\nb: g"))
    assert flow.ready(already_done=[0, 1, 2]) == []
    assert set(flow.status) == {TaskStatus.DONE}


def test_tasks_the_targets_do_not_need_are_left_alone() -> None:
    graph = graph_of(DIAMOND)
    flow = DagFlow(graph, ancestors(graph, [1]))
    flow.ready()
    assert names(graph, flow.complete([0])) == ["b"]
    assert flow.status[3] == TaskStatus.EXCLUDED


def test_a_failure_dooms_everything_behind_it_and_nothing_else() -> None:
    graph = graph_of("a:\nb: a\n(g): b\nc: g\nother: a")
    flow = DagFlow(graph)
    flow.ready()
    flow.complete([0])
    assert sorted(names(graph, flow.fail([1]))) == ["c", "g"]
    assert flow.state() == FlowState(waiting=0, ready=1, done=1, failed=1, doomed=1)


def test_a_doomed_task_is_not_released_by_what_it_also_needs() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    flow.complete([0])
    assert flow.fail([1]) == [3]
    assert flow.complete([2]) == []
    assert flow.status[3] == TaskStatus.DOOMED


def test_a_task_cancelled_while_it_waits_is_not_released_later() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    assert flow.fail([1]) == [3]
    assert flow.complete([0]) == [2]
    assert flow.status[1] == TaskStatus.FAILED


@pytest.mark.parametrize("batch", [[0, 0], [1], [3]])
def test_a_result_that_cannot_be_is_a_defect(batch: list[int]) -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    with pytest.raises(AssertionError, match="completed while"):
        flow.complete(batch)


def test_failing_a_task_that_is_over_is_a_defect() -> None:
    flow = DagFlow(graph_of(DIAMOND))
    flow.ready()
    flow.complete([0])
    with pytest.raises(AssertionError, match="failed while DONE"):
        flow.fail([0])
