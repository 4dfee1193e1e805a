"""The critical path, what would have been if, the sentences, and the data that pages are made of."""

from __future__ import annotations

import json
from array import array

import msgspec
import pytest

from shoal.core.quantities import count, show_seconds, show_share
from shoal.ledger.records import CategoriesDeclared, TasksLinked, TaskStarted, ThrottleDecided
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import shown_categories, timeline
from shoal.ledger.views.waits import TaskWaits, critical_path
from shoal.sim.what_if import BOUND, SCHEDULE, Replayed, Supposition, replay
from shoal.ui.report.data import run_data, short
from shoal.ui.report.page import embedded, page
from support.views import BEGAN, GIB, diamond, ended, linked, over, planned, started, view_of

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


def replayed(view: RunView) -> Replayed:
    needs = TaskWaits(view)
    found = replay(view, needs, timeline(view, shown_categories(view), needs))
    assert found is not None
    return found


def test_the_critical_path_goes_through_the_tasks_that_ended_last() -> None:
    view = diamond()
    path = critical_path(view, TaskWaits(view))
    assert path is not None
    assert [step.name for step in path.steps] == ["t0", "t1", "t3"]
    assert [step.waited for step in path.steps] == pytest.approx([1.0, 0.0, 1.0])
    assert (path.ran, path.waited) == pytest.approx((7.0, 2.0))
    name, tasks, spent = path.by_category[0]
    assert (name, tasks) == ("long", 1) and spent == pytest.approx(4.0)
    assert path.done == 1.0


def test_the_path_goes_through_groups_that_run_nothing() -> None:
    view = view_of(
        started(2),
        planned(["a", "a"]),
        linked({0: [-1], 1: [9], 9: [8], 8: [0]}),
        ended(0, 0.0, 2.0),
        ended(1, 3.0, 4.0),
        over(4.0),
    )
    needs = TaskWaits(view)
    path = critical_path(view, needs)
    assert path is not None and [step.task for step in path.steps] == [0, 1]
    assert needs.ready_at()[needs.tasks.tolist().index(1)] == pytest.approx(2.0)


def test_a_need_that_was_up_to_date_holds_nothing_up() -> None:
    view = view_of(started(1), planned(["a"]), linked({0: [5]}), ended(0, 1.0, 2.0), over(2.0))
    path = critical_path(view, TaskWaits(view))
    assert path is not None and path.length == 1


def test_a_long_chain_is_told_in_part_and_summed_up_whole() -> None:
    tasks = 2000
    chain = {task: [task - 1] for task in range(1, tasks)}
    ends = [ended(task, task * 1.0, task + 0.5) for task in range(tasks)]
    view = view_of(started(tasks), planned(["a"] * tasks), linked(chain), *ends, over(float(tasks)))
    path = critical_path(view, TaskWaits(view))
    assert path is not None
    assert (path.length, len(path.steps)) == (2000, 400)
    assert path.ran == pytest.approx(1000.0)


def test_what_if_knows_which_category_matters() -> None:
    found = replayed(diamond())
    # 0, then 1 beside 2, then 3: seven seconds without the two of waiting, of eight from first start to last end.
    assert (found.method, found.bound_by) == (SCHEDULE, "path")
    assert (found.computed, found.actual, found.bound) == pytest.approx((7.0, 8.0, 7.0))
    by = {row.category or row.cores: row.seconds * 7 / 8 for row in found.supposed}
    assert by["long"] == pytest.approx(5.0)
    assert by["short"] == pytest.approx(7.0)
    assert by[2.0] == pytest.approx(7.0)
    assert by[0.5] == pytest.approx(8.0)


def test_cores_that_were_not_there_all_the_time_are_told_in_few_digits() -> None:
    assert Supposition("", 2.0, 1.0, 3.27524).what == "3.28 cores instead of 1.64"
    assert Supposition("", 1 / 1.63762, 1.0, 1.0).what == "1 core instead of 1.64"
    assert Supposition("", 2.0, 1.0, 2048.0).what == "2,048 cores instead of 1,024"


