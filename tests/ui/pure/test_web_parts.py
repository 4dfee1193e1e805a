"""What the live page is told of a run: parts and their versions, the graph by category, tasks, charts and metrics."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import (
    NetBegun,
    NetMarked,
    NodeSeen,
    Record,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
    encode,
)
from shoal.ledger.views.timeline import shown_categories, timeline
from shoal.ledger.views.waits import TaskWaits
from shoal.ledger.workspace import Workspace
from shoal.ui.web.api import Api, metrics
from shoal.ui.web.board import Board
from shoal.ui.web.charts import MOST_TASKS, Chart
from shoal.ui.web.run_page import FINEST, MOST_BUCKETS, quick_parts, slow_parts, slow_steps, width_of
from shoal.ui.web.tasks import list_tasks, output_of, states_of, task_data
from shoal.ui.web.watch import Watch
from support.openmetrics import samples
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
    assert (quick["progress"]["done"], quick["progress"]["failed"], quick["progress"]["cannot_run"]) == (3, 1, 1)
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


def test_a_large_run_is_told_in_steps_and_may_grow_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.ui.web.run_page.MOST_LINKED", 3)
    watch = watched(tmp_path, *RUN)
    at_once = slow_parts(watch)
    steps = slow_steps(watch)
    first = next(steps)
    assert set(first) < set(at_once) and first["time"]["total"] == 5
    watch.view.take(ended(4, 9.0, 9.5))
    later = {name: part for step in steps for name, part in step.items()}
    assert set(first) | set(later) == set(at_once) and not set(first) & set(later)
    assert [row["done"] for row in later["categories.0"]] == [2, 1, 0, 1]


def test_few_tasks_are_drawn_one_by_one_through_those_that_only_group_others(tmp_path: Path) -> None:
    records: list[Record] = [
        started(4),
        planned(["a", "a", "b", "c"]),
        linked({0: [-1], 1: [-1], 2: [0], 9: [1, 2], 8: [9], 3: [8]}),
    ]
    watch = watched(tmp_path, *records, ended(0, 1.0, 2.0), TaskStarted(2, 1, BEGAN + 2.0, 7, 0.0, 0))
    watch.live = True
    tasks = slow_parts(watch)["graph"]["tasks"]
    assert [(node["name"], node["category"], node["state"]) for node in tasks["nodes"]] == [
        *(("t0", "a", "done"), ("t1", "a", "ready"), ("t2", "b", "running"), ("t3", "c", "waiting"))
    ]
    assert tasks["edges"] == [[0, 2], [1, 3], [2, 3]]
    watch.live = False
    assert slow_parts(watch)["graph"]["tasks"]["nodes"][3]["state"] == "not run"


@pytest.mark.parametrize(("count", "drawn"), [(MOST_TASKS, True), (MOST_TASKS + 1, False), (3 * MOST_TASKS, False)])
def test_many_tasks_collapse_to_categories(tmp_path: Path, count: int, drawn: bool) -> None:
    chain = linked({task: [task - 1] for task in range(count)})
    graph = slow_parts(watched(tmp_path, started(count), planned(["a"] * count), chain))["graph"]
    assert (graph["tasks"] is not None) == drawn and graph["nodes"][0]["planned"] == count


def test_lines_that_nobody_could_follow_are_not_drawn(tmp_path: Path) -> None:
    half = MOST_TASKS // 2
    dense = linked({task: range(half if task >= half else 0) for task in range(2 * half)})
    graph = slow_parts(watched(tmp_path, started(2 * half), planned(["a"] * 2 * half), dense))["graph"]
    assert graph["tasks"] is None


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
    watch = watched(tmp_path, started(0), NetBegun("mill", "d", None), mark)
    assert quick_parts(watch)["net"]["running"] == {}, "nobody writes this ledger any more"
    watch.live = True
    assert quick_parts(watch)["net"] == {
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
    before = watch.version
    assert watch.has_grown()
    watch.refresh()
    assert watch.version > before
    assert watch.view.categories == ["x"]


# ---- tasks, chart, metrics -------------------------------------------------------------------------------------------


def test_tasks_are_listed_by_state_category_and_name(tmp_path: Path) -> None:
    watch = watched(tmp_path, *RUN, TaskStarted(4, 1, BEGAN + 9.0, 77, 0.0, 0))
    watch.live = True

    def names(**asked: Any) -> list[str]:
        wanted: dict[str, Any] = {"state": "", "category": "", "search": "", "after": -1, "limit": 50} | asked
        return [row["name"] for row in list_tasks(watch, **wanted)["tasks"]]

    assert names() == ["t0", "t1", "t2", "t3", "t4"]
    assert names(state="failed") == ["t3"] and names(state="running") == ["t4"] and names(state="not started") == []
    assert names(category="long") == ["t1", "t2"] and names(category="absent") == []
    assert names(search="T3") == ["t3"]
    first = list_tasks(watch, state="", category="", search="", after=-1, limit=2)
    assert (first["next"], first["matching"]) == (1, 5)
    assert names(after=1) == ["t2", "t3", "t4"]


def test_what_a_run_that_is_over_has_not_run_is_called_so_everywhere(tmp_path: Path) -> None:
    watch = watched(tmp_path, *RUN)  # nobody writes this ledger any more
    for state in ("not run", "not started"):
        found = list_tasks(watch, state=state, category="", search="", after=-1, limit=50)
        assert [(row["name"], row["state"]) for row in found["tasks"]] == [("t4", "not run")]
    one = task_data(watch, 4)
    assert one is not None and one["state"] == "not run"
    told = metrics(watch)
    assert 'shoal_tasks{state="not run"} 1\n' in told and "not started" not in told


def test_what_needs_a_failed_task_is_over_and_not_waited_for(tmp_path: Path) -> None:
    links = linked({1: [0], 2: [1], 3: [1], 4: []})
    failed = ended(0, 0.0, 1.0, "failed", message="exit status 1")
    told = quick_parts(watched(tmp_path, started(5), planned(["a"] * 5), links, failed))["progress"]
    assert (told["failed"], told["cannot_run"], told["waiting"]) == (1, 3, 1)


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
    assert states_of(watch).tolist() == [2, 2, 2, 3, 0]


def test_the_output_of_an_attempt_is_found_in_the_run_that_is_shown(tmp_path: Path) -> None:
    import msgspec

    wrote = msgspec.structs.replace(ended(0, 1.0, 3.0), output_at=3, output_size=4)
    watch = watched(tmp_path, started(1), planned(["a"]), ended(0, 0.0, 1.0), started(1), planned(["a"]), wrote)
    Path(watch.workspace.output).write_bytes(b"abcDEFGhij")
    assert output_of(watch.workspace, watch, 0, None) == b"DEFG"
    assert output_of(watch.workspace, watch, 0, 7) is None
    assert output_of(watch.workspace, watch, 5, None) is None


def test_what_a_killed_run_left_is_not_taken_from_the_run_after_it(tmp_path: Path) -> None:
    """Both ran their tasks in the same slots."""
    killed: list[Record] = [started(1), planned(["a"]), TaskStarted(0, 1, BEGAN, 7, 0.0, 0)]
    workspace = watched(tmp_path, *killed).workspace
    Path(workspace.running).mkdir(exist_ok=True)
    Path(workspace.running, "0").write_bytes(b"written")

    def output_of_first() -> bytes | None:
        first = Watch(workspace, 1)
        first.refresh()
        return output_of(workspace, first, 0, None)

    assert output_of_first() == b"written"
    watched(tmp_path, *killed, *killed)
    assert output_of_first() is None


def test_a_window_of_the_chart_has_bars_or_cells(tmp_path: Path) -> None:
    chart = Chart(watched(tmp_path, *RUN))
    bars = chart.window(2.5, 3.5, 64, 100)
    assert (bars["kind"], bars["name"]) == ("bars", ["t0", "t2", "t1"])
    assert bars["bad"] == [1]
    cells = chart.window(0.0, 9.0, 1, 90)
    assert (cells["kind"], cells["pixels"], len(cells["rows"])) == ("cells", 90, 1)


def test_a_window_of_one_node_has_its_slots_only(tmp_path: Path) -> None:
    nodes = [NodeSeen(BEGAN, number, f"n{number}", [("cores", 20_000)]) for number in (1, 2)]
    ends = [ended(task, 0.0 + task / 10, 1.0 + task / 10, node=1 + task % 2) for task in range(6)]
    chart = Chart(watched(tmp_path, started(6), planned(["a"] * 6), *nodes, *ends))
    whole, second = chart.window(0.0, 2.0, 64, 50), chart.window(0.0, 2.0, 64, 50, 2)
    assert (
        second["rows"] == ["n2 · 1", "n2 · 2", "n2 · 3"] and second["task"] == [1, 3, 5] and second["row"] == [0, 1, 2]
    )
    assert [whole["row"][whole["task"].index(task)] - 3 for task in second["task"]] == second["row"]
    pictures = [b64decode(chart.window(0.0, 2.0, rows, 50, node)["cells"]) for rows, node in ((1, 1), (1, 2))]
    assert b"".join(pictures) == b64decode(chart.window(0.0, 2.0, 2, 50)["cells"])


def test_names_are_found_by_a_part_in_whatever_letters(tmp_path: Path) -> None:
    plan = [TasksPlanned([0, 1], ["Apple", "pear"], ["a", "a"]), TasksPlanned([2, 3], ["Ärger", "appl"], ["a", "a"])]
    watch = watched(tmp_path, started(4), *plan)

    def search(part: str) -> list[str]:
        found = list_tasks(watch, state="", category="", search=part, after=-1, limit=50)
        return [row["name"] for row in found["tasks"]]

    assert (search("APP"), search("ärg"), search("pear"), search("z")) == (["Apple", "appl"], ["Ärger"], ["pear"], [])


def test_metrics_are_in_the_openmetrics_format_whatever_names_contain(tmp_path: Path) -> None:
    text = metrics(watched(tmp_path, started(5, total=9), *RUN[1:], over(10.0)))
    told = samples(text)
    assert told["shoal_tasks"][("state", "done"),] == 3
    assert told["shoal_tasks"][("state", "up to date"),] == 4
    assert told["shoal_attempts_total"][("category", HOSTILE), ("outcome", "failed")] == 1


def test_what_is_asked_wrongly_gets_a_sentence(tmp_path: Path) -> None:
    api = Api(watched(tmp_path, *RUN).workspace)
    try:
        for path, query, status in [
            *(
                ("absent", {}, 404),
                ("tasks/99", {}, 404),
                ("tasks", {"state": "odd"}, 400),
                ("tasks", {"after": "x"}, 400),
                ("tasks", {"limit": "-1"}, 400),
                ("tasks", {"limit": "0"}, 400),
                ("tasks", {"after": "-2"}, 400),
                ("gantt", {"rows": "0"}, 400),
                ("tasks/0/output", {"attempt": "-1"}, 400),
            ),
            *(("gantt", {"from": "nan"}, 400), ("gantt", {"from": "5", "to": "4"}, 400), ("net", {}, 404)),
        ]:
            reply = api.answer(path, query)
            assert reply.status == status
            assert len(json.loads(reply.body)["error"]) > 10
        assert api.answer("tasks", {"limit": "1000000"}).status == 200, "as many as there are at once"
        assert json.loads(api.answer("", {}).body)["version"] == 1
        assert json.loads(api.answer("run", {}).body)["parts"]["progress"]["done"] == 3
    finally:
        api.refresher.stop()
        api.refresher.join(30.0)


def test_of_the_last_run_it_is_said_why_also_if_it_is_asked_for_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.ui.web.api.ask_why", lambda workspace, name: {"text": "it is done"})
    first: list[Record] = [*RUN, over(10.0)]
    api = Api(watched(tmp_path, *first).workspace, 1)
    try:
        assert [api.answer(path, {}).status for path in ("why", "tasks/0/why")] == [200, 200]
        watched(tmp_path, *first, *RUN)
        assert [api.answer(path, {}).status for path in ("why", "tasks/0/why")] == [400, 400]
    finally:
        api.refresher.stop()
        api.refresher.join(30.0)


def test_tasks_under_way_are_not_counted_as_ready_and_are_taken_to_use_what_others_did(tmp_path: Path) -> None:
    running = TaskStarted(1, 1, BEGAN + 3.0, 7, 0.0, 0)
    view = watched(tmp_path, *RUN[:3], ended(0, 1.0, 3.0), ended(2, 3.0, 4.0, memory=1 << 20), running).view
    over_time = timeline(view, shown_categories(view), TaskWaits(view), until=BEGAN + 8.0, window=(7.0, 8.0), buckets=1)
    assert over_time.running.tolist() == [1.0]
    assert over_time.ready.tolist() == [0.0]
    assert over_time.memory.sum() == 1 << 20
