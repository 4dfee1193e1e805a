"""Rate and time left: they settle quickly, and follow what is left per category."""

from __future__ import annotations

import pytest

from shoal.engine.pace import Pace, time_left, work_left


def steady(seconds: int, per_second: int, running: int) -> Pace:
    pace = Pace(100.0)
    for tick in range(1, seconds * 5 + 1):
        pace.update(100.0 + tick / 5, tick * per_second // 5, running)
    return pace


def test_steady_run_shows_its_rate_from_the_first_second_on() -> None:
    assert steady(1, 50, 2).rate == pytest.approx(50)
    assert steady(60, 50, 2).rate == pytest.approx(50)
    assert steady(60, 50, 2).width() == pytest.approx(2)


def test_rate_follows_a_change_within_seconds() -> None:
    pace = steady(60, 50, 2)
    for tick in range(1, 76):
        pace.update(160.0 + tick / 5, 3000 + tick * 2, 2)
    assert pace.rate == pytest.approx(10, abs=4)


def test_update_at_the_same_moment_changes_nothing() -> None:
    pace = steady(2, 50, 2)
    before = (pace.rate, pace.busy)
    pace.update(102.0, 1000, 2)
    assert (pace.rate, pace.busy) == before


def test_work_left_uses_the_mean_of_each_category() -> None:
    done = {"short": (10, 1.0), "long": (2, 20.0)}
    assert work_left({"short": 5, "long": 3}, done) == pytest.approx(0.5 + 30)


def test_category_without_experience_counts_with_the_mean_of_all() -> None:
    assert work_left({"new": 4}, {"old": (2, 6.0)}) == pytest.approx(12.0)


def test_nothing_is_said_before_the_first_task_is_done() -> None:
    assert work_left({"a": 3}, {}) is None
    assert time_left(None, 0.0, 1.0, 0.0, 3) is None


def test_time_left_counts_what_running_tasks_have_behind_them() -> None:
    assert time_left(100.0, 20.0, 4.0, 0.1, 10) == pytest.approx(20.0)
    assert time_left(10.0, 30.0, 4.0, 0.1, 1) == 0.0
    assert time_left(None, 0.0, 0.0, 0.0, 0) == 0.0


def test_for_tasks_that_do_next_to_nothing_the_rate_decides() -> None:
    assert time_left(1000 * 0.001, 0.0, 2.0, 100.0, 1000) == pytest.approx(10.0)
