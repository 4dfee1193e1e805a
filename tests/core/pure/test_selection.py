"""What of a plan goes to a cluster whose nodes share no files; who needs a group has its files."""

from __future__ import annotations

import pytest

from shoal.cluster.selection import Selection, returned, select
from shoal.core.graph import Graph, GraphBuilder
from shoal.core.store.memory import MemoryStore, TaskStanding
from shoal.ledger.identity import Versions
from shoal.ledger.up_to_date import Plan, Reason


class NoCalls:
    """There are no Python calls."""

    def call_of(self, task: int) -> str:
        raise AssertionError(task)

    def value_of(self, task: int) -> str:
        raise AssertionError(task)


def grouped() -> Graph:
    """Two copies of sources and one source in groups, and a task that needs the outer one and a copy."""
    builder = GraphBuilder("flow.py")
    builder.task("", "copy", inputs=["raw/1"], outputs=["p/1"])
    builder.task("", "copy", inputs=["raw/2"], outputs=["p/2"])
    inner = builder.task("parts", None, inputs=["p/1", "p/2"])
    outer = builder.task("all", None, inputs=["raw/3"], after=[inner])
    builder.task("", "count", inputs=["p/1"], outputs=["sum"], after=[outer])
    return builder.build()


def selected(graph: Graph, done: tuple[int, ...] = (), *, managed: bool = True) -> Selection:
    plan = Plan(graph)
    for task in range(len(graph)):
        plan.set(task, Reason.UP_TO_DATE if task in done else Reason.NEW)
    return select(plan, Versions(graph), NoCalls(), managed=managed)


def read(selection: Selection, task: int) -> list[str]:
    return [selection.files[file] for file in selection.work.inputs_of(selection.tasks.index(task))]


def test_a_task_reads_the_files_of_groups_that_it_needs() -> None:
    selection = selected(grouped())
    assert sorted(read(selection, 4)) == ["p/1", "p/2", "raw/3"]
    assert sorted(selection.files[file] for file in selection.sources) == ["raw/1", "raw/2", "raw/3"]


@pytest.mark.parametrize("done", [(0, 1, 2, 3), (0, 1, 2)])
def test_files_of_groups_that_are_done_are_sent(done: tuple[int, ...]) -> None:
    selection = selected(grouped(), done)
    assert {"p/1", "p/2", "raw/3"} == {selection.files[file] for file in selection.sources}


def test_files_of_a_group_that_die_with_their_node_are_made_again_before_the_task_that_needs_it() -> None:
    store = MemoryStore(selected(grouped()).work, 2)
    store.renew(0)
    store.renew(1)
    store.begin()
    store.owned([0, 1], 0)
    store.complete(0, [(0, 1), (1, 1)])
    assert store.standing_of(4) is TaskStanding.READY
    store.owned([4], 1)
    store.lose(0)
    assert [store.standing_of(task) for task in (0, 1)] == [TaskStanding.READY] * 2


def test_with_shared_files_nothing_waits_for_more_than_in_the_graph() -> None:
    graph = grouped()
    assert list(selected(graph, managed=False).work.waits_for) == list(graph.pending)


def test_files_of_groups_in_a_group_come_back_if_the_run_is_for_it() -> None:
    graph = grouped()
    assert returned(graph, selected(graph), [3], (), NoCalls()) == {"p/1", "p/2", "sum"}
