"""The fold behind `shoal status`, and the summary of a run, from records and totals made up here."""

from __future__ import annotations

import struct

import pytest

from shoal.core.explain.sentences import paragraph, record_lines
from shoal.ledger.records import (
    NetBegun,
    NetMarked,
    Record,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksCancelled,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
)
from shoal.ledger.statistics import Statistics, TaskFailure
from shoal.ledger.status import RunPhase, RunStatus
from shoal.ui.cli.display import summarise
from shoal.ui.cli.parser import CommandParser
from shoal.ui.cli.run import add_arguments, kept_options
from shoal.ui.cli.why_run import RecordedRun, run_record, sentence_writer
from support.graphs import graph_of


def run_started(to_run: int, up_to_date: int = 0) -> RunStarted:
    node = [("cores", 20_000)]
    return RunStarted("r", 100.0, 1, 2, "boot", "host", "0", [], node, to_run + up_to_date, to_run)


def ended(
    task: int, began: float, end: float, outcome: str = "ok", *, final: bool = True, attempt: int = 1
) -> TaskEnded:
    message = "" if outcome == "ok" else "exit status 1"
    return TaskEnded(task, attempt, outcome, final, 0, began, end, 0.0, 0.0, 0, 0, 0, message, b"", b"", b"", [], None)


