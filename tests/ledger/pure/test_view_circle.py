"""A ledger that has lost the record between two runs: the links of both are in one, and may form a circle."""

from __future__ import annotations

import pytest

from shoal.ledger.records import NodeSeen, Record
from shoal.ledger.views.waits import TaskWaits, critical_path
from shoal.sim import what_if
from shoal.ui.report.data import run_data
from support.views import BEGAN, ended, linked, over, planned, started, view_of

NODES: list[Record] = [NodeSeen(BEGAN, number, f"n{number}", [("cores", 20_000)]) for number in (1, 2)]


def records(*nodes: Record, failed: int = -1) -> list[Record]:
    """Four tasks one after another; the first two need each other, the third needs one of them."""
    ends = [
        ended(task, float(task), task + 1.0, "failed" if task == failed else "ok", node=int(bool(nodes)))
        for task in range(4)
    ]
    links = [linked({1: [0], 2: [1], 3: [2]}), linked({0: [1]})]
    return [started(4), planned(["a"] * 4), *nodes, *links, *ends]


@pytest.mark.parametrize("nodes", [[], NODES], ids=["machine", "cluster"])
@pytest.mark.parametrize("most", [what_if.MOST_SCHEDULED, 1], ids=["scheduled", "bound"])
def test_a_report_says_what_can_be_said_and_ends(
    nodes: list[Record], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "MOST_SCHEDULED", most)
    found = run_data(view_of(*records(*nodes), over(5.0)), workflow="flow.py")
    assert (found["progress"]["done"], found["replayed"]) == (4, None)
    assert [step["task"] for step in found["critical"]["steps"]] == [0, 1, 2, 3], "each task once"


def test_what_a_failure_in_a_circle_stops_is_counted_once() -> None:
    view = view_of(*records(failed=0)[:-3])
    assert view.cannot_run() == 3


def test_the_path_of_a_run_in_progress_is_shown_as_well() -> None:
    view = view_of(*records())
    path = critical_path(view, TaskWaits(view))
    assert path is not None and path.length == 4
