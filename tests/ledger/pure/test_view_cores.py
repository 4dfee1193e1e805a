"""Tasks of one category that ask for different cores: each counts with its own, wherever cores are counted."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.core.graph import GraphBuilder
from shoal.core.resources import Resources
from shoal.core.task import Profile
from shoal.execution.session import categories_of, cores_of
from shoal.ledger.records import (
    NONE_REQUESTED,
    CategoriesDeclared,
    CoresAsked,
    Record,
    TaskStarted,
    ThrottleDecided,
    encode,
)
from shoal.ledger.status import RunStatus
from shoal.ledger.views.progress import progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import category_rows, holdings, node_rows
from shoal.ledger.views.timeline import shown_categories, timeline
from shoal.ledger.views.waits import TaskWaits
from shoal.ledger.workspace import Workspace
from shoal.sim.what_if import replay
from shoal.ui.report.data import run_data
from shoal.ui.top.tables import table_of
from shoal.ui.web.run_page import slow_parts
from shoal.ui.web.tasks import task_data
from shoal.ui.web.watch import Watch
from support.views import BEGAN, ended, linked, over, planned, started, view_of

ONE, TWO = 10_000, 20_000
MERGE = CategoriesDeclared(["merge"], [[("cores", TWO)]])
THROTTLE = ThrottleDecided(BEGAN, "", "merge", 4, 4, 0, "growing", "", 0.0, 0.0, "")


def asked(cores: Mapping[int, int]) -> CoresAsked:
    return CoresAsked(array("i", cores).tobytes(), array("i", cores.values()).tobytes())


def mixed_records(busy: float = 1.0) -> list[Record]:
    """Two cores: twelve tasks of one core in pairs, then one of two cores; each takes a second."""
    ends = [ended(task, task // 2, task // 2 + 1.0, cpu=busy) for task in range(12)]
    head: list[Record] = [started(13), MERGE, planned(["merge"] * 13), linked({task: [-1] for task in range(13)})]
    return [*head, asked(dict.fromkeys(range(12), ONE)), *ends, ended(12, 6.0, 7.0, cpu=2 * busy), over(7.0)]


def mixed() -> RunView:
    return view_of(*mixed_records())


def test_the_timeline_is_never_above_the_cores_there_are() -> None:
    view = mixed()
    found = timeline(view, shown_categories(view), TaskWaits(view), buckets=70)
    assert found.cores.sum(axis=0).tolist() == pytest.approx([2.0] * 70)


def test_core_time_is_that_of_the_tasks() -> None:
    (row,) = category_rows(mixed())
    assert row.core_seconds == pytest.approx(14.0)
    assert (row.cores, row.cores_least, row.cores_most) == pytest.approx((14 / 13, 1.0, 2.0))
    assert progress(mixed()).utilisation == pytest.approx(1.0)
    (node,) = node_rows(mixed())
    assert node.share == pytest.approx(1.0)


def test_the_schedule_and_the_simulation_of_the_run_take_what_it_took() -> None:
    view = mixed()
    needs = TaskWaits(view)
    found = replay(view, needs, timeline(view, shown_categories(view), needs))
    assert found is not None and found.simulated is not None
    assert (found.computed, found.over_cores, found.simulated.seconds) == pytest.approx((7.0, 7.0, 7.0))


def test_no_fewer_cores_are_proposed_than_the_widest_task_holds() -> None:
    view = mixed()
    needs = TaskWaits(view)
    found = replay(view, needs, timeline(view, shown_categories(view), needs))
    assert found is not None
    assert [row.number for row in found.supposed if not row.category] == [4.0]


def test_a_cluster_is_simulated_with_the_cores_of_each_task() -> None:
    work = TaskWaits(mixed()).work(mixed())
    assert [work.profiles[kind].resources.get("cores") for kind in work.category] == [ONE] * 12 + [TWO]
    assert {work.profiles[kind].category for kind in work.category} == {"merge"}


def test_the_story_blames_no_task_for_cores_that_were_not_held() -> None:
    advice = run_data(mixed(), workflow="flow.py")["advice"]
    assert not [sentence for sentence in advice if "request " in sentence]


def test_tasks_that_hold_more_than_they_use_are_judged_apart_from_the_others() -> None:
    ends = [ended(task, task, task + 1.0, cpu=0.9) for task in range(12)]
    view = view_of(started(12), MERGE, planned(["merge"] * 12), asked(dict.fromkeys(range(6), ONE)), *ends, over(12.0))
    assert [(held.cores, held.done, round(held.used, 2)) for held in holdings(view, category_rows(view)[0])] == [
        (1.0, 6, 0.9),
        (2.0, 6, 0.9),
    ]
    advice = run_data(view, workflow="flow.py")["advice"]
    assert "Tasks of merge with 2 cores use 45 % of them: request 1." in advice


def test_of_a_few_tasks_that_hold_more_than_they_use_nothing_is_said() -> None:
    advice = run_data(view_of(*mixed_records(busy=0.6)), workflow="flow.py")["advice"]
    assert not [sentence for sentence in advice if sentence.startswith("Tasks of ")]


def test_running_tasks_hold_their_own_cores() -> None:
    going = [TaskStarted(task, 1, BEGAN, 1, 0.0, 0) for task in (0, 1)]
    view = view_of(started(3), MERGE, planned(["merge"] * 3), asked({0: ONE, 1: ONE}), *going)
    (node,) = node_rows(view, BEGAN + 2)
    assert node.cores_held == 2.0
    found = timeline(view, shown_categories(view), until=BEGAN + 2, buckets=4)
    assert found.cores.sum(axis=0).tolist() == pytest.approx([2.0] * 4)
    assert progress(view, BEGAN + 2).utilisation == pytest.approx(1.0)


def test_status_counts_as_the_page_does() -> None:
    state = RunStatus()
    for record in mixed_records():
        state.take(record)
    assert state.progress(BEGAN + 9).utilisation == pytest.approx(progress(mixed()).utilisation)
    records: list[Record] = [
        started(3),
        MERGE,
        planned(["merge"] * 3),
        asked({0: ONE, 1: NONE_REQUESTED}),
        ended(2, 0.0, 0.5),
    ]
    throttled: list[list[Record]] = [[ended(1, 0.5, 1.0, cpu=0.2)], [THROTTLE, ended(1, 0.3, 1.0, cpu=0.2)]]
    for tail in throttled:  # in the second three cores are held at a time, of two
        live = [*records, *tail, TaskStarted(0, 1, BEGAN + 0.5, 1, 0.0, 0)]
        state = RunStatus()
        for record in live:
            state.take(record)
        seen = progress(view_of(*live), BEGAN + 2).utilisation
        assert seen is not None and 0.1 < seen < 1
        assert state.progress(BEGAN + 2).utilisation == pytest.approx(seen)


def test_page_and_top_show_the_range_and_the_task_its_own_cores(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("")
    workspace = Workspace(str(tmp_path / "flow.py"))
    workspace.make()
    records = [*mixed_records()[:-1], asked({3: NONE_REQUESTED})]
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    watch = Watch(workspace)
    watch.refresh()
    table = table_of("c", slow_parts(watch))
    assert table.rows[0].cells[table.heads.index("cores")] == "1-2"
    told = [task_data(watch, task) for task in (0, 3, 12)]
    assert [each["declared"] for each in told if each is not None] == [{"cores": ONE}, {}, {"cores": TWO}]


def test_who_asks_for_none_beside_others_that_do_shares_cores_under_a_throttle() -> None:
    ends = [ended(task, 0.0, 10.0, cpu=2.5) for task in range(4)]
    none = asked(dict.fromkeys(range(4), NONE_REQUESTED))
    records: list[Record] = [started(5, cores=1.0), MERGE, planned(["merge"] * 5), none, *ends, over(10.0)]
    assert view_of(*records).held().tolist() == [1.0] * 4
    crowded = view_of(records[0], THROTTLE, *records[1:])
    assert crowded.is_oversubscribed()
    assert crowded.held().tolist() == [0.25] * 4


def test_the_record_says_only_what_differs_from_the_category() -> None:
    def profile(cores: int | None) -> Profile:
        amount = ONE if cores is None else cores
        return Profile("merge", Resources.of({"cores": amount}), cores_declared=cores is not None)

    builder = GraphBuilder()
    for number, cores in enumerate((ONE, TWO, None, 0, TWO)):
        builder.task(str(number), "true", profile=profile(cores))
    builder.task("same", "true", profile=Profile("other", Resources.of({"cores": TWO}), cores_declared=True))
    graph = builder.build()
    declared = categories_of(graph)
    assert dict(zip(declared.names, declared.resources, strict=True))["merge"] == [("cores", TWO)]
    assert list(cores_of(graph, range(6), declared)) == [asked({0: ONE, 2: NONE_REQUESTED, 3: 0})]
    assert list(cores_of(graph, [1, 4, 5], declared)) == []


def test_a_run_of_tasks_alike_has_no_such_record() -> None:
    builder = GraphBuilder()
    for number in range(4):
        builder.task(str(number), "true", profile=Profile("merge", cores_declared=True))
    graph = builder.build()
    assert list(cores_of(graph, range(4), categories_of(graph))) == []
