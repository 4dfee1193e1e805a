"""The table of a run's nodes: their queues while it is in progress, and transfers between them."""

from __future__ import annotations

import msgspec
import pytest

from shoal.cluster.agent.messages import ClusterNodeFacts
from shoal.cluster.agent.task_files import ReadCounters
from shoal.cluster.participants import standing
from shoal.ledger.records import NodeLeft, NodeSeen, NodeTold, Record, TaskStarted, decode
from shoal.ledger.views.pace import LiveCounters
from shoal.ledger.views.progress import progress
from shoal.ledger.views.tables import cores_held, node_rows, standing_rows, transfer_totals
from shoal.ledger.views.waits import TaskWaits
from shoal.ui.report.data import files_data
from shoal.ui.web.api import node_families
from support.views import BEGAN, GIB, ended, linked, over, planned, started, view_of

CORES = [("cores", 40_000)]
BUSY = NodeTold(BEGAN + 4, 1, 700, 3, 2, 7, 21, 900, 4, 1, 5, 9, 35_000, 0.25)
CLUSTER: list[Record] = [
    started(40),
    planned(["a"] * 40),
    NodeSeen(BEGAN, 1, "n1", CORES),
    NodeSeen(BEGAN, 2, "n2", CORES),
    ended(0, 0.0, 4.0, node=1),
    BUSY,
]


def test_a_node_of_a_cluster_stands_as_it_said_last() -> None:
    first, second = node_rows(view_of(*CLUSTER), BEGAN + 5)
    assert (first.running, first.wait, first.local, first.shared) == (4, 1, 5, 9)
    assert (first.cores_held, first.memory_used) == (3.5, 0.25)
    assert (first.fetched, first.fetched_files, first.hits, first.hit_bytes) == (700, 7, 21, 900)
    assert (second.running, second.wait, second.cores_held) == (None, None, None)


@pytest.mark.parametrize("last", [over(6.0), NodeLeft(BEGAN + 5, 1)])
def test_the_state_of_a_node_is_not_shown_after_the_run_or_the_node_has_ended(last: Record) -> None:
    first = node_rows(view_of(*CLUSTER, last), BEGAN + 6)[0]
    assert (first.running, first.shared, first.cores_held) == (None, None, None)
    assert (first.fetched, first.stolen, first.pushed) == (700, 3, 2)


def test_what_nodes_say_is_quick_to_tell_without_a_look_at_attempts() -> None:
    rows = standing_rows(view_of(*CLUSTER))
    assert [row["name"] for row in rows] == ["n1", "n2"]
    assert (rows[0]["running"], rows[0]["local"], rows[0]["hits"]) == (4, 5, 21)
    assert "running" not in rows[1] and rows[1]["fetched"] == 0
    assert standing_rows(view_of(started(1), planned(["a"]))) == []


def test_tasks_that_run_on_a_cluster_count_as_running() -> None:
    told = progress(view_of(*CLUSTER), BEGAN + 5)
    assert (told.done, told.running, told.waiting) == (1, 4, 35)


def test_all_nodes_together_have_moved_what_each_of_them_has() -> None:
    view = view_of(*CLUSTER, NodeTold(BEGAN + 5, 2, 50, 1, 0, 2, 4, 10))
    found = transfer_totals(view)
    assert (found.fetched, found.fetched_files, found.hits, found.hit_bytes) == (750, 9, 25, 910)
    assert (found.stolen, found.pushed) == (4, 2)
    assert files_data(view)["hits"] == 25


def test_of_one_machine_the_records_tell_what_waits_is_ready_and_runs() -> None:
    view = view_of(
        started(5),
        planned(["a", "b", "b", "c", "c"]),
        linked({0: [-1], 1: [0], 2: [0], 3: [1, 2], 4: [-1]}),
        ended(0, 0.0, 1.0),
        TaskStarted(1, 1, BEGAN + 1, 7, 0.0, 0),
    )
    (row,) = node_rows(view, BEGAN + 2, TaskWaits(view))
    assert (row.running, row.local, row.wait, row.shared, row.cores_held) == (1, 2, 1, None, 1.0)
    (row,) = node_rows(view, BEGAN + 2)
    assert (row.running, row.local, row.wait) == (1, None, 3)


