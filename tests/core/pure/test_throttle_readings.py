"""Aggregation of node samples into control periods: modes, means, errors, and ignored samples."""

from __future__ import annotations

import math

import pytest

from shoal.core.policies.throttle.readings import CPU, DISK, NETWORK, Endings, Meter, NodeSample, figure, fullest_bin


def test_the_mode_is_the_mean_of_the_fullest_bin() -> None:
    assert fullest_bin([0.61, 0.62, 0.63, 0.2, 0.9]) == pytest.approx(0.62)


def test_of_equally_full_bins_the_higher_one_counts() -> None:
    assert fullest_bin([0.11, 0.12, 0.81, 0.82]) == pytest.approx(0.815)


def test_the_mode_over_reads_bursts_and_the_mean_does_not() -> None:
    found = figure([0.0, 0.12, 0.0, 0.12, 0.0, 0.12, 0.0, 0.12])
    assert found.mode == pytest.approx(0.12)
    assert found.mean == pytest.approx(0.06)


def test_full_use_is_in_the_last_bin() -> None:
    assert fullest_bin([1.0, 1.0, 0.3]) == 1.0


def test_nothing_sensed_is_no_use() -> None:
    assert fullest_bin([]) == 0.0
    assert figure([]).error == 0.0


def test_samples_that_are_alike_in_pairs_are_worth_half_as_many() -> None:
    alone = figure([0.4, 0.6, 0.4, 0.6, 0.4, 0.6, 0.4, 0.6])
    paired = figure([0.4, 0.4, 0.6, 0.6, 0.4, 0.4, 0.6, 0.6])
    assert paired.mean == alone.mean
    assert paired.error > 1.3 * alone.error


def test_what_others_steal_of_the_processors_is_not_there_to_be_used() -> None:
    assert NodeSample(user=0.3, system=0.1, steal=0.5).use(CPU) == pytest.approx(0.8)
    assert NodeSample(user=0.9, steal=0.9, disk=0.2, network=0.3).use(CPU) == 1.0
    assert NodeSample(disk=0.2).use(DISK) == 0.2
    assert NodeSample(network=0.3).use(NETWORK) == 0.3


def filled(meter: Meter, running: list[int], begin: float = 0.0) -> float:
    now = begin
    for count in running:
        now += 0.5
        meter.sample(now, NodeSample(user=0.1, running={"a": count}))
    return now


def test_a_period_belongs_to_a_number_only_if_that_number_ran() -> None:
    meter = Meter()
    meter.aim(0.0, {"a": 8})
    now = filled(meter, [8] * 8)
    assert meter.due(now)
    assert meter.period(now, {"a": 5}).turnout["a"].held
    now = filled(meter, [8, 8, 6, 5, 4, 4, 4, 4], now)
    assert not meter.period(now, {"a": 5}).turnout["a"].held
    now = filled(meter, [12] * 8, now)
    assert not meter.period(now, {"a": 5}).turnout["a"].held


def test_a_period_is_due_after_its_samples_and_begins_anew() -> None:
    meter = Meter()
    assert not meter.due(100.0)
    now = filled(meter, [1] * 7, 100.0)
    assert not meter.due(now)
    now = filled(meter, [1], now)
    assert meter.due(now)
    period = meter.period(now, {"a": 0})
    assert period.samples == 8
    assert period.seconds == pytest.approx(4.0)
    assert not meter.due(now)
    assert meter.period(now, {"a": 0}).samples == 0


def test_tasks_that_ran_beside_another_number_do_not_count_as_times_but_as_completed() -> None:
    meter = Meter()
    meter.aim(10.0, {"a": 4})
    meter.ended(10.5, "a", 2.0)
    meter.ended(12.5, "a", 2.0)
    filled(meter, [4] * 8, 10.0)
    turnout = meter.period(14.0, {"a": 1}).turnout["a"]
    assert turnout.completed == 2
    assert turnout.endings.count == 1


def test_times_are_compared_by_their_geometric_mean() -> None:
    endings = Endings()
    for seconds in (1.0, 4.0):
        endings.add(seconds)
    assert math.exp(endings.log_mean) == pytest.approx(2.0)
    assert endings.mean == 2.5
    assert endings.log_spread == pytest.approx(math.log(2))


def test_merged_endings_are_those_of_both() -> None:
    one, other, both = Endings(), Endings(), Endings()
    for at, seconds in enumerate((1.0, 2.0, 3.0, 5.0)):
        (one if at % 2 else other).add(seconds)
        both.add(seconds)
    one.merge(other)
    assert one.count == both.count
    assert one.log_mean == pytest.approx(both.log_mean)
    assert one.log_error == pytest.approx(both.log_error)
