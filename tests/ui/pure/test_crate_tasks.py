"""The tasks of a run for a crate: each counts once, by its last attempt, also if that has not ended."""

from __future__ import annotations

from shoal.ledger.records import Record, TasksCancelled, TaskStarted
from shoal.ui.report.crate import CANCELLED, KILLED, LastAttempts
from support.views import BEGAN, ended, over, planned, started, view_of

KILLED_RUN: list[Record] = [
    started(4),
    planned("aaab"),
    ended(0, 0.0, 1.0),
    ended(1, 1.0, 2.0, "failed", final=False, message="exit status 1"),
    TaskStarted(1, 2, BEGAN + 3.0, 7, 0.0, 0),
    TaskStarted(3, 1, BEGAN + 2.5, 8, 0.0, 1),
]


def test_a_task_that_was_tried_again_when_the_run_was_killed_counts_once() -> None:
    found = LastAttempts(view_of(*KILLED_RUN))
    assert found.numbers == [0, 1, 3]
    assert str(found.counts()) == "1 task done, 2 not finished"
    each = found.each(None, None)
    told = {one.number: (one.started - BEGAN, one.ended, one.error, one.attempts) for one in each}
    assert told == {0: (0.0, BEGAN + 1.0, "", 1), 1: (3.0, 0.0, KILLED, 2), 3: (2.5, 0.0, KILLED, 1)}


def test_by_category_attempts_under_way_are_counted_as_well() -> None:
    several, one = LastAttempts(view_of(*KILLED_RUN)).together(None)
    assert (several.tasks, several.failed, several.attempts) == (2, 0, 3)
    assert several.error == "1 task of 2 was running when the run was killed"
    assert (several.started, several.ended) == (BEGAN, BEGAN + 1.0)
    assert (one.tasks, one.failed, one.attempts, one.started, one.ended) == (1, 0, 1, BEGAN + 2.5, 0.0)


def test_what_failed_for_good_is_named_by_its_cause() -> None:
    bad = [ended(task, 0.0, 1.0, "failed", message="exit status 1") for task in (0, 1)]
    going = TaskStarted(2, 1, BEGAN, 7, 0.0, 0)
    (told,) = LastAttempts(view_of(started(3), planned("aaa"), *bad, going)).together(None)
    assert told.error == (
        "2 tasks of 3 failed; most often: exit status 1; 1 task of 3 was running when the run was killed"
    )


def test_what_was_cancelled_has_not_failed() -> None:
    """Task by task, and with the whole run; one of the former had not begun."""
    stopped = [ended(task, 0.0, 1.0, "cancelled", final=False, message="cancelled") for task in (1, 2)]
    view = view_of(
        started(5), planned("aaaaa"), ended(0, 0.0, 1.0), *stopped, TasksCancelled([1, 4]), over(2.0, "cancelled")
    )
    found = LastAttempts(view)
    assert str(found.counts()) == "1 task done, 2 cancelled, 1 not finished"
    assert [one.error for one in found.each(None, None)] == ["", CANCELLED, CANCELLED]
    (told,) = found.together(None)
    assert (told.tasks, told.failed, told.error) == (3, 0, "2 tasks of 3 were cancelled")


def test_a_run_that_ended_has_nothing_unfinished() -> None:
    found = LastAttempts(view_of(*KILLED_RUN, over(4.0, "failed")))
    assert found.numbers == [0, 1]
    assert str(found.counts()) == "1 task done, 1 not finished", "it was to be tried again"
