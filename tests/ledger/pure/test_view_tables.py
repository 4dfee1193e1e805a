"""Tables tell of all attempts, also of those that did not succeed."""

from __future__ import annotations

import pytest

from shoal.ledger.views.tables import category_rows, failure_causes, holdings
from support.views import GIB, ended, over, planned, started, view_of


def test_a_category_of_which_nothing_succeeded_has_its_times_and_cores_all_the_same() -> None:
    attempts = [ended(0, 0.0, 1.0, "failed", final=False, cpu=0.5), ended(0, 1.0, 3.0, "failed", attempt=2, cpu=1.0)]
    (row,) = category_rows(view_of(started(1), planned(["a"]), *attempts, over(3.0, "failed")))
    assert (row.done, row.failed, row.retries) == (0, 1, 1)
    assert (row.longest, row.cores_used) == pytest.approx((2.0, 0.5))
    assert row.mean == 0.0, "that is of those that succeeded"


def test_cores_that_a_task_could_do_without_are_judged_by_attempts_that_succeeded() -> None:
    attempts = [ended(0, 0.0, 2.0, "failed", final=False, cpu=0.0), ended(0, 2.0, 4.0, attempt=2, cpu=2.0)]
    view = view_of(started(1), planned(["a"]), *attempts, over(4.0))
    (row,) = category_rows(view)
    assert row.cores_used == pytest.approx(0.5)
    assert [held.used for held in holdings(view, row)] == pytest.approx([1.0])


def test_memory_of_an_attempt_that_had_too_little_was_used() -> None:
    hog = ended(0, 0.0, 2.0, "exhausted", memory=GIB + GIB // 16, limit=GIB)
    (row,) = category_rows(view_of(started(1), planned(["hog"]), hog, over(2.0, "failed")))
    assert (row.most_memory, row.memory_limit) == (GIB + GIB // 16, GIB)
    assert row.memory_waste == pytest.approx(0.0)


def test_memory_of_an_unmeasured_attempt_is_neither_used_nor_unused() -> None:
    attempts = [ended(0, 0.0, 8.0, "failed", limit=GIB), ended(1, 0.0, 1.0, memory=GIB // 4, limit=GIB)]
    (row,) = category_rows(view_of(started(2), planned(["a", "a"]), *attempts, over(8.0, "failed")))
    assert row.memory_waste == pytest.approx(0.75)


def test_a_cause_names_a_few_categories_and_says_how_many_more_there_are() -> None:
    bad = [ended(task, 0.0, 1.0, "failed", message="exit status 3") for task in range(5)]
    (cause,) = failure_causes(view_of(started(5), planned(list("abcde")), *bad, over(1.0, "failed")))
    assert (cause.categories, cause.other_categories) == (["a", "b", "c"], 2)
