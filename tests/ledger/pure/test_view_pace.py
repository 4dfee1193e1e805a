"""One model of progress: it says the same from all attempts, from records, and from a run's totals."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.quantities import show_share, span, time_left
from shoal.ledger.records import Record, TasksCancelled, TaskStarted, ThrottleDecided
from shoal.ledger.statistics import PlannedChain, RunPace, Statistics
from shoal.ledger.status import RunStatus
from shoal.ledger.views.pace import SLICES, CategoryPace, ConcurrencyHistory, KnownProgress, Longest, Rate, progress_of
from shoal.ledger.views.progress import progress
from shoal.ledger.views.throttle import throttle_note
from support.graphs import graph_of
from support.views import BEGAN, ended, linked, over, planned, started, view_of


def tally_of(planned: int, *seconds: float) -> CategoryPace:
    found = CategoryPace(planned)
    for each in seconds:
        found.add(each)
    return found


def known(*tallies: CategoryPace, width: float = 2.0, **more: float) -> KnownProgress:
    to_run = sum(tally.planned for tally in tallies)
    return KnownProgress(to_run, 0, 0, 10.0, False, tallies, [], [width] * SLICES, 1.0, **more)  # type: ignore[arg-type]


def test_what_is_left_counts_with_the_mean_of_its_category() -> None:
    told = progress_of(known(tally_of(15, *[0.1] * 10), tally_of(5, 10.0, 10.0)))
    assert told.left == pytest.approx((5 * 0.1 + 3 * 10.0) / 2)


def test_category_without_experience_counts_with_the_mean_of_all() -> None:
    assert progress_of(known(tally_of(2, 3.0, 3.0), tally_of(4))).left == pytest.approx(6.0)


def test_nothing_is_said_before_the_first_task_is_done() -> None:
    told = progress_of(known(tally_of(3)))
    assert (told.left, told.least, told.most) == (None, None, None)


def test_the_band_is_narrow_for_like_tasks_and_wide_for_different_ones() -> None:
    alike = progress_of(known(tally_of(100, *[1.0] * 50)))
    unlike = progress_of(known(tally_of(100, *[0.1, 1.9] * 25)))
    assert alike.least == pytest.approx(25.0)
    assert alike.most == pytest.approx(25.0)
    assert unlike.least is not None and unlike.most is not None
    assert unlike.least < 20.0 < 30.0 < unlike.most


def test_the_last_tasks_do_not_fill_all_places() -> None:
    assert progress_of(known(tally_of(11, *[4.0] * 10), width=8.0)).left == pytest.approx(4.0)


def test_what_cannot_run_any_more_is_not_waited_for() -> None:
    assert progress_of(known(tally_of(20, *[1.0] * 10), cannot_run=10)).left == pytest.approx(0.0)


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 30)), min_size=1, max_size=20),
    until=st.floats(1.0, 100.0),
)
def test_widths_add_up_to_the_time_that_tasks_ran(spans: list[tuple[float, float]], until: float) -> None:
    widths = ConcurrencyHistory()
    for begin, length in spans:
        widths.add(begin, begin + length)
    inside = sum(max(0.0, min(until, begin + length) - min(until, begin)) for begin, length in spans)
    # Buckets at the edges of slices are as wide as 80 s / 256 at most here, and hold 20 tasks at most.
    assert sum(widths.slices(until)) * until / SLICES == pytest.approx(inside, abs=20 * 0.32)
    assert widths.total() == pytest.approx(sum(length for _, length in spans), abs=1e-6)


def test_rate_is_of_the_last_seconds_and_of_no_fewer_than_some_tasks() -> None:
    rate = Rate(0.0)
    for tick in range(1, 601):
        rate.update(tick / 10, tick)
    assert rate.at(60.0) == pytest.approx(10.0)
    slow = Rate(0.0)
    for minute in range(1, 31):
        slow.update(60.0 * minute, minute)
    assert slow.at(1800.0) == pytest.approx(1 / 60, rel=0.1)


def steady(per_second: int, running: int, seconds: float, until: int) -> tuple[RunPace, Statistics]:
    """Tasks of some seconds that end at an even pace, as the totals of a run tell it."""
    statistics = Statistics(1000, 0, BEGAN, 2.0)
    pace = RunPace(BEGAN, {"a": 1000}, lambda task: "a")
    totals = statistics.category("a")
    for tick in range(1, 10 * until + 1):
        while statistics.done < tick * per_second / 10:
            statistics.attempt_ended(statistics.done, totals, seconds, seconds, 0, 1.0)
            statistics.task_done(totals, seconds)
        statistics.running = totals.running = running
        pace.update(statistics, BEGAN + tick / 10)
    return pace, statistics


def test_a_run_says_of_itself_what_its_ledger_says() -> None:
    # Two tasks of a second each run at a time, from the beginning on.
    records: list[Record] = [started(1000), planned(["a"] * 1000)]
    records += [ended(task, task // 2, task // 2 + 1.0) for task in range(40)]
    of_view = progress(view_of(*records), BEGAN + 20.0)
    state = RunStatus()
    for record in records:
        state.take(record)
    of_ledger = state.progress(BEGAN + 20.0)
    pace, statistics = steady(2, 2, 1.0, 20)
    of_totals = pace.progress(statistics, BEGAN + 20.0)
    assert of_view.left == pytest.approx(480.0)
    for other in (of_ledger, of_totals):
        assert other.done == of_view.done == 40
        assert other.left == pytest.approx(of_view.left, rel=0.01)
        assert other.most == pytest.approx(of_view.most, rel=0.05)
        assert other.rate == pytest.approx(of_view.rate, rel=0.1)
        assert other.utilisation == pytest.approx(of_view.utilisation, abs=0.03)


def test_of_tasks_that_are_over_in_no_time_the_time_between_them_counts() -> None:
    pace, statistics = steady(50, 2, 0.001, 10)
    told = pace.progress(statistics, BEGAN + 10.0)
    assert told.left == pytest.approx(10.0, rel=0.02)


def test_the_rate_of_a_run_that_is_over_is_that_of_all_of_it() -> None:
    view = view_of(started(2), planned(["a", "a"]), ended(0, 0.0, 1.0), ended(1, 0.0, 4.0))
    view.end = None
    assert progress(view, BEGAN + 4.0).rate == pytest.approx(0.5)


def test_a_growing_throttle_may_end_the_run_much_sooner() -> None:
    decided = ThrottleDecided(BEGAN, "", "a", 4, 2, 9, "growing", "disk", 0.92, 0.0, "")
    records: list[Record] = [started(8), planned(["a"] * 8), *(ended(task, task, task + 1.0) for task in range(4))]
    before, after = progress(view_of(*records), BEGAN + 4.0), progress(view_of(*records, decided), BEGAN + 4.0)
    assert before.least is not None and after.least == pytest.approx(before.least / 4)
    assert throttle_note([decided]) == "a: limit 4 (growing), disk 92 %"
    assert throttle_note([]) == ""


def test_before_anything_has_ended_only_the_cores_in_use_are_known() -> None:
    records: list[Record] = [started(2), planned(["a", "a"]), TaskStarted(0, 1, BEGAN + 1.0, 1, 0.0, 0)]
    told = progress(view_of(*records), BEGAN + 2.0)
    assert (told.left, told.running, told.waiting, told.rate) == (None, 1, 1, 0.0)
    assert told.utilisation == pytest.approx(0.25)


def test_tasks_under_way_have_part_of_their_time_behind_them() -> None:
    records: list[Record] = [
        started(3),
        planned(["a"] * 3),
        ended(0, 0.0, 10.0),
        TaskStarted(1, 1, BEGAN + 10.0, 1, 0.0, 0),
    ]
    told = progress(view_of(*records), BEGAN + 14.0)
    assert (told.running, told.waiting) == (1, 1)
    assert told.left == pytest.approx(20.0 - 4.0)


def test_a_task_that_runs_much_longer_than_others_may_run_as_long_again() -> None:
    one = TaskStarted(2, 1, BEGAN + 2.0, 1, 0.0, 0)
    records: list[Record] = [started(4), planned(["a", "a", "a", "b"]), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0), one]
    told = progress(view_of(*records), BEGAN + 62.0)
    assert told.left == pytest.approx(59.0)
    assert told.least == pytest.approx(0.0, abs=1.0)
    assert told.most == pytest.approx(118.0, rel=0.1)
    state = RunStatus()
    for record in records:
        state.take(record)
    assert state.progress(BEGAN + 62.0).left == pytest.approx(told.left)
    statistics = Statistics(4, 0, BEGAN, 2.0)
    for task in range(2):
        statistics.attempt_ended(task, statistics.category("a"), 1.0, 1.0, 0, 1.0)
        statistics.task_done(statistics.category("a"), 1.0)
    statistics.running, statistics.going = 1, {2: one}
    pace = RunPace(BEGAN, {"a": 3, "b": 1}, lambda task: "a")
    pace.update(statistics, BEGAN + 62.0)
    assert pace.progress(statistics, BEGAN + 62.0).left == pytest.approx(told.left)


def test_times_left_are_no_more_exact_than_they_can_be() -> None:
    assert time_left(720.0, 600.0, 900.0) == "12 min (10\N{EN DASH}15) left"
    assert time_left(45.0, 30.0, 130.0) == "45 s (30 s\N{EN DASH}2 min) left"
    assert time_left(0.4, 0.1, 1.2) == "nearly done"
    assert span(7200.0, 7190.0, 7210.0) == "2 h"
    assert span(4e5, 3e5, 5e5) == "4.6 d (3.5\N{EN DASH}5.8)"


def test_a_hundred_per_cent_is_all_of_it() -> None:
    assert [show_share(part, 1000) for part in (0, 4, 120, 997, 999.9, 1000)] == [
        "0 %",
        "0.4 %",
        "12 %",
        "99 %",
        "99 %",
        "100 %",
    ]


def test_the_model_of_a_run_loads_no_numpy() -> None:
    code = "import sys, shoal.ui.cli.display, shoal.ui.cli.status_tables; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_with_an_unknown_number_of_tasks_has_no_estimate() -> None:
    """A net hands out tasks as it goes: what is handed out is nearly done at every moment."""
    told = progress_of(KnownProgress(0, 0, 4, 10.0, False, [tally_of(55, *[0.1] * 51)], [], [2.0] * SLICES, 5.0))
    assert (told.to_run, told.done, told.running, told.waiting) == (0, 51, 4, 0)
    assert (told.left, told.least, told.most) == (None, None, None)


def test_what_was_cancelled_is_counted_once_and_takes_with_it_what_needs_it() -> None:
    records: list[Record] = [
        started(6),
        planned(["a"] * 6),
        linked({0: [], 1: [0], 2: [1], 3: [], 4: [], 5: [4]}),
        TaskStarted(4, 1, BEGAN, 1, 0.0, 0),
        TasksCancelled([0, 4]),
        ended(3, 0.0, 1.0),
    ]
    view, state = view_of(*records), RunStatus()
    for record in records:
        state.take(record)
    for told in (progress(view, BEGAN + 2.0), state.progress(BEGAN + 2.0)):  # one of them has not ended yet
        assert (told.done, told.running, told.waiting, told.cancelled, told.cannot_run) == (1, 1, 0, 1, 3)
    late: list[Record] = [ended(4, 0.0, 3.0, "cancelled", final=False), over(4.0, "tasks were cancelled")]
    view.take_all(late)
    for record in late:
        state.take(record)
    told = progress(view)
    assert (told.done, told.running, told.cancelled, told.not_run, told.over) == (1, 0, 2, 3, 6)
    assert (state.cancelled(), state.not_run()) == (2, 3)


def test_what_was_done_all_the_same_is_not_cancelled() -> None:
    records: list[Record] = [started(2), planned(["a", "a"]), TasksCancelled([0, 1]), ended(0, 0.0, 1.0)]
    view, state = view_of(*records), RunStatus()
    for record in records:
        state.take(record)
    assert progress(view, BEGAN + 2.0).cancelled == state.cancelled() == 1


def beside_a_chain(now: float, *, is_told: bool = True) -> list[Record]:
    """Two cores: links of 50 ms, one after another, and another task that runs for long."""
    records: list[Record] = [started(201), planned(["link"] * 200 + ["slowest"])]
    records += [linked({0: [-1], 200: [-1], **{task: [task - 1] for task in range(1, 200)}})] * is_told
    done = int(now / 0.05)
    records += [ended(task, 0.05 * task, 0.05 * (task + 1)) for task in range(done)]
    return [*records, *(TaskStarted(task, 1, BEGAN + begun, 1, 0.0, 0) for task, begun in ((200, 0.0), (done, now)))]


def test_no_run_is_over_before_its_longest_chain() -> None:
    state = RunStatus()
    for record in beside_a_chain(1.0):
        state.take(record)
    for told in (progress(view_of(*beside_a_chain(1.0)), BEGAN + 1.02), state.progress(BEGAN + 1.02)):
        assert told.left == pytest.approx(180 * 0.05 - 0.02, abs=0.02)
        assert told.least is not None and told.least > 8.0


def test_a_run_itself_knows_its_longest_chain_once_it_has_taken_a_while() -> None:
    graph = graph_of("\n".join(["0:", *(f"{number}: {number - 1}" for number in range(1, 200)), "slowest:"]))
    done = array("d", bytes(8 * len(graph)))
    only = graph.profile_of(0).category
    pace = RunPace(BEGAN, {only: 201}, lambda task: only, PlannedChain(graph, range(201), done))
    statistics = Statistics(201, 0, BEGAN, 2.0)
    statistics.running, statistics.going = 2, {200: TaskStarted(200, 1, BEGAN, 1, 0.0, 0)}
    left = []
    for number in range(100):
        statistics.attempt_ended(number, statistics.category(only), 0.05, 0.05, 0, 1.0)
        statistics.task_done(statistics.category(only), 0.05)
        done[number] = now = BEGAN + 0.05 * (number + 1)
        pace.update(statistics, now)
        left.append(pace.progress(statistics, now).left)
    assert left[39] is not None and left[39] < 0.7 * 160 * 0.05, "nobody has looked for it yet"
    assert left[-1] == pytest.approx(100 * 0.05, abs=0.1)
    statistics.doomed = 1
    assert pace.progress(statistics, now).left != left[-1]


def test_where_chains_are_not_known_the_band_reaches_to_their_end() -> None:
    """The long task holds a place that the others cannot use, which looks as if two of them ran at a time."""
    state = RunStatus()
    for record in beside_a_chain(1.0, is_told=False):
        state.take(record)
    told = state.progress(BEGAN + 1.02)
    assert told.left is not None and told.most is not None
    assert told.left < 180 * 0.05 - 0.02 <= told.most < 12.0


def test_other_tasks_of_an_unmeasured_category_may_take_as_long_as_the_running_one() -> None:
    records: list[Record] = [started(4), planned(["quick", "slow", "slow", "slow"]), ended(0, 0.0, 0.01)]
    told = progress(view_of(*records, TaskStarted(1, 1, BEGAN, 1, 0.0, 0)), BEGAN + 2.0)
    assert told.most is not None and told.most > 7.0


def test_the_task_of_a_chain_that_runs_has_part_of_its_time_behind_it() -> None:
    records: list[Record] = [started(3), planned(["a"] * 3), linked({0: [-1], 1: [0], 2: [1]}), ended(0, 0.0, 10.0)]
    told = progress(view_of(*records, TaskStarted(1, 1, BEGAN + 10.0, 1, 0.0, 0)), BEGAN + 14.0)
    assert told.left == pytest.approx(16.0)


@pytest.mark.parametrize("later", [0.4, -3600.0])
def test_a_task_of_a_chain_that_has_just_ended_does_not_count_as_not_begun(later: float) -> None:
    """Not even between two looks at the whole chain, nor after a clock has been put back."""
    longest, over = Longest([1, 1, 2, 3], lambda task: "a"), {0}
    tallies = {"a": CategoryPace(planned=4, done=2, seconds=120.0, squares=7200.0)}
    longest.look(over.__contains__, 100.0)
    before = longest.chain(tallies, {1: 59.0})
    assert before is not None and (before.tasks, before.begun) == ([(tallies["a"], 3.0)], 59.0)
    over.add(1)
    longest.look(over.__contains__, 100.0 + later)
    after = longest.chain(tallies, {2: 0.5})
    assert after is not None and (after.tasks, after.begun) == ([(tallies["a"], 2.0)], 0.5)
    over |= {2, 3}
    longest.look(over.__contains__, 100.0 + later)
    assert longest.chain(tallies, {}) is None


def test_what_failed_or_cannot_run_is_not_waited_for_in_a_chain() -> None:
    records: list[Record] = [started(4), planned(["a"] * 4), linked({0: [-1], 3: [-1], 1: [0], 2: [1]})]
    records += [ended(3, 0.0, 1.0), ended(0, 0.0, 1.0, "failed")]
    assert progress(view_of(*records), BEGAN + 1.0).left == pytest.approx(0.0)


@pytest.mark.parametrize(("after", "says"), [(2.0, True), (4.0, True), (9.0, False), (600.0, False)])
def test_when_nothing_has_run_for_a_while_there_is_no_estimate(after: float, says: bool) -> None:
    """The rest waits for a node that does not come."""
    records: list[Record] = [started(9), planned(["a"] * 9), *(ended(task, task, task + 1.0) for task in range(8))]
    told = progress(view_of(*records), BEGAN + 8.0 + after)
    assert (told.left is not None, told.most is not None) == (says, says)
    state = RunStatus()
    for record in records:
        state.take(record)
    assert (state.progress(BEGAN + 8.0 + after).left is not None) == says


def test_what_is_done_needs_no_more_time_however_quiet_it_is() -> None:
    records: list[Record] = [started(2), planned(["a"] * 2), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0)]
    assert progress(view_of(*records), BEGAN + 100.0).left == 0.0


def test_a_run_says_of_itself_when_nothing_has_run_for_a_while() -> None:
    pace, statistics = steady(2, 2, 1.0, 20)
    statistics.running = statistics.category("a").running = 0
    for tick in range(201, 500):
        pace.update(statistics, BEGAN + tick / 10)
    assert pace.progress(statistics, BEGAN + 50.0).left is None


def test_a_run_in_which_nothing_runs_any_more_has_no_time_left() -> None:
    records: list[Record] = [started(3), planned(["a"] * 3), ended(0, 0.0, 1.0), ended(1, 1.0, 2.0)]
    state, pace, totals = RunStatus(), RunPace(BEGAN, {"a": 3}, lambda task: "a"), Statistics(3, 0, BEGAN, 2.0)
    for record in records:
        state.take(record)
    totals.running = 1
    pace.update(totals, BEGAN + 1.0)
    for end in (1.0, 2.0):
        totals.attempt_ended(0, totals.category("a"), 1.0, 1.0, 0, 1.0)
        totals.task_done(totals.category("a"), 1.0)
        totals.running = 0
        pace.update(totals, BEGAN + end)
    for left in (state.progress(BEGAN + 3.0).left, pace.progress(totals, BEGAN + 3.0).left):
        assert left is not None and left > 0
    pace.update(totals, BEGAN + 60.0)
    assert state.progress(BEGAN + 60.0).left is None
    assert pace.progress(totals, BEGAN + 60.0).left is None


def test_what_fails_after_something_was_cancelled_in_vain_still_takes_others_with_it() -> None:
    state = RunStatus()
    links = linked({0: [], 1: [], 2: [1], 3: [2]})
    for record in (started(4), planned(["a"] * 4), links, TasksCancelled([0])):
        state.take(record)
    assert state.cannot_run() == 0
    state.take(ended(0, 0.0, 1.0))
    state.take(ended(1, 0.0, 1.0, "failed"))
    assert state.cannot_run() == 2
