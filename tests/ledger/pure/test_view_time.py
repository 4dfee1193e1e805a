"""Time in buckets and cells: areas are exact, whatever the buckets, and a picture has no more cells than asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ledger.records import NodeSeen, Record, TaskStarted, ThrottleDecided
from shoal.ledger.views.tables import figures
from shoal.ledger.views.timeline import OTHERS, even_edges, gantt, rank_of, shown_categories, slots_of, spread, timeline
from shoal.ledger.views.waits import TaskWaits
from shoal.ui.report.data import MOST_SLOTS, gantt_data
from support.views import BEGAN, diamond, ended, linked, over, planned, started, view_of

spans = st.lists(
    st.tuples(st.floats(-5, 15), st.floats(0, 8), st.floats(0.1, 4), st.integers(0, 2)), min_size=1, max_size=30
)


def going(*tasks: int) -> list[Record]:
    """They began with the run."""
    return [TaskStarted(task, 1, BEGAN, 1, 0.0, 0) for task in tasks]


@settings(max_examples=80, deadline=None)
@given(rows=spans, buckets=st.integers(1, 40))
def test_each_bucket_has_the_area_that_lies_in_it(rows: list[tuple[float, float, float, int]], buckets: int) -> None:
    edges = even_edges(0.0, 10.0, buckets)
    begins = np.array([row[0] for row in rows])
    ends = begins + np.array([row[1] for row in rows])
    weights, groups = np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
    found = spread(begins, ends, weights, groups, 3, edges)
    for bucket in range(buckets):
        low, high = edges[bucket], edges[bucket + 1]
        inside = np.clip(np.minimum(ends, high) - np.maximum(begins, low), 0, None) * weights
        expected = [inside[groups == group].sum() / (high - low) for group in range(3)]
        assert found[:, bucket] == pytest.approx(expected, abs=1e-6)


def test_categories_beyond_the_most_share_one_place() -> None:
    place, count = rank_of(np.array([1.0, 9.0, 5.0, 7.0]), 3)
    assert (place.tolist(), count) == ([2, 0, 2, 1], 3)


def test_the_timeline_adds_up_to_the_work_that_was_done() -> None:
    view = diamond()
    over_time = timeline(view, shown_categories(view), TaskWaits(view), buckets=100)
    width = 0.1
    assert over_time.cores.sum() * width == pytest.approx(8.0)
    assert over_time.capacity.tolist() == pytest.approx([2.0] * 100)
    assert over_time.done[[5, 35, 99]].tolist() == [0, 1, 4]
    found = figures(view, over_time)
    assert found.utilisation == pytest.approx(0.4)
    assert found.idle == pytest.approx(12.0)
    # Task 0 could run from 0 on, 3 from 7 on; each waited for a second while cores were idle.
    assert found.idle_although_ready == pytest.approx(2.0)
    assert found.idle_nothing_ready == pytest.approx(10.0)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4), st.floats(0.01, 4)), min_size=1, max_size=12),
    buckets=st.integers(2, 40),
    now=st.floats(1.0, 14.0),
)
def test_no_task_counts_in_two_states(rows: list[tuple[float, float, float]], buckets: int, now: float) -> None:
    """Tasks wait, then run; every second of them fails. What lies behind `now` has not happened yet."""
    ends: list[Record] = [started(len(rows)), planned(["a"] * len(rows)), linked({0: [-1]})]
    for task, (ready, waits, runs) in enumerate(rows):
        begin, outcome = ready + waits, "failed" if task % 2 else "ok"
        if begin + runs <= now:
            ends.append(ended(task, begin, begin + runs, outcome))
        elif begin < now:
            ends.append(TaskStarted(task, 1, BEGAN + begin, 1, 0.0, 0))
    view = view_of(*ends)
    found = timeline(view, shown_categories(view), TaskWaits(view), until=BEGAN + now, buckets=buckets)
    assert (found.done + found.failed + found.running + found.ready <= len(rows) + 1e-2).all()
    over = view.attempts.outcome
    assert (found.done[-1], found.failed[-1]) == ((over == 0).sum(), (over != 0).sum()), "how it stands now"


def test_at_the_end_what_ran_is_done_and_nothing_runs_though_a_task_did_not() -> None:
    ends = [ended(task, task // 2, task // 2 + 1.0) for task in range(15)]
    view = view_of(started(16), planned(["a"] * 16), *ends, over(8.0))
    found = timeline(view, shown_categories(view), buckets=7)
    assert (found.done + found.running).max() == pytest.approx(15.0)
    assert (found.done[-1], found.running[-1]) == (15, 0)


def test_the_last_bucket_of_a_page_is_not_over_and_its_means_are_of_a_part() -> None:
    """Whoever draws it divides them by that part."""
    view = view_of(started(3), planned(["a"] * 3), ended(0, 0.0, 4.1), *going(1, 2))
    found = timeline(view, shown_categories(view), until=BEGAN + 4.5, window=(0.0, 5.0), buckets=5)
    assert (found.done[-1], found.running[-1]) == (1, pytest.approx(2 * 0.5))


def test_a_window_shows_only_what_lies_in_it() -> None:
    view = diamond()
    over_time = timeline(view, shown_categories(view), window=(3.0, 4.0), buckets=10)
    assert over_time.cores.sum(axis=0).tolist() == pytest.approx([2.0] * 10)
    assert len(over_time.ready) == 0


def test_attempts_under_way_count_up_to_now() -> None:
    view = view_of(started(1), planned(["a"]), TaskStarted(0, 1, BEGAN + 1, 1, 0.0, 0))
    over_time = timeline(view, shown_categories(view), until=BEGAN + 3, buckets=3)
    assert over_time.running.tolist() == pytest.approx([0.0, 1.0, 1.0])


@pytest.mark.parametrize(("measured", "drawn"), [(1, 0), (30, 30 << 20)])
def test_memory_is_drawn_only_if_it_was_measured_for_a_good_part_of_the_time(measured: int, drawn: int) -> None:
    ends = [ended(task, 0.0, 1.0, memory=(1 << 20) if task < measured else 0) for task in range(100)]
    view = view_of(started(100), planned(["a"] * 100), *ends, over(1.0))
    assert timeline(view, shown_categories(view), buckets=1).memory.sum() == pytest.approx(drawn)


def test_cores_that_are_shared_count_with_the_processor_time_that_was_used() -> None:
    throttle = ThrottleDecided(BEGAN, "", "a", 4, 4, 0, "growing", "", 0.0, 0.0, "")
    ends = [ended(task, 0.0, 10.0, cpu=2.5) for task in range(4)]
    view = view_of(started(4, cores=1.0), planned(["a"] * 4), throttle, *ends, over(10.0))
    assert view.is_oversubscribed()
    found = figures(view, timeline(view, shown_categories(view)))
    assert found.utilisation == pytest.approx(1.0)


def test_many_categories_are_drawn_as_a_few_and_the_others() -> None:
    names = [f"c{number}" for number in range(30)]
    ends = [ended(task, 0.0, 1.0 + task) for task in range(30)]
    shown = shown_categories(view_of(started(30), planned(names), *ends))
    assert len(shown.names) == 12
    assert (shown.names[0], shown.names[-1]) == ("c29", OTHERS)


def test_few_categories_have_their_colours_in_the_order_of_the_plan() -> None:
    ends = [ended(0, 0.0, 1.0), ended(1, 0.0, 9.0), ended(2, 0.0, 5.0)]
    shown = shown_categories(view_of(started(3), planned(["simulate", "fit", "merge"]), *ends))
    assert shown.names == ["simulate", "fit", "merge"]


def test_slots_are_as_many_as_ran_together_on_each_node() -> None:
    ends = [
        ended(0, 0.0, 2.0, node=1),
        ended(1, 1.0, 3.0, node=1),
        ended(2, 2.0, 4.0, node=1),
        ended(3, 0.0, 1.0, node=2),
    ]
    nodes = [NodeSeen(BEGAN, number, f"n{number}", []) for number in (1, 2)]
    slots = slots_of(view_of(started(4), planned(["a"] * 4), *nodes, *ends, over(4.0)))
    assert slots.row.tolist() == [0, 1, 0, 2]
    assert (slots.nodes, slots.order) == ([1, 1, 2], [0, 1, 0])


def test_a_cell_has_the_category_that_had_most_of_it_and_how_full_it_was() -> None:
    view = view_of(
        started(3), planned(["a", "b", "b"]), ended(0, 0.0, 1.0), ended(1, 1.0, 1.5), ended(2, 2.0, 4.0), over(4.0)
    )
    shown = shown_categories(view)
    picture = gantt(view, shown, slots_of(view), pixels=4)
    a, b = shown.names.index("a") + 1, shown.names.index("b") + 1
    assert list(picture.cells) == [a << 4 | 15, b << 4 | 8, b << 4 | 15, b << 4 | 15]
    assert picture.labels == ["here · 1"]


def test_a_picture_of_many_slots_has_no_more_rows_than_asked_for() -> None:
    ends = [ended(task, 0.0, 5.0) for task in range(100)]
    view = view_of(started(100), planned(["a"] * 100), *ends, over(5.0))
    picture = gantt(view, shown_categories(view), slots_of(view), rows=8, pixels=10)
    assert len(picture.labels) == 8
    assert set(picture.cells) == {1 << 4 | 15}
    assert picture.labels[0] == "here · 1 to 13"


@pytest.mark.parametrize("begin", [0.0, 5e6, 1e9])
def test_buckets_have_a_width_however_late_they_are(begin: float) -> None:
    """Of a run of months a window may be asked for that is narrower than its moments are apart."""
    edges = even_edges(begin, begin, 6000)
    assert (np.diff(edges) > 0).all()
    found = spread(np.zeros(1), np.array([2e9]), np.ones(1), np.zeros(1, np.int64), 1, edges)
    assert found == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("slots", "kind"), [(MOST_SLOTS, "bars"), (MOST_SLOTS + 1, "cells")])
def test_more_slots_than_a_browser_draws_one_below_the_other_are_a_picture(slots: int, kind: str) -> None:
    ends = [ended(task, 0.0, 1.0) for task in range(slots)]
    view = view_of(started(slots, cores=slots), planned(["a"] * slots), *ends, over(2.0))
    drawn = gantt_data(view, shown_categories(view), slots_of(view), None)
    assert drawn["kind"] == kind and len(drawn["rows"]) <= MOST_SLOTS