def test_tasks_of_several_cores_wait_for_all_of_them() -> None:
    wide = CategoriesDeclared(["wide"], [[("cores", 20_000)]])
    ends = [ended(0, 0.0, 2.0), ended(1, 2.0, 4.0), ended(2, 4.0, 5.0)]
    found = replayed(view_of(started(3), wide, planned(["wide", "wide", "thin"]), *ends, over(5.0)))
    assert found.computed == pytest.approx(5.0)
    assert found.over_cores == pytest.approx(4.5)


def test_of_a_very_large_run_the_bound_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.sim.what_if.MOST_SCHEDULED", 3)
    found = replayed(diamond())
    assert found.method == BOUND
    assert {row.category: row.seconds for row in found.supposed}["long"] == pytest.approx(5.0 * 8 / 7)


def test_the_data_of_a_run_is_plain_json_and_names_all_that_is_shown() -> None:
    throttle = ThrottleDecided(BEGAN + 1, "", "first", 3, 2, 5, "growing", "cores", 0.5, 2.0, "so")
    view = diamond()
    view.throttle.add(throttle)
    data = run_data(view, workflow="flow.py", predicted=9.5)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["run"]["outcome"] == "ok"
    assert data["gantt"]["name"] == ["t0", "t2", "t1", "t3"]
    assert data["replayed"]["foreseen"] == 9.5
    assert data["throttle"][0]["points"] == [[1, 3, 2, 5, 0.5, 2, "so"]]
    assert "4 tasks done on one machine in 10 s." in data["summary"][0]


def test_a_run_of_which_nothing_is_known_yet_has_data_too() -> None:
    data = run_data(view_of(started(2), planned(["a", "a"])), workflow="flow.py", now=BEGAN + 1)
    assert data["run"]["outcome"] == "running"
    assert (data["replayed"], data["critical"], data["progress"]["left"]) == (None, None, None)


def test_a_run_that_goes_on_is_plain_data_with_a_band_around_its_end() -> None:
    ends = [ended(task, task * 1.0, task + 1.0) for task in range(4)]
    chain = linked({task: [task - 1] for task in range(1, 8)})
    going = TaskStarted(4, 1, BEGAN + 4, 1, 0.0, 0)
    data = run_data(view_of(started(8), planned(["a"] * 8), chain, *ends, going), workflow="flow.py", now=BEGAN + 4.5)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["progress"]["least"] <= data["progress"]["left"] <= data["progress"]["most"]
    assert data["critical"]["done"] == 0.5
    assert data["gantt"]["name"][-1] == "t4"
    assert any(sentence.startswith("Estimated time remaining:") for sentence in data["summary"])


def test_a_ledger_that_does_not_say_what_tasks_need_is_shown_without_a_path() -> None:
    data = run_data(view_of(started(1), planned(["a"]), ended(0, 0.0, 1.0), over(1.0)), workflow="flow.py")
    assert data["critical"] is None
    assert data["figures"]["idle_nothing_ready"] is None


