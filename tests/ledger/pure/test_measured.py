"""What is learned of time from the records of a ledger."""

from __future__ import annotations

import pytest

from shoal.ledger.records import Record, RunEnded, RunStarted, TaskEnded, TasksPlanned
from shoal.sim.expected_times import MeasuredTimes, overheads_of


def started(run: str = "r", time: float = 100.0) -> RunStarted:
    return RunStarted(run, time, 1, 2, "boot", "host", "0", [], [("cores", 20_000)], 2, 2)


def ended(task: int, began: float, end: float, outcome: str = "ok", size: int = 0) -> TaskEnded:
    place = f"place {task}".encode()
    return TaskEnded(
        task, 1, outcome, True, 0, began, end, 0.0, 0.0, 0, 0, 0, "", place, b"", b"", [(size, 0)] * bool(size), None
    )


def fold(*records: Record) -> MeasuredTimes:
    measured = MeasuredTimes()
    for record in records:
        measured.take(record)
    return measured


def test_the_gap_is_what_a_core_waits_while_another_task_is_ready() -> None:
    first = [(100.0 + n * 1.01, 101.0 + n * 1.01) for n in range(5)]
    found = overheads_of(first, began=99.5, ended=105.24)
    assert found.per_task == pytest.approx(0.01)
    assert found.at_ends == pytest.approx(0.5 + 0.2)


def test_a_core_that_waits_for_a_long_task_is_no_gap() -> None:
    # Two cores; one has nothing to do from 1 to 10, then the task that ends at 10 releases two others.
    found = overheads_of([(0, 1), (0, 10), (10.01, 11), (10.02, 11), (11.01, 12), (11.01, 12)], 0.0, 12.0)
    assert found.per_task < 0.05


def test_a_run_of_one_task_has_no_gap() -> None:
    assert overheads_of([(1.0, 2.0)], 0.0, 3.0).per_task == 0.0


def test_only_attempts_that_succeeded_tell_how_long_a_task_takes() -> None:
    measured = fold(started(), TasksPlanned([0], ["a"], ["kind"]), ended(0, 100.0, 105.0, "failed"))
    assert measured.last == {}
    measured.take(ended(0, 105.0, 107.0, size=9))
    took = measured.last[b"place 0"]
    assert (took.seconds, took.category, took.sizes) == (2.0, "kind", (9,))


def test_earlier_runs_of_the_same_tasks_tell_how_much_durations_differ() -> None:
    plan = TasksPlanned([0, 1], ["a", "b"], ["kind", "kind"])
    measured = fold(
        started("one"), plan, ended(0, 100.0, 101.0), ended(1, 100.0, 103.0), RunEnded(103.0, "ok", 2, 0, 0),
        started("two", 200.0), plan, ended(0, 200.0, 202.0), ended(1, 200.0, 206.0), RunEnded(206.0, "ok", 2, 0, 0),
    )  # fmt: skip
    assert measured.factors([b"place 0", b"place 1"]) == [1.0, 0.5]
    assert measured.factors([b"elsewhere"]) == [1.0]
    assert [took.seconds for took in measured.by_category()["kind"]] == [2.0, 6.0]