def column(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def state_of(*records: Record) -> RunStatus:
    state = RunStatus()
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
    assert state.progress(105.0).rate == pytest.approx(10.0)
    assert state.progress(110.0).rate == pytest.approx(5.0)
    late = state_of(run_started(900), *(ended(task, 100.0, 100.0 + task / 10) for task in range(1, 501)))
    assert late.progress(150.0).rate == pytest.approx(10.0)
    assert late.progress(158.0).rate == pytest.approx(2.0, abs=0.3)


def test_time_left_goes_by_category() -> None:
    state = state_of(run_started(4), PLANNED, ended(0, 100.0, 101.0), ended(2, 100.0, 110.0))
    told = state.progress(110.0)
    # One short and one long are left: 11 seconds of work, one task at a time lately.
    assert told.left == pytest.approx(11.0)
    assert told.left is not None and told.least is not None and told.most is not None
    assert told.least < told.left < told.most
    assert told.utilisation == pytest.approx(11.0 / 20.0)


def test_what_runs_counts_with_what_it_has_behind_it() -> None:
    begun = TaskStarted(3, 1, 110.0, 7, 0.0, 0)
    state = state_of(run_started(4), PLANNED, ended(0, 100.0, 101.0), ended(2, 100.0, 110.0), begun)
    assert (state.progress(114.0).left or 0.0) == pytest.approx(7.0)
    assert state.progress(114.0).running == 1


def test_what_needs_a_failed_task_is_over_too() -> None:
    links = TasksLinked(column(1, 2), column(1, 1), column(0, 1))  # b needs a, c needs b
    state = state_of(run_started(4), PLANNED, links, ended(0, 100.0, 101.0, "failed"))
    assert (state.over(), state.cannot_run(), state.waiting()) == (3, 2, 1)
    state.take(ended(3, 101.0, 102.0, "failed"))
    assert (state.over(), state.waiting(), state.progress(103.0).cannot_run) == (4, 0, 2)


def test_why_of_an_ended_run_counts_what_did_not_run_as_status_does() -> None:
    links = TasksLinked(column(1, 2), column(1, 1), column(0, 1))  # b needs a, c needs b
    state = state_of(run_started(4), PLANNED, links, ended(0, 100.0, 101.0, "failed"), ended(3, 100.0, 101.0))
    state.take(RunEnded(102.0, "failed", 1, 1, 2))
    assert state.not_run() == 2
    record = run_record(state, RunPhase.ENDED)
    told = record_lines(record, sentence_writer(str, 103.0))
    because = "2 of them because a dependency failed or was cancelled"
    assert told[0] == f"  2 tasks did not run, {because}; outcome of the run: failed"
    assert (record.done, record.failed, record.doomed, record.waiting) == (1, 1, 2, 0)
    assert told[1:] == ["  'a' failed: exit status 1"]


def test_what_a_ledger_says_of_a_waiting_task_is_the_same_in_words_and_for_programs() -> None:
    graph = graph_of("a:\nb:\nc: a\n(both): a b\nd: both\ne:\nf:")
    names = [name for name in graph.names if name != "both"]
    numbers = [graph.names.index(name) for name in names]
    going = [TaskStarted(graph.names.index(name), 1, 100.0, 11, 0.0, 0) for name in ("b", "e")]
    failed = ended(graph.names.index("a"), 100.0, 101.0, "failed")
    state = state_of(run_started(6), TasksPlanned(numbers, names, ["k"] * 6), *going)

    def told(name: str) -> tuple[str, str]:
        answer = RecordedRun(graph, state, 102.0).explain(graph.names.index(name))
        return str(answer.cause), paragraph(answer, sentence_writer(graph.names.__getitem__, 102.0))

    queued = "'a' is queued and waits for cores: it asks for 1, and 0 of 2 are free; held by 'b' (1), 'e' (1)."
    assert told("a") == ("resources", queued)
    assert told("c") == ("needs", f"'c' waits for the task 'a'. {queued}")
    assert told("d") == ("needs", f"'d' waits for the task 'both', which waits for 'a'. {queued}")
    assert told("f") == ("resources", queued.replace("'a'", "'f'"))
    assert told("b")[0] == "running" and "as process 11, attempt 1." in told("b")[1]
    state.take(failed)
    assert told("a") == ("failed", "'a' failed: exit status 1.")
    assert told("c") == ("doomed", "'c' cannot run: it depends on 'a', which failed: exit status 1.")
    doomed = "'d' cannot run: it depends on 'both', which depends on 'a'; 'a' failed: exit status 1."
    assert told("d") == ("doomed", doomed)
    assert told("f")[0] == "resources"


def test_a_ledger_tells_of_retries_throttles_and_cancelled_tasks_and_has_no_queue() -> None:
    graph = graph_of("a:\nb: a\nc:")
    state = state_of(run_started(3), TasksPlanned([0, 1, 2], ["a", "b", "c"], ["k"] * 3))

    def told(name: str) -> str:
        answer = RecordedRun(graph, state, 102.0).explain(graph.names.index(name))
        return paragraph(answer, sentence_writer(graph.names.__getitem__, 102.0))

    queue = "the ledger does not record the queue"
    assert told("c") == f"'c' is queued and waits for the scheduler's next decision ({queue})."
    state.take(ended(0, 100.0, 101.0, "failed", final=False))
    retry = "'a' waits for a retry: attempt 1 failed (exit status 1)."
    assert (told("a"), told("b")) == (retry, f"'b' waits for the task 'a'. {retry}")
    state.take(ThrottleDecided(101.0, "", "", 0, 0, 1, "holding", "", 0.0, 0.0, "the disk is busy"))
    assert told("c").endswith("is held back by the throttle while 0 of its category run: the disk is busy.")
    state.take(TasksCancelled([0]))
    assert told("b") == "'b' cannot run: it depends on 'a', which was cancelled."


def test_who_goes_on_is_told_the_options_that_matter() -> None:
    parser = CommandParser("run", "", "", "")
    add_arguments(parser)
    words = ["flow.py", "--cluster", "nu", "--files", "managed", "--resource", "a=1", "--resource", "b=2", "--force"]
    given = parser.parse(words)
    assert given is not None
    assert kept_options(given) == [*words[1:5], *words[5:9]]


def totals(done: int, failed: int, left: int, up_to_date: int = 0) -> Statistics:
    statistics = Statistics(done + failed + left + up_to_date, up_to_date, 100.0, 2.0)
    for task in range(done + failed):
        statistics.running += 1
        statistics.attempt_ended(task, statistics.category("work"), 1.0 + task, 0.5, 1 << 20, 1.0)
    for task in range(done):
        statistics.task_done(statistics.category("work"), 1.0 + task)
    for task in range(done, done + failed):
        statistics.task_failed(TaskFailure(task, f"t{task}", 1, "exit status 9", b"one\ntwo\n"))
    statistics.ended = 110.0
    return statistics


NAMES = [f"t{number}" for number in range(100)]


def test_summary_of_success_has_times_categories_and_slowest() -> None:
    lines = summarise(totals(4, 0, 0, up_to_date=3), NAMES, "", [], []).split("\n")
    assert lines == [
        "all done: 4 tasks done, 3 up to date",
        "10 s wall time, 10 s of task time (2 s cpu), 50 % of 2 cores used",
        "  category   tasks    mean   longest   most memory",
        "  work           4   2.5 s       4 s         1 MiB",
        "slowest: t3 4 s, t2 3 s, t1 2 s, t0 1 s",
    ]


def test_summary_of_failures_has_their_output_and_how_to_go_on() -> None:
    text = summarise(totals(1, 7, 2), NAMES, "", ["my.mf"], ["all"])
    assert text.startswith("not everything could be made: 1 task done, 7 failed, 2 not run\n")
    assert "failed (7):\n  t1: exit status 9\n    | one\n    | two\n" in text
    assert "  and 2 more; 'shoal status' lists them" in text
    assert "\nto continue with the remaining tasks: shoal run my.mf all\noutput of t1: shoal output t1 my.mf" in text


def test_summary_of_a_stopped_run_says_why_it_stopped() -> None:
    assert summarise(totals(1, 0, 2), NAMES, "the disk is full", [], []).startswith(
        "stopped (the disk is full): 1 task done"
    )


def test_summary_of_nothing_is_one_line() -> None:
    assert summarise(totals(0, 0, 0, up_to_date=5), NAMES, "", [], []) == "nothing to do: 5 tasks are up to date"


def test_the_mean_in_the_summary_is_of_attempts_that_succeeded() -> None:
    """It could be longer than the longest, when all attempts were counted and divided by the tasks."""
    found = Statistics(4, 0, 0.0, 2.0)
    category = found.category("work")
    for task in range(4):
        for seconds in (2.0, 2.0, 1.0):
            found.attempt_ended(task, category, seconds, 0.1, 0, 1.0)
        found.task_done(category, 1.0)
    found.ended = 10.0
    lines = summarise(found, ["a", "b", "c", "d"], "", [], []).split("\n")
    assert lines[3].split()[:6] == ["work", "4", "1", "s", "2", "s"]


def test_cancelled_tasks_are_counted_apart_unless_the_run_was_stopped() -> None:
    found = Statistics(6, 0, 0.0, 2.0)
    found.task_done(found.category("work"), 1.0)
    found.cancelled, found.ended = 2, 10.0
    names = [f"t{number}" for number in range(6)]
    assert summarise(found, names, "", [], []).startswith(
        "not everything could be made: 1 task done, 2 cancelled, 3 not run\n"
    )
    assert summarise(found, names, "received SIGINT", [], []).startswith(
        "stopped (received SIGINT): 1 task done, 5 not run\n"
    )


def test_running_tasks_of_a_net_are_those_of_its_last_mark() -> None:
    state = state_of(
        run_started(0),
        NetBegun("n", "digest", None),
        TasksPlanned([0, 1, 2], ["t 0", "t 1", "t 2"], ["t"] * 3),
        ended(0, 100.0, 101.0),
        NetMarked(102.0, {"p": 3}, {"t": 2}, {"t": 1}, []),
    )
    told = state.progress(103.0)
    assert (told.done, told.running, told.left) == (1, 2, None)
