"""A run that was killed: what ran then does not run any more, in the report, on the page and in the metrics alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.ledger.records import NodeSeen, NodeTold, Record, TaskStarted, encode
from shoal.ledger.views.progress import progress
from shoal.ledger.views.tables import node_rows
from shoal.ledger.workspace import Workspace
from shoal.ui.report.data import run_data
from shoal.ui.web.api import metrics
from shoal.ui.web.charts import Chart
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.tasks import list_tasks, task_data
from shoal.ui.web.watch import Watch
from support.views import BEGAN, ended, linked, planned, started, view_of

RUN: list[Record] = [
    started(5, total=7),
    planned(["part", "part", "part", "part", "join"]),
    linked({0: [-1], 1: [-1], 2: [-1], 3: [-1], 4: [0, 1, 2, 3]}),
    ended(0, 0.0, 2.0),
    TaskStarted(1, 1, BEGAN + 1.0, 7, 0.0, 0),
    TaskStarted(2, 1, BEGAN + 2.0, 8, 0.0, 1),
]


def watched(folder: Path, *records: Record) -> Watch:
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records or RUN)))
    watch = Watch(workspace)
    watch.refresh()
    return watch


def test_nothing_runs_and_nothing_is_waited_for() -> None:
    view = view_of(*RUN)
    told = progress(view)
    assert (told.done, told.running, told.waiting, told.left, told.rate) == (1, 0, 4, 0.0, 0.5)
    going = progress(view, BEGAN + 3.0)
    assert (going.running, going.waiting) == (2, 2) and going.left


def test_the_report_says_how_many_were_not_run() -> None:
    found = run_data(view_of(*RUN), workflow="flow.py")
    assert found["summary"][0] == "1 task done, 2 already up to date, 4 not run on one machine in 2 s."
    assert found["run"]["outcome"] == "killed"
    assert "Estimated time remaining" not in " ".join(found["summary"])


def test_the_report_of_a_run_that_goes_on_says_what_runs() -> None:
    found = run_data(view_of(*RUN), workflow="flow.py", now=BEGAN + 3.0)
    assert found["summary"][0].startswith("1 task done, 2 already up to date, 2 running and 2 not started")
    assert "Estimated time remaining:" in " ".join(found["summary"])


def test_a_killed_run_in_which_nothing_ended_names_no_work() -> None:
    found = run_data(view_of(*RUN[:3], *RUN[4:]), workflow="flow.py")
    assert not [sentence for sentence in found["summary"] if "Most of the work" in sentence]


def test_page_tasks_graph_and_metrics_agree(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    quick, slow, text = quick_parts(watch), slow_parts(watch), metrics(watch)
    assert (quick["progress"]["running"], quick["progress"]["waiting"], quick["running"]) == (0, 4, [])
    assert [node["running"] for node in slow["graph"]["nodes"]] == [0, 0]
    assert [node["state"] for node in slow["graph"]["tasks"]["nodes"]] == ["done", *["not run"] * 4]
    assert list_tasks(watch, state="running", category="", search="", after=-1, limit=9)["tasks"] == []
    one = task_data(watch, 1)
    assert one is not None and (one["state"], one["running"]) == ("not run", None)
    assert 'shoal_tasks{state="running"} 0\n' in text and 'shoal_tasks{state="not run"} 4\n' in text
    assert 'shoal_left_seconds{bound="most"} 0\n' in text


def test_a_run_in_progress_is_shown_with_its_running_tasks(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    watch.live = True
    assert [node["running"] for node in slow_parts(watch)["graph"]["nodes"]] == [2, 0]
    assert 'shoal_tasks{state="running"} 2\n' in metrics(watch)
    one = task_data(watch, 1)
    assert one is not None and one["state"] == "running" and one["running"] is not None


def test_an_attempt_under_way_is_drawn_with_its_number(tmp_path: Path) -> None:
    again: list[Record] = [*RUN, ended(1, 1.0, 2.5, "failed", final=False), TaskStarted(1, 2, BEGAN + 3.0, 9, 0.0, 0)]
    watch = watched(tmp_path, *again)
    watch.live = True
    bars = Chart(watch).window(0.0, 9.0, 64, 100)
    assert sorted(zip(bars["task"], bars["attempt"], strict=True)) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    for now in (None, BEGAN + 4.0):
        bars = run_data(view_of(*again), workflow="flow.py", now=now)["gantt"]
        assert sorted(zip(bars["name"], bars["attempt"], strict=True)) == [("t0", 1), ("t1", 1), ("t1", 2), ("t2", 1)]
    assert run_data(view_of(*RUN), workflow="flow.py")["gantt"]["attempt"] == []


def test_what_nodes_said_last_is_not_what_runs_on_them() -> None:
    told = NodeTold(BEGAN + 2, 1, running=3, cores=30_000)
    view = view_of(started(5), planned(["a"] * 5), NodeSeen(BEGAN, 1, "n1", [("cores", 40_000)]), told)
    assert (progress(view).running, progress(view, BEGAN + 3).running) == (0, 3)
    assert node_rows(view)[0].running is None
    assert progress(view).utilisation == pytest.approx(0.0)
