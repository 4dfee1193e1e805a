"""A recorded run in the simulator: the scheduler itself over the recorded tasks, on one machine or on several nodes."""

from __future__ import annotations

import pytest

from shoal.ledger.records import CategoriesDeclared, NodeLeft, NodeSeen, Record
from shoal.ledger.views.run import RunView
from shoal.ledger.views.waits import TaskWaits
from shoal.sim.what_if import simulate
from shoal.ui.report.data import run_data
from support.views import BEGAN, GIB, diamond, ended, linked, over, planned, started, view_of


def nodes_of(count: int, cores: float = 1.0) -> list[Record]:
    return [NodeSeen(BEGAN, number, f"n{number}", [("cores", round(cores * 10_000))]) for number in range(1, count + 1)]


def on_nodes(*more: Record) -> RunView:
    """Eight tasks of a second, two at a time on two nodes, and one that needs them all."""
    ends = [ended(task, task // 2, task // 2 + 1.0, node=1 + task % 2) for task in range(8)]
    last = ended(8, 4.0, 5.0, node=1)
    needs = linked({8: list(range(8))})
    return view_of(started(9), planned(["a"] * 9), needs, *nodes_of(2), *ends, last, *more, over(5.0))


def test_a_run_without_gaps_is_simulated_as_it_was() -> None:
    view = on_nodes()
    found = simulate(view, TaskWaits(view), 2.0)
    assert found is not None and found.nodes == 2
    assert found.seconds == pytest.approx(5.0, abs=0.05)


def test_on_one_machine_the_time_between_tasks_falls_away() -> None:
    view = diamond()
    found = simulate(view, TaskWaits(view), 2.0)
    assert found is not None and found.nodes == 1
    needs = TaskWaits(view)
    assert needs.seconds.max() < found.seconds < view.last_time - view.origin


def test_what_tasks_declare_holds_them_back_as_it_did() -> None:
    declared = CategoriesDeclared(["a"], [[("cores", 10_000), ("memory", 6 * GIB)]])
    ends = [ended(task, float(task), task + 1.0) for task in range(4)]
    head: list[Record] = [started(4), planned(["a"] * 4)]
    free, held = view_of(*head, *ends, over(4.0)), view_of(*head, declared, *ends, over(4.0))
    found = [simulate(view, TaskWaits(view), 2.0) for view in (free, held)]
    assert [one.seconds for one in found if one is not None] == pytest.approx([2.0, 4.0])


def test_a_cluster_that_changed_on_the_way_is_not_simulated() -> None:
    view = on_nodes(NodeLeft(BEGAN + 2.0, 2))
    assert simulate(view, TaskWaits(view), 2.0) is None


def test_large_runs_are_left_to_simpler_arithmetic() -> None:
    view = on_nodes()
    assert simulate(view, TaskWaits(view), 2.0, most=8) is None
    assert simulate(view, TaskWaits(view), 2.0, most=9) is not None


def test_the_report_says_what_was_simulated() -> None:
    told = run_data(on_nodes(), workflow="w")["replayed"]
    assert told["simulated"]["nodes"] == 2
    assert told["simulated"]["seconds"] == pytest.approx(5.0, abs=0.05)
    assert told["method"] == "list schedule"
