"""What notebooks are shown of executors and futures, and the counts that it is made from."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from shoal.execution.calls.messages import CallResult, Outcome
from shoal.execution.executor.future import CallFuture, dependency_failed
from shoal.execution.executor.tally import BUCKETS, FINEST, MOST_MESSAGES, OTHER_MESSAGE, CallTally, WorkerTime
from shoal.ui.notebook.card import executor_card
from shoal.ui.notebook.display import FuturesSource
from shoal.ui.notebook.rendering import html_of, text_of
from shoal.ui.notebook.watch import WatchError, watch

BEGAN = 1000.0


def result(begin: float, end: float, outcome: Outcome = "ok", said: str = "") -> CallResult:
    error = None if outcome == "ok" else b"pickled"
    return CallResult(0, 1, outcome, b"", error, said, BEGAN + begin, BEGAN + end, 0.0, 0.0, 0, b"")


def worked() -> CallTally:
    """Of three squares two are done and one failed twice; of two sums one needed that one, and the other waits."""
    tally = CallTally()
    tally.accept("square", 3)
    tally.accept("sum", 2)
    tally.add_done([("square", result(0.0, 1.0)), ("square", result(1.0, 4.0))])
    for begin in (0.0, 2.0):
        tally.fail("square", result(begin, begin + 1, "error", "Traceback\n  ...\nValueError: no square of 7"))
    tally.end("square", "failed", result(2.0, 3.0, "error", "Traceback\n  ...\nValueError: no square of 7"))
    tally.end("sum", "not run")
    return tally


def test_calls_are_counted_by_function_and_by_what_became_of_them() -> None:
    card = executor_card(["2 cores"], worked(), worked().busy, {}, 2.0)
    assert {state.word: state.count for state in card.states if state.count} == {
        "done": 2, "failed": 1, "not run": 1, "waiting": 1,
    }  # fmt: skip
    rows = {row.name: row for row in card.rows}
    assert (rows["square"].total, rows["square"].done, rows["square"].failed) == (3, 2, 1)
    assert (rows["square"].mean, rows["square"].longest, rows["square"].seconds) == (2.0, 3.0, 6.0)
    assert rows["sum"].mean is None
    assert card.state == "working"
    assert worked().summary() == "2 calls done, 1 failed, 1 not run, 1 under way"


def test_failed_attempts_are_grouped_by_what_they_said() -> None:
    tally = worked()
    tally.fail("sum", result(0.0, 1.0, "error", "ValueError: no square of 12"))
    [failure] = executor_card([], tally, tally.busy, {}, 2.0).failures
    assert (failure.text, failure.attempts, failure.given_up) == ("ValueError: no square of N", 3, 1)
    assert failure.examples == ["square", "sum"]


def test_a_function_has_the_same_colour_in_the_drawing_and_in_the_table() -> None:
    tally = CallTally()
    for name in ("load", "square"):
        tally.accept(name, 1)
    tally.add_done([("square", result(0.0, 1.0))])
    tally.add_done([("load", result(1.0, 4.0))])
    card = executor_card([], tally, tally.busy, {}, 2.0)
    assert card.area is not None
    drawn = dict(zip(card.area.names, card.area.colours, strict=True))
    assert drawn == {row.name: row.colour for row in card.rows} == {"square": 0, "load": 1}


def test_futures_that_two_threads_look_at_are_counted_once() -> None:
    together = threading.Barrier(2)

    class Met(Future[int]):
        """Is looked at by two threads at the same time, if they let each other."""

        def done(self) -> bool:
            with suppress(threading.BrokenBarrierError):
                together.wait(0.5)
            return super().done()

    futures: list[Future[Any]] = [Met()]
    futures[0].set_result(1)
    source = FuturesSource(futures)
    other = threading.Thread(target=source.card)
    other.start()
    source.card()
    other.join()
    assert {state.word: state.count for state in source.card().states if state.count} == {"done": 1}


def test_what_a_future_says_of_itself_is_nothing_that_a_terminal_obeys() -> None:
    future = CallFuture(0, "f\x1b[2J", None, lambda task: None)
    future.fail_with(ValueError("\x1b]0;title\x07\u202eno"))
    assert repr(future) == "<CallFuture of f?[2J: failed, ValueError: ?]0;title??no>"
    failed = dependency_failed("g", "f", ValueError("\x1b[2J"))
    assert str(failed) == "g was not run: f, which it needs, failed with ValueError: ?[2J"


def test_a_call_that_ends_before_it_begins_took_no_time() -> None:
    busy = WorkerTime()
    busy.add("f", BEGAN, BEGAN + 1.0)
    busy.add("f", BEGAN + BUCKETS * FINEST + 1.0, BEGAN)
    assert sum(busy.rows["f"]) == 1.0
    tally = CallTally()
    tally.accept("f", 1)
    tally.add_done([("f", result(100.0, 0.0))])
    assert tally.lines["f"].seconds == 0.0 and sum(tally.busy.rows["f"]) == 0.0


def test_different_messages_are_not_kept_without_end() -> None:
    tally = CallTally()
    tally.accept("f", 1)
    for number in range(3 * MOST_MESSAGES):
        tally.fail("f", result(0.0, 1.0, "error", f"E: {number}"))
    assert len(tally.messages) == MOST_MESSAGES + 1
    assert tally.messages[OTHER_MESSAGE].attempts == 2 * MOST_MESSAGES


def test_time_left_counts_what_running_calls_have_behind_them() -> None:
    tally = CallTally()
    tally.accept("f", 20)
    tally.add_done([("f", result(8.0 * number, 8.0 * number + 6 + number % 2)) for number in range(10)])
    fresh = executor_card([], tally, tally.busy, {"f": 1}, 2.0, going=[("f", 0.0)])
    later = executor_card([], tally, tally.busy, {"f": 1}, 2.0, going=[("f", 6.0)])
    assert "left" in fresh.time and "left" in later.time
    assert fresh.time != later.time


def test_an_executor_is_idle_when_all_calls_are_over() -> None:
    tally = CallTally()
    assert executor_card([], tally, tally.busy, {}, 2.0).state == "ready"
    tally.accept("f", 1)
    assert executor_card([], tally, tally.busy, {}, 2.0).state == "working"
    tally.add_done([("f", result(0.0, 1.0))])
    assert executor_card([], tally, tally.busy, {}, 2.0).state == "idle"
    assert executor_card([], tally, tally.busy, {}, 2.0, over=True).state == "shut down"


def test_buckets_keep_all_time_however_old_the_executor_grows() -> None:
    chance = random.Random(5)
    busy, total = WorkerTime(), 0.0
    busy.add("f", BEGAN, BEGAN)
    for _ in range(300):
        begin = BEGAN + chance.uniform(0, 50)
        length = chance.choice([0.001, 0.3, 20.0]) * chance.random()
        share = chance.random()
        busy.add(chance.choice("fg"), begin, begin + length, length * share)
        total += length * share
    assert busy.width > FINEST
    assert all(len(row) == BUCKETS for row in busy.rows.values())
    assert sum(map(sum, busy.rows.values())) == pytest.approx(total)


def test_a_call_fills_the_buckets_in_which_it_ran() -> None:
    busy = WorkerTime()
    busy.add("f", BEGAN, BEGAN + 4 * FINEST)
    busy.add("g", BEGAN + 1.5 * FINEST, BEGAN + 3.25 * FINEST)
    shares = [spent / FINEST for spent in busy.rows["g"][:5]]
    assert shares == pytest.approx([0, 0.5, 1, 0.25, 0])


def test_the_last_bucket_counts_for_the_part_of_it_that_is_over() -> None:
    tally = CallTally()
    tally.accept("f", 1)
    tally.add_done([("f", result(0.0, 10.5 * FINEST))])
    card = executor_card([], tally, tally.busy, {}, 2.0)
    assert card.area is not None
    assert card.area.series == [pytest.approx([1.0] * 11)]
    assert card.area.used == "50 % of 2 cores in use"


def test_a_copy_of_the_buckets_is_another_thing() -> None:
    busy = WorkerTime()
    busy.add("f", BEGAN, BEGAN + 1)
    busy.copy().add("f", BEGAN, BEGAN + 1000)
    assert (busy.width, sum(busy.rows["f"]), busy.last) == (FINEST, 1.0, BEGAN + 1)


def test_functions_beyond_the_colours_share_one() -> None:
    tally = CallTally()
    for number in range(20):
        tally.accept(f"f{number}", 1)
        tally.add_done([(f"f{number}", result(0.0, 1.0))])
    card = executor_card([], tally, tally.busy, {}, 20.0)
    assert card.area is not None
    assert (len(card.area.names), card.area.names[-1]) == (12, "other functions")
    assert [sum(column) for column in zip(*card.area.series, strict=True)][:16] == pytest.approx([20.0] * 16)
    assert "and 12 more functions" in text_of(card)


def future(name: str) -> CallFuture:
    return CallFuture(0, name, None, lambda task: None)


def test_a_future_tells_its_state_without_opening_its_result() -> None:
    one = future("load")
    assert repr(one) == "<CallFuture of load: waiting>"
    one.begin()
    assert repr(one) == "<CallFuture of load: running>"
    one.deliver(b"no pickle at all")
    assert repr(one) == "<CallFuture of load: done>"
    assert "load" in one._repr_html_() and "done" in one._repr_html_()


def test_a_future_that_failed_tells_why_in_a_line() -> None:
    one, other, third = future("load"), future("len"), future("max")
    one.fail_with(ValueError("bad <b>\nmore"))
    other.fail_with(dependency_failed("len", "load", ValueError("bad")))
    third.cancel()
    assert repr(one) == "<CallFuture of load: failed, ValueError: bad <b>>"
    assert "bad &lt;b&gt;" in one._repr_html_()
    assert (other.state(), third.state()) == ("not run", "cancelled")


def test_watched_futures_are_counted_as_they_end() -> None:
    calls: list[Future[Any]] = [future("load"), future("load"), future("len"), Future()]
    source = FuturesSource(calls)
    card = source.card()
    assert (card.title, card.state, source.is_over()) == ("4 futures", "working", False)
    first, second, third, other = calls
    assert isinstance(first, CallFuture) and isinstance(second, CallFuture)
    first.deliver(b"")
    second.fail_with(ValueError("no file 7"))
    card = source.card()
    assert {state.word: state.count for state in card.states if state.count} == {"done": 1, "failed": 1, "waiting": 2}
    assert [failure.text for failure in card.failures] == ["ValueError: no file 7"]
    third.cancel()
    other.set_result(None)
    assert source.is_over()
    card = source.card()
    assert {row.name: (row.done, row.failed, row.total) for row in card.rows} == {
        "load": (1, 1, 2), "len": (0, 0, 1), "Future": (1, 0, 1),
    }  # fmt: skip
    assert (card.state, card.tone) == ("failed", "bad")
    assert "core time" not in html_of(card), "times are not known of futures"


def test_futures_of_which_some_were_cancelled_have_not_failed() -> None:
    calls = [future("load"), future("load")]
    calls[0].deliver(b"")
    calls[1].cancel()
    card = FuturesSource(calls).card()
    assert (card.state, card.tone) == ("cancelled", "soft")


@pytest.mark.parametrize("what", [3, None, [Future(), 3], b"flow.py"])
def test_what_cannot_be_watched_is_told_in_a_sentence(what: Any) -> None:
    with pytest.raises(WatchError, match="is not a future; pass a workflow file, an executor, or futures"):
        watch(what)
