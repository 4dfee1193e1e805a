"""Work Queue's arithmetic: numbers made with the original, and the rules that the numbers follow."""

from __future__ import annotations

import pytest

from shoal.core.policies.sizing.work_queue import MODES, AttemptSummary, WorkQueueCategory, first_allocation
from shoal.sim.sizing_replay import BucketState, buckets_of, grown

PEAKS = [290, 280, 100, 760, 1240, 510, 90, 420, 980, 300]
TIMES = [12.5, 3.25, 40, 7, 88, 19, 2, 31, 64, 5]


@pytest.mark.parametrize(
    ("mode", "top", "width", "expected"),
    [
        ("min-waste", 300, 1, 100),
        ("min-waste", 300, 250, 250),
        ("min-waste", 1300, 100, 100),
        ("min-waste", 1300, 250, 1250),
        ("min-waste", 2000, 1, 1240),
        ("min-waste", 2000, 100, 1300),
        ("min-waste", 40000, 250, 1250),
        ("max-throughput", 300, 250, 250),
        ("max-throughput", 1300, 1, 100),
        ("max-throughput", 1300, 250, 500),
        ("max-throughput", 2000, 250, 500),
        ("max-throughput", 5000, 250, 1250),
        ("max-throughput", 40000, 100, 100),
    ],
)
def test_first_allocation_is_what_the_original_computes(mode: str, top: int, width: int, expected: float) -> None:
    assert first_allocation(mode, PEAKS, TIMES, top, width) == expected


def test_a_result_cut_to_the_top_is_rounded_up_except_as_in_old_releases() -> None:
    assert first_allocation("min-waste", [290] * 3, [1, 1, 5], 300, 250) == 500
    assert first_allocation("min-waste", [290] * 3, [1, 1, 5], 300, 250, rounded=False) == 300


def test_max_adds_a_third_of_a_bucket_and_stays_below_explicit_maximum_and_worker() -> None:
    assert first_allocation("max", [490], [1], 1000, 250) == 750
    assert first_allocation("max", [400], [1], 1000, 250) == 500
    assert first_allocation("max", [490], [1], 1000, 250, explicit_max=600) == 600
    assert first_allocation("max", [490], [1], 1000, 250, largest_worker=550, explicit_max=600) == 550


@pytest.mark.parametrize("mode", MODES[1:])
def test_without_data_or_top_the_first_allocation_is_undefined(mode: str) -> None:
    assert first_allocation(mode, [], [], 1000, 250) is None
    assert first_allocation(mode, [100], [1], -1, 250) is None
    assert first_allocation(mode, [], [], 1000, 250, explicit_min=70) == 70


def run(category: WorkQueueCategory, peaks: list[float], normal: bool = True) -> None:
    for peak in peaks:
        category.accumulate(AttemptSummary({"memory": peak}, 10.0, normal), {"memory": 16000.0})


def test_a_category_is_steady_at_the_attempt_after_the_25th() -> None:
    category = WorkQueueCategory("max-throughput")
    run(category, [300.0] * 25)
    assert category.first == {"memory": 500.0}
    assert not category.steady and category.ask() == {}
    run(category, [300.0])
    assert category.steady and category.ask() == {"memory": 500.0}


def test_a_new_maximum_voids_the_first_allocation_only_before_steady_state() -> None:
    category = WorkQueueCategory("min-waste")
    run(category, [300.0] * 24 + [600.0])
    assert category.completions == 1 and category.first is None
    run(category, [300.0] * 25)
    assert category.steady and category.first == {"memory": 500.0}
    run(category, [5000.0])
    assert category.steady and category.first == {"memory": 500.0}
    assert category.ask(first_attempt=False) == {"memory": 5000.0}


def test_a_larger_peak_in_the_same_bucket_is_no_new_maximum() -> None:
    category = WorkQueueCategory("min-waste")
    run(category, [300.0] * 10 + [490.0])
    assert category.completions == 11


def test_an_explicit_maximum_is_asked_before_steady_state_and_cannot_be_outgrown() -> None:
    category = WorkQueueCategory("max-throughput", maximum={"memory": 800.0})
    run(category, [300.0] * 5 + [700.0] * 5)
    assert category.completions == 10
    assert category.ask() == {"memory": 800.0}


def test_attempts_over_their_limits_count_for_the_maximum_seen_only() -> None:
    category = WorkQueueCategory("max-throughput")
    run(category, [300.0])
    run(category, [9000.0], normal=False)
    assert category.seen == {"memory": 9000.0}
    assert category.histograms["memory"].counts == {500.0: 1}


def test_after_exhaustion_only_what_exceeds_a_declared_value_fails() -> None:
    assert not WorkQueueCategory("fixed").may_retry({"memory": 10.0})
    category = WorkQueueCategory("max-throughput", maximum={"memory": 800.0})
    assert category.may_retry({"memory": 700.0})
    assert not category.may_retry({"memory": 900.0})
    assert category.may_retry({"memory": 900.0}, own={"memory": 1000.0})


def test_a_guess_makes_a_category_steady_at_once() -> None:
    category = WorkQueueCategory("max-throughput")
    category.guess({"memory": 640.0})
    assert category.ask() == {"memory": 640.0}


def test_values_of_the_task_itself_always_win() -> None:
    category = WorkQueueCategory("min-waste", minimum={"memory": 100.0})
    run(category, [300.0] * 30)
    assert category.ask(own={"memory": 50.0}) == {"memory": 50.0}
    assert category.least(own={"memory": 50.0}) == {"memory": 100.0}


def test_bucketing_samples_with_the_default_and_grows_by_powers_of_two() -> None:
    state = BucketState("greedy", 1000.0)
    assert state.predict(None, 0.5) == 1000
    assert state.predict(1000.0, 0.5) == 2000
    assert state.predict(3500.0, 0.5) == 4000
    assert grown(0.0, 1.0) == 2


def test_a_retry_looks_only_at_larger_buckets_with_their_shares_made_whole() -> None:
    state = BucketState("greedy", 1000.0)
    for value in [100.0] * 5 + [1000.0] * 5:
        state.add(value)
    assert [bucket.top for bucket in state.buckets] == [100.0, 1000.0]
    assert state.buckets[0].share == pytest.approx(15 / 55)
    assert state.predict(None, 0.2) == 100
    assert state.predict(None, 0.3) == 1000
    assert state.predict(100.0, 0.0) == 1000
    assert state.predict(1000.0, 0.0) == 2000


def test_deterministic_modes_take_the_smallest_bucket_that_is_left() -> None:
    state = BucketState("det-greedy", 1000.0)
    for value in [100.0] * 5 + [5000.0] * 5:
        state.add(value)
    assert state.predict(None, 0.99) == 100
    assert state.predict(100.0, 0.0) == 5000


def test_quantized_buckets_hold_equally_many_tasks() -> None:
    assert [bucket.top for bucket in buckets_of("quantized", range(1, 13), most=4)] == [3, 6, 9, 12]
    assert [bucket.top for bucket in buckets_of("quantized", range(1, 13))] == [12]


def test_exhaustive_buckets_end_at_points_and_cover_everything() -> None:
    for mode in ("exhaustive", "det-exhaustive"):
        buckets = buckets_of(mode, [100, 110, 105, 900, 950, 103, 930, 98, 107, 101])
        assert buckets[-1].top == 950
        assert [bucket.top for bucket in buckets[:-1]] == [110]
        assert sum(bucket.share for bucket in buckets) == pytest.approx(1)
