"""What the live page is told of a run: parts and their versions, the graph by category, tasks, charts and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.workspace import Workspace
from shoal.ledger.records import NetBegun, NetMarked, Record, TaskStarted, ThrottleDecided, encode
from shoal.view.graph import Needs
from shoal.view.timeline import timeline
from shoal.web.api import Api
from shoal.web.board import Board
from shoal.web.chart import Chart
from shoal.web.metrics import metrics
from shoal.web.parts import FINEST, MOST_BUCKETS, quick_parts, slow_parts, steady_categories, width_of
from shoal.web.tasks import list_tasks, output_of, states_of, task_data
from shoal.web.watch import Watch
from support.views import BEGAN, ended, linked, over, planned, started

HOSTILE = '</script><img src=x onerror="alert(1)">\n\\é'
RUN: list[Record] = [
    started(5),
    planned(["first", "long", "long", HOSTILE, "last"]),
    linked({0: [-1], 1: [0], 2: [0], 3: [1, 2], 4: [3]}),
    ended(0, 1.0, 3.0),
    ended(2, 3.0, 4.0, "failed", final=False, message="exit status 1"),
    ended(1, 3.0, 7.0, memory=1 << 20),
    ended(2, 4.0, 5.0, attempt=2),
    ended(3, 8.0, 9.0, "failed", message=HOSTILE),
]


def watched(folder: Path, *records: Record) -> Watch:
    """A workflow in a folder whose ledger has these records, read once."""
    (folder / "flow.py").write_text("")
    workspace = Workspace(str(folder / "flow.py"))
    workspace.make()
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    watch = Watch(workspace)
    watch.refresh()
    return watch


def timeline_of(parts: dict[str, Any], name: str) -> list[float]:
    """A column of all buckets, put together again."""
    found: list[float] = []
    number = 0
    while (part := parts.get(f"time.{number}")) is not None:
        found += part[name] or [0] * len(part["done"])
        number += 1
    return found


# ---- the board -------------------------------------------------------------------------------------------------------


def test_who_comes_back_gets_only_what_has_changed_since() -> None:
    board = Board()
    assert board.publish({"a": 1, "b": [2]}) == 2
    version, parts = board.since(0)
    assert json.loads(parts) == {"a": 1, "b": [2]}
    assert board.publish({"a": 1, "b": [3]}) == 1
    assert json.loads(board.since(version)[1]) == {"b": [3]}
    assert board.publish({"a": 1}) == 0, "what is not named stays as it is"
    assert board.version_of(board.ident(version)) == version
    assert board.version_of("other-7") == board.version_of("nonsense") == board.version_of(board.epoch + "-x") == 0


def test_a_part_that_is_gone_is_told_once_and_not_to_newcomers() -> None:
    board = Board()
    board.publish({"rows.0": [1], "rows.1": [2], "other": 1})
    version, _ = board.since(0)
    board.publish({"rows.0": [1]}, gone=("rows",))
    assert json.loads(board.since(version)[1]) == {"rows.1": None}
    assert json.loads(board.since(0)[1]) == {"rows.0": [1], "other": 1}
    assert board.publish({"rows.0": [1]}, gone=("rows",)) == 0


def test_waiting_ends_when_something_new_comes_or_nothing_will() -> None:
    board = Board()
    board.publish({"a": 1})
    assert board.wait(0, 30.0) == 1
    board.close()
    assert board.wait(1, 30.0) == 1


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_a_run_is_told_with_its_progress_categories_causes_and_graph(tmp_path: Path) -> None:
    watch = watched(tmp_path, *RUN, over(10.0, "failed"))
    quick, slow = quick_parts(watch), slow_parts(watch)
    assert quick["run"]["outcome"] == "failed" and not quick["run"]["live"]
    assert (quick["progress"]["done"], quick["progress"]["failed"], quick["progress"]["waiting"]) == (3, 1, 1)
    assert [row["name"] for row in slow["categories.0"]] == ["long", "first", HOSTILE, "last"]
    graph = slow["graph"]
    assert [(node["name"], node["done"], node["failed"]) for node in graph["nodes"]] == [
        *(("first", 1, 0), ("long", 2, 0), (HOSTILE, 0, 1), ("last", 0, 0))
    ]
    assert graph["edges"] == [[0, 1, 2], [1, 2, 2], [2, 3, 1]]
    assert sum(cause["attempts"] for cause in slow["failures"]) == 2
    assert [step["name"] for step in slow["critical"]["steps"]] == ["t0", "t1", "t3"]
    assert timeline_of(slow, "done")[-1] == 3
    assert sum(timeline_of(slow, "running")) * slow["time"]["width"] == pytest.approx(9.0)


def test_without_a_ledger_there_is_nothing_to_tell_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("")
    watch = Watch(Workspace(str(tmp_path / "flow.py")))
    watch.refresh()
    assert quick_parts(watch)["run"]["outcome"] == "never run"
    assert slow_parts(watch) == {}
    assert metrics(watch) == "# EOF\n"


@pytest.mark.parametrize("seconds", [0.001, 1.0, 3.75, 3.76, 3600.0, 1e7])
def test_buckets_double_when_there_are_too_many(seconds: float) -> None:
    width = width_of(seconds)
    assert seconds / width <= MOST_BUCKETS
    assert width == FINEST or seconds / width > MOST_BUCKETS / 2


def test_colours_of_categories_do_not_change_as_a_run_goes_on(tmp_path: Path) -> None:
    early = slow_parts(watched(tmp_path, *RUN[:4]))
    later = slow_parts(watched(tmp_path, *RUN))
    assert early["time"]["shown"] == later["time"]["shown"] == ["first", "long", HOSTILE, "last"]


def test_old_buckets_are_not_sent_again_when_a_run_goes_on(tmp_path: Path) -> None:
    head: list[Record] = [started(2000), planned(["a"] * 2000)]
    ends: list[Record] = [ended(task, 0.1 * task, 0.1 * task + 0.1) for task in range(2000)]
    board = Board()
    board.publish(slow_parts(watched(tmp_path, *head, *ends[:1500])))
    version, whole = board.since(0)
    board.publish(slow_parts(watched(tmp_path, *head, *ends[:1510])))
    changed = json.loads(board.since(version)[1])
    assert "time.0" not in changed and [name for name in changed if name.startswith("time.")]
    assert len(board.since(version)[1]) < len(whole) / 2


def test_the_marking_of_a_net_is_told(tmp_path: Path) -> None:
    mark = NetMarked(BEGAN + 1, {"in": 3}, {"work": 1}, {"work": 2}, [HOSTILE])
    net = quick_parts(watched(tmp_path, started(0), NetBegun("mill", "d", None), mark))["net"]
    assert net == {
        "name": "mill",
        "tokens": {"in": 3},
        "running": {"work": 1},
        "done": {"work": 2},
        "problems": [HOSTILE],
    }


def test_the_throttle_is_told_with_its_last_decision(tmp_path: Path) -> None:
    decided = [
        ThrottleDecided(BEGAN + at, "", "first", at, at, 5, "growing", "disk", 0.5, 2.0, f"at {at}") for at in (1, 2)
    ]
    (curve,) = slow_parts(watched(tmp_path, *RUN, *decided))["throttle"]
    assert (curve["state"], curve["reason"], len(curve["points"])) == ("growing", "at 2", 2)


def test_another_ledger_in_the_place_of_the_first_is_read_anew(tmp_path: Path) -> None:
    watch = watched(tmp_path, *RUN)
    ledger = Path(watch.workspace.ledger)
    other = ledger.with_name("other")
    other.write_bytes(encode(started(1)) + encode(planned(["x"])))
    other.rename(ledger)
    assert watch.has_grown() and watch.refresh()
    assert watch.view.categories == ["x"]


# ---- tasks, chart, metrics -------------------------------------------------------------------------------------------


def test_tasks_are_listed_by_state_category_and_name(tmp_path: Path) -> None:
    view = watched(tmp_path, *RUN, TaskStarted(4, 1, BEGAN + 9.0, 77, 0.0, 0)).view

    def names(**asked: Any) -> list[str]:
        wanted: dict[str, Any] = {"state": "", "category": "", "search": "", "after": -1, "limit": 50} | asked
        return [row["name"] for row in list_tasks(view, **wanted)["tasks"]]

    assert names() == ["t0", "t1", "t2", "t3", "t4"]
    assert names(state="failed") == ["t3"] and names(state="running") == ["t4"] and names(state="waiting") == []
    assert names(category="long") == ["t1", "t2"] and names(category="absent") == []
    assert names(search="T3") == ["t3"]
    first = list_tasks(view, state="", category="", search="", after=-1, limit=2)
    assert (first["next"], first["matching"]) == (1, 5)
    assert names(after=1) == ["t2", "t3", "t4"]


def test_a_task_is_told_with_its_attempts_and_neighbours(tmp_path: Path) -> None:
    watch = watched(tmp_path, *RUN)
    found = task_data(watch, 2)
    assert found is not None
    assert [(a["attempt"], a["outcome"], a["message"]) for a in found["attempts"]] == [
        *((1, "failed", "exit status 1"), (2, "ok", ""))
    ]
    assert [row["name"] for row in found["needs"]["tasks"]] == ["t0"]
    assert [(row["name"], row["state"]) for row in found["needed_by"]["tasks"]] == [("t3", "failed")]
    assert task_data(watch, 99) is None and task_data(watch, -1) is None
    assert states_of(watch.view).tolist() == [2, 2, 2, 3, 0]


def test_the_output_of_an_attempt_is_found_in_the_run_that_is_shown(tmp_path: Path) -> None:
    import msgspec

    wrote = msgspec.structs.replace(ended(0, 1.0, 3.0), output_at=3, output_size=4)
    watch = watched(tmp_path, started(1), planned(["a"]), ended(0, 0.0, 1.0), started(1), planned(["a"]), wrote)
    Path(watch.workspace.output).write_bytes(b"abcDEFGhij")
    assert output_of(watch.workspace, watch, 0, None) == b"DEFG"
    assert output_of(watch.workspace, watch, 0, 7) is None
    assert output_of(watch.workspace, watch, 5, None) is None


def test_a_window_of_the_chart_has_bars_or_cells(tmp_path: Path) -> None:
    chart = Chart(watched(tmp_path, *RUN))
    bars = chart.window(2.5, 3.5, 64, 100)
    assert (bars["kind"], bars["name"]) == ("bars", ["t0", "t2", "t1"])
    assert bars["bad"] == [1]
    cells = chart.window(0.0, 9.0, 1, 90)
    assert (cells["kind"], cells["pixels"], len(cells["rows"])) == ("cells", 90, 1)


def test_metrics_are_in_the_openmetrics_format_whatever_names_contain(tmp_path: Path) -> None:
    text = metrics(watched(tmp_path, *RUN, over(10.0)))
    lines = text.splitlines()
    assert lines[-1] == "# EOF" and text.endswith("\n")
    assert 'shoal_tasks{state="done"} 3' in lines
    escaped = HOSTILE.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert f'shoal_attempts_total{{category="{escaped}",outcome="failed"}} 1' in lines
    kinds = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    for line in lines:
        if not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert name in kinds or name.removesuffix("_total").removesuffix("_info") in kinds


def test_what_is_asked_wrongly_gets_a_sentence(tmp_path: Path) -> None:
    api = Api(watched(tmp_path, *RUN).workspace)
    try:
        for path, query, status in [
            *(
                ("absent", {}, 404),
                ("tasks/99", {}, 404),
                ("tasks", {"state": "odd"}, 400),
                ("tasks", {"after": "x"}, 400),
            ),
            *(("gantt", {"from": "nan"}, 400), ("gantt", {"from": "5", "to": "4"}, 400), ("net", {}, 404)),
        ]:
            reply = api.answer(path, query)
            assert reply.status == status
            assert len(json.loads(reply.body)["error"]) > 10
        assert json.loads(api.answer("", {}).body)["version"] == 1
        assert json.loads(api.answer("run", {}).body)["parts"]["progress"]["done"] == 3
    finally:
        api.refresher.stop()
        api.refresher.join(30.0)


def test_tasks_under_way_are_not_counted_as_ready_and_are_taken_to_use_what_others_did(tmp_path: Path) -> None:
    running = TaskStarted(1, 1, BEGAN + 3.0, 7, 0.0, 0)
    view = watched(tmp_path, *RUN[:3], ended(0, 1.0, 3.0), ended(2, 3.0, 4.0, memory=1 << 20), running).view
    over_time = timeline(view, steady_categories(view), Needs(view), until=BEGAN + 8.0, window=(7.0, 8.0), buckets=1)
    assert over_time.running.tolist() == [1.0]
    assert over_time.ready.tolist() == [0.0]
    assert over_time.memory.sum() == 1 << 20
