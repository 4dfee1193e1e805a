"""The fold behind `shoal status`, and the summary of a run, from records and totals made up here."""

from __future__ import annotations

import pytest

from shoal.cli.summary import summarise
from shoal.engine.follow import RunState
from shoal.engine.statistics import Failure, Statistics
from shoal.ledger.records import RunEnded, RunStarted, TaskEnded, TasksPlanned, TaskStarted


def run_started(to_run: int, up_to_date: int = 0) -> RunStarted:
    node = [("cores", 20_000)]
    return RunStarted("r", 100.0, 1, 2, "boot", "host", "0", [], node, to_run + up_to_date, to_run)


def ended(
    task: int, began: float, end: float, outcome: str = "ok", *, final: bool = True, attempt: int = 1
) -> TaskEnded:
    message = "" if outcome == "ok" else "exit status 1"
    return TaskEnded(task, attempt, outcome, final, 0, began, end, 0.0, 0.0, 0, 0, 0, message, b"", b"", b"", [], None)


def state_of(*records: RunStarted | TasksPlanned | TaskStarted | TaskEnded | RunEnded) -> RunState:
    state = RunState()
    for record in records:
        state.take(record)
    return state


PLANNED = TasksPlanned([0, 1, 2, 3], ["a", "b", "c", "d"], ["short", "short", "long", "long"])


def test_tasks_are_counted_where_they_stand() -> None:
    state = state_of(
        run_started(4, up_to_date=7),
        PLANNED,
        TaskStarted(0, 1, 100.0, 11, 0.0, 0),
        TaskStarted(1, 1, 100.0, 12, 0.0, 1),
        ended(0, 100.0, 101.0),
        TaskStarted(2, 1, 101.0, 13, 0.0, 0),
        ended(1, 100.0, 102.0, "failed"),
    )
    assert (len(state.done), list(state.failed), list(state.running), state.waiting()) == (1, [1], [2], 1)
    assert (state.to_run(), state.up_to_date()) == (4, 7)
    assert state.categories["short"].planned == 2
    assert state.categories["long"].running == 1


def test_attempt_that_is_tried_again_is_neither_done_nor_failed() -> None:
    state = state_of(run_started(1), ended(0, 100.0, 101.0, "failed", final=False))
    assert (len(state.done), len(state.failed), state.waiting()) == (0, 0, 1)
    assert state.tried[0].attempt == 1
    state.take(ended(0, 101.0, 102.0, attempt=2))
    assert (len(state.done), state.tried) == (1, {})


def test_another_run_begins_anew() -> None:
    state = state_of(run_started(4), PLANNED, ended(0, 100.0, 101.0), RunEnded(102.0, "ok", 1, 0, 3), run_started(2))
    assert (len(state.done), state.names, state.end, state.to_run()) == (0, {}, None, 2)


def test_rate_looks_at_the_last_seconds_only() -> None:
    state = state_of(run_started(100), *(ended(task, 100.0, 100.0 + task / 10) for task in range(1, 51)))
    assert state.rate(105.0) == pytest.approx(10.0)
    assert state.rate(110.0) == pytest.approx(5.0)
    assert state.rate(200.0) == 0.0


def test_time_left_goes_by_category() -> None:
    state = state_of(run_started(4), PLANNED, ended(0, 100.0, 101.0), ended(2, 100.0, 110.0))
    # One short and one long are left: 11 seconds of work, at 11 task seconds in the 10 seconds so far.
    assert state.time_left(110.0) == pytest.approx(10.0)


def totals(done: int, failed: int, left: int, up_to_date: int = 0) -> Statistics:
    statistics = Statistics(done + failed + left + up_to_date, up_to_date, 100.0, 2.0)
    for task in range(done + failed):
        statistics.running += 1
        statistics.attempt_ended(task, statistics.category("work"), 1.0 + task, 0.5, 1 << 20, 1.0)
    statistics.done = statistics.category("work").done = done
    for task in range(done, done + failed):
        statistics.task_failed(Failure(task, f"t{task}", 1, "exit status 9", b"one\ntwo\n"))
    statistics.ended = 110.0
    return statistics


NAMES = [f"t{number}" for number in range(100)]


def test_summary_of_success_has_times_categories_and_slowest() -> None:
    lines = summarise(totals(4, 0, 0, up_to_date=3), NAMES, "", [], []).split("\n")
    assert lines == [
        "all done: 4 tasks done, 3 up to date",
        "10.0 s wall time, 10.0 s of task time (2.0 s cpu), 50 % of 2 cores used",
        "  category   tasks    mean   longest   most memory",
        "  work           4   2.5 s     4.0 s         1 MiB",
        "slowest: t3 4.0 s, t2 3.0 s, t1 2.0 s, t0 1.0 s",
    ]


def test_summary_of_failures_has_their_output_and_how_to_go_on() -> None:
    text = summarise(totals(1, 7, 2), NAMES, "", ["my.mf"], ["all"])
    assert text.startswith("not everything could be made: 1 task done, 7 failed, 2 not run\n")
    assert "failed (7):\n  t1: exit status 9\n    | one\n    | two\n" in text
    assert "  and 2 more, which 'shoal status' lists" in text
    assert "'shoal run my.mf all'" in text
    assert "'shoal output t1 my.mf'" in text


def test_summary_of_a_stopped_run_says_why_it_stopped() -> None:
    assert summarise(totals(1, 0, 2), NAMES, "the disk is full", [], []).startswith(
        "stopped (the disk is full): 1 task done"
    )


def test_summary_of_nothing_is_one_line() -> None:
    assert summarise(totals(0, 0, 0, up_to_date=5), NAMES, "", [], []) == "nothing to do: 5 tasks are up to date"