def test_a_task_whose_need_is_tried_again_is_not_ready() -> None:
    view = view_of(
        started(2),
        planned(["a", "b"]),
        linked({0: [-1], 1: [0]}),
        ended(0, 0.0, 1.0, "failed", final=False, message="exit status 1"),
    )
    assert not TaskWaits(view).ready(view).any()


def test_a_ledger_of_an_earlier_version_says_nothing_of_queues() -> None:
    earlier = msgspec.msgpack.encode(["told", BEGAN + 4, 1, 700, 3, 2])
    record = decode(earlier)
    assert record == NodeTold(BEGAN + 4, 1, 700, 3, 2)
    first = node_rows(view_of(*CLUSTER[:-1], record), BEGAN + 5)[0]
    assert (first.stolen, first.hits, first.running) == (3, 0, None)


def test_tasks_that_were_handed_over_together_and_have_not_begun_stand_in_the_local_queue() -> None:
    note = ClusterNodeFacts(
        running=9,
        shared=4,
        local=2,
        held=17,
        up_seconds=3.0,
        run="r",
        places=3,
        fetching=1,
        resting=2,
        cores_held=30_000,
    )
    running, wait, local, shared, cores, _ = standing(note)
    assert (running, wait, local, shared, cores) == (2, 3, 8, 4, 30_000)
    assert standing(ClusterNodeFacts())[0] is None


def test_the_first_reading_of_a_file_that_was_fetched_is_no_hit() -> None:
    reads = ReadCounters()
    reads.read("made here", 10)
    reads.arrived("far")
    reads.read("far", 100)
    reads.read("far", 100)
    assert (reads.fetched, reads.hits, reads.hit_bytes) == (1, 2, 110)


def test_metrics_of_nodes_leave_out_what_is_not_known() -> None:
    text = "\n".join(node_families([{"name": 'a"\n', "cores": 4.0, "running": None, "wait": 2, "stolen": 1}]))
    assert 'shoal_node_cores{node="a\\"\\n"} 4' in text
    assert 'shoal_node_queued_tasks{node="a\\"\\n",queue="wait"} 2' in text
    assert 'shoal_node_stolen_tasks_total{node="a\\"\\n"} 1' in text
    assert "running" not in text and "hits" not in text


def test_cores_that_are_held_now_are_those_of_running_tasks_or_what_nodes_say() -> None:
    alone: list[Record] = [started(3), planned(["a"] * 3), TaskStarted(0, 1, BEGAN, 1, 0.0, 0)]
    view = view_of(*alone)
    assert cores_held(view) == 1.0
    view.live_counters = LiveCounters(1, 2, {})
    assert cores_held(view) == 2.0
    nodes: list[Record] = [NodeSeen(BEGAN, number, f"n{number}", [("cores", 40_000)]) for number in (1, 2)]
    told: list[Record] = [NodeTold(BEGAN, 1, running=2, cores=15_000), NodeTold(BEGAN, 2, running=1, cores=10_000)]
    assert cores_held(view_of(*alone[:2], *nodes, *told)) == 2.5
    assert cores_held(view_of(*alone[:2], *nodes, *told, NodeLeft(BEGAN + 1, 1))) == 1.0


def test_the_most_memory_is_that_of_attempts_that_ran_together_and_does_not_become_less() -> None:
    ends = [ended(0, 0, 2, memory=3 * GIB), ended(1, 1, 3, memory=2 * GIB), ended(2, 3, 9, memory=4 * GIB)]
    view = view_of(started(4), planned(["a"] * 4), *ends)
    assert view.most_memory() == 5 * GIB
    view.take(ended(3, 8.5, 10, memory=2 * GIB))
    assert view.most_memory() == 6 * GIB
    assert view_of(started(1), planned(["a"])).most_memory() == 0