def test_advice_says_what_memory_to_ask_for() -> None:
    declared = CategoriesDeclared(["a"], [[("memory", 4 * GIB)]])
    ends = [ended(task, task / 2, task / 2 + 1.0, memory=GIB // 8, limit=4 * GIB) for task in range(20)]
    data = run_data(view_of(started(20), declared, planned(["a"] * 20), *ends, over(11.0)), workflow="flow.py")
    sentence = "Tasks of a request 4 GiB of memory and used at most 128 MiB: request 154 MiB"
    assert any(sentence in told for told in data["advice"])


def test_advice_is_silent_about_memory_that_was_learned() -> None:
    ends = [ended(task, task / 2, task / 2 + 1.0, memory=GIB // 8, limit=4 * GIB) for task in range(20)]
    data = run_data(view_of(started(20), planned(["a"] * 20), *ends, over(11.0)), workflow="flow.py")
    assert not any("of memory" in told for told in data["advice"])


def test_advice_says_how_tasks_that_wait_could_run_together() -> None:
    ends = [ended(task, task / 2, task / 2 + 1.0, cpu=0.1) for task in range(20)]
    data = run_data(view_of(started(20), planned(["a"] * 20), *ends, over(11.0)), workflow="flow.py")
    assert any("use 10 % of it: '--throttle adaptive'" in told for told in data["advice"])


def test_advice_says_that_cores_would_not_help_a_chain() -> None:
    ends = [ended(task, task * 1.0, task + 1.0) for task in range(10)]
    chain = linked({task: [task - 1] for task in range(1, 10)})
    view = view_of(started(10, cores=8), planned(["a"] * 10), chain, *ends, over(10.0))
    advice = " ".join(run_data(view, workflow="flow.py")["advice"])
    assert "no task was ready, so more cores would not help" in advice
    assert "fewer cores are enough" in advice


def test_advice_names_the_cause_of_failures_first() -> None:
    ends = [ended(0, 0.0, 1.0, "failed", message="exit status 3"), ended(1, 0.0, 1.0)]
    data = run_data(view_of(started(2), planned(["a", "a"]), *ends, over(1.0, "failed")), workflow="flow.py")
    assert data["advice"][0].startswith("1 task failed. Fix the cause (exit status 3)")


def test_advice_tells_the_most_frequent_cause_and_how_many_others_there_are() -> None:
    messages = ["exit status 5", *["exit status 7"] * 2]
    ends = [ended(task, 0.0, 1.0, "failed", message=message) for task, message in enumerate(messages)]
    advice = run_data(view_of(started(3), planned(["a"] * 3), *ends, over(1.0, "failed")), workflow="flow.py")["advice"]
    assert advice[0].startswith("3 tasks failed, 2 of them for this reason: exit status 7. There is 1 other cause.")


def test_numbers_keep_what_a_drawing_can_show() -> None:
    assert [short(value) for value in (1234567.0, 0.000123456, 3.0, 0.0)] == [1234600, 0.00012346, 3, 0]
    assert (show_seconds(0.0004), show_seconds(75.2), show_seconds(90061)) == ("400 µs", "1 min 15 s", "25 h 01 min")
    assert (count(1, "category"), count(2, "category"), show_share(0.004), show_share(1, 3)) == (
        "1 category",
        "2 categories",
        "0.4 %",
        "33 %",
    )


def test_no_string_can_end_the_element_that_the_data_stands_in() -> None:
    text = embedded({"name": HOSTILE + "\u2028<!--"})
    assert not set("<>&\u2028") & set(text)
    assert msgspec.json.decode(text) == {"name": HOSTILE + "\u2028<!--"}


def test_the_page_has_a_hostile_name_nowhere_but_in_the_data() -> None:
    view = view_of(started(1), planned([HOSTILE]), ended(0, 0.0, 1.0, "failed", message=HOSTILE), over(1.0))
    text = page(HOSTILE, {"runs": [run_data(view, workflow=HOSTILE)]})
    assert "<img" not in text
    assert text.count("<script") == 2
    assert "http-equiv" in text and "src=" not in text.split("</head>")[0].split("<title>")[0]


def test_what_tasks_need_may_be_told_in_several_records() -> None:
    both = TasksLinked(array("i", [2]).tobytes(), array("i", [1]).tobytes(), array("i", [1]).tobytes())
    view = view_of(started(3), planned(["a"] * 3), linked({2: [0]}), both, *(ended(t, t, t + 1.0) for t in range(3)))
    needs = TaskWaits(view)
    assert sorted(needs.parents[needs.children == 2].tolist()) == [0, 1]
