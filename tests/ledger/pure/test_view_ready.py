"""Which tasks could run and did not: the curve, the figures and the table of nodes mean the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from shoal.ledger.records import Record, TasksPlanned, TaskStarted
from shoal.ledger.views.tables import figures, node_rows
from shoal.ledger.views.timeline import shown_categories, timeline
from shoal.ledger.views.waits import TaskWaits
from support.views import BEGAN, ended, linked, over, planned, started, view_of

NOW = BEGAN + 4.0
BEHIND: Mapping[int, Sequence[int]] = {0: [-1], 1: [0], 2: [0], 3: [-1]}
GOES: Record = TaskStarted(3, 1, BEGAN + 1.0, 7, 0.0, 0)


def ready(*records: Record) -> tuple[list[float], int, float | None]:
    """Of four tasks at work on two cores: the curve by second, the ready ones of now, and core seconds idle in spite
    of them."""
    view = view_of(started(4), *records)
    needs = TaskWaits(view)
    found = timeline(view, shown_categories(view), needs, until=NOW, buckets=4)
    count = int(needs.ready(view).sum())
    assert node_rows(view, NOW, needs)[0].local == count
    return found.ready.tolist(), count, figures(view, found).idle_although_ready


def test_what_needs_a_task_that_failed_for_good_is_never_ready() -> None:
    failed = ended(0, 0.0, 1.0, "failed", message="exit status 1")
    curve, count, idle = ready(planned("abbc"), linked(BEHIND), failed, GOES)
    assert (curve, count) == ([1.0, 0, 0, 0], 0)
    assert idle == pytest.approx(1.0)


def test_what_needs_a_task_that_is_tried_again_is_not_ready_yet() -> None:
    failed, again = ended(0, 0.0, 1.0, "failed", final=False), TaskStarted(0, 2, BEGAN + 2.0, 8, 0.0, 1)
    for records in ([failed], [failed, again]):
        assert ready(planned("abbc"), linked(BEHIND), GOES, *records)[:2] == ([1.0, 0, 0, 0], 0)
    good = ended(0, 2.0, 3.0, attempt=2)
    assert ready(planned("abbc"), linked(BEHIND), GOES, failed, good)[:2] == ([1.0, 0, 0, 2.0], 2)


def test_a_group_is_done_when_all_that_it_needs_is_and_is_never_ready_itself() -> None:
    tasks = TasksPlanned([0, 1, 3, 4], ["t0", "t1", "t3", "t4"], ["a", "a", "b", "c"])  # 2 groups the first two
    links = linked({0: [-1], 1: [-1], 2: [0, 1], 4: [2], 3: [-1]})
    bad = ended(1, 0.0, 1.0, "failed", final=False)
    assert ready(tasks, links, ended(0, 0.0, 1.0), bad, GOES)[:2] == ([1.0, 0, 0, 0], 0)
    good = ended(1, 1.0, 2.0, attempt=2)
    assert ready(tasks, links, ended(0, 0.0, 1.0), bad, good, GOES)[:2] == ([1.0, 0, 1.0, 1.0], 1)


def test_a_group_of_up_to_date_tasks_delays_no_task() -> None:
    tasks = TasksPlanned([1, 3], ["t1", "t3"], ["a", "c"])
    assert ready(tasks, linked({2: [0], 1: [2], 3: [-1]}), GOES)[:2] == ([2.0, 1.0, 1.0, 1.0], 1)


def test_a_running_task_of_which_no_needs_are_known_takes_the_place_of_no_other() -> None:
    assert ready(planned("abbc"), linked({0: [-1], 1: [0], 2: [-1]}), GOES)[1] == 2


def test_what_ran_before_its_need_was_lost_and_failed_was_not_ready_from_the_beginning() -> None:
    again = ended(0, 2.0, 3.0, "failed", attempt=2)
    view = view_of(
        started(2), planned("ab"), linked({1: [0]}), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0), again, over(4.0)
    )
    assert timeline(view, shown_categories(view), TaskWaits(view), buckets=4).ready.tolist() == [0, 0, 0, 0]
