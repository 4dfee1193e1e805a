"""Corner cases of data-aware placement and stealing."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from shoal.core.policies.placement import ANYWHERE, AdaptiveThreshold, CandidatesPlacement, DataAware
from shoal.core.policies.stealing import MOST_NEIGHBOURS, POLICIES, Release, RetryInterval, Stealing, policy_named
from shoal.errors import InputError

MEGA = 1_000_000


def test_thief_never_stops_asking() -> None:
    pace = RetryInterval(Stealing(), Random(1))
    pauses = [pace.next() for _ in range(1000)]
    assert max(pauses) <= 1.5 * Stealing().longest_interval
    assert min(pauses[20:]) >= 0.5 * Stealing().longest_interval


def test_pauses_of_thieves_differ() -> None:
    assert len({RetryInterval(Stealing(), Random(seed)).next() for seed in range(10)}) == 10


def test_an_arrival_makes_the_next_pause_short_again() -> None:
    pace = RetryInterval(Stealing(), Random(1))
    for _ in range(20):
        pace.next()
    pace.reset()
    assert pace.next() <= 1.5 * Stealing().first_interval


def test_few_are_asked_however_many_there_are() -> None:
    assert [Stealing().asked(peers) for peers in (1, 3, 8, 65_535)] == [1, 2, 3, MOST_NEIGHBOURS]


def test_bytes_are_summed_per_node_so_many_small_inputs_win_over_one_large() -> None:
    """The paper looks at single objects: one of 6 MB here, against ten of 5 MB there."""
    assert DataAware(0.0, 1e6).choose(0, [(0, 6 * MEGA), (1, 50 * MEGA)], 1.0) == 1


def test_this_node_is_preferred_among_equals() -> None:
    for rule in (DataAware(0.0, 1e6), CandidatesPlacement()):
        assert rule.choose(2, [(1, MEGA), (2, MEGA), (3, MEGA)], 1.0) == 2


def test_small_data_does_not_decide_even_if_the_sum_is_large() -> None:
    rule = DataAware(0.5, 1e6)
    assert rule.choose(0, [(1, MEGA), (2, MEGA)], 3.0) == ANYWHERE  # 2 s in all, but only 1 s of it could be saved
    assert rule.choose(0, [(1, 2 * MEGA)], 3.0) == 1


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_a_task_of_no_length_divides_nothing_by_zero(seconds: float) -> None:
    assert DataAware(0.5, 1e6).choose(0, [(1, 400)], seconds) == ANYWHERE
    assert DataAware(0.5, 1e6).choose(0, [(1, 600)], seconds) == 1


def test_before_the_first_end_data_is_large_if_moving_it_takes_more_than_a_second() -> None:
    rule = DataAware(0.5, 1e6)
    assert rule.choose(0, [(1, MEGA - 1)], None) == ANYWHERE
    assert rule.choose(0, [(1, 2 * MEGA)], None) == 1


def test_mlb_never_and_mdl_always_follows_the_data() -> None:
    policies = {name: policy.placement(0.5, 1e6) for name, policy in POLICIES.items()}
    assert policies["mlb"].choose(0, [(1, 10**15)], 0.001) == ANYWHERE
    assert policies["mdl"].choose(0, [(1, 1)], 10**6) == 1


def test_pwrake_stays_here_with_more_than_half_of_the_richest() -> None:
    assert CandidatesPlacement().choose(0, [(0, 51), (1, 100)], None) == 0
    assert CandidatesPlacement().choose(0, [(0, 50), (1, 100)], None) == 1


def test_the_adaptive_threshold_falls_while_much_is_moved_and_rises_while_little_is() -> None:
    rule = AdaptiveThreshold(0.5, 1e6)
    for _ in range(AdaptiveThreshold.PERIOD):
        rule.moved(1.0, 1.0)
    assert rule.threshold == 0.25
    for _ in range(3 * AdaptiveThreshold.PERIOD):
        rule.moved(0.0, 1.0)
    assert rule.threshold == 2.0


def test_the_adaptive_threshold_is_bounded() -> None:
    low, high = AdaptiveThreshold(0.5, 1e6), AdaptiveThreshold(0.5, 1e6)
    for _ in range(50 * AdaptiveThreshold.PERIOD):
        low.moved(1.0, 0.0)
        high.moved(0.0, 1.0)
    assert (low.threshold, high.threshold) == (AdaptiveThreshold.LOWEST, AdaptiveThreshold.HIGHEST)


def test_victim_not_thief_halves_its_patience() -> None:
    release = Release(8.0, 2)
    before = release.surplus(20, 1.0)
    release.thief_failed()
    assert release.patience == 4.0
    assert release.surplus(20, 1.0) > before


def test_patience_stays_within_bounds_and_returns_to_where_it_began() -> None:
    release = Release(8.0, 2)
    for _ in range(100):
        release.has_released()
    assert release.patience == 8.0 * Release.RANGE
    for _ in range(100):
        release.thief_failed()
    assert release.patience == 8.0 / Release.RANGE
    for at in range(2000):
        release.completed(float(at), 1)
    assert release.patience == pytest.approx(8.0, rel=0.01)


def test_throughput_is_a_moving_average_not_that_since_the_start() -> None:
    release = Release(10.0, 1)
    for at in range(200):
        release.completed(float(at), 1)
    assert release.surplus(100, None) == pytest.approx(90, abs=1)
    for at in range(200):
        release.completed(200.0 + at / 10, 1)
    assert release.surplus(100, None) <= 1  # ten times as fast now


def test_before_the_first_end_throughput_is_cores_by_length() -> None:
    assert Release(10.0, 4).surplus(100, 2.0) == 80
    assert Release(10.0, 4).surplus(100, 0.0) == 0


def test_a_hot_spot_is_let_go_of_before_anything_is_known() -> None:
    """One producer with very many readers: all are pushed to its node, and nothing has ended yet."""
    assert Release(10.0, 2).surplus(100_000, None) == 99_980


def test_who_follows_data_whatever_it_costs_lets_go_of_nothing() -> None:
    release = Release(inf, 2)
    release.has_released()
    release.thief_failed()
    assert release.surplus(10**6, 100.0) == 0


def test_an_unknown_policy_gets_one_sentence() -> None:
    with pytest.raises(InputError, match="there is no policy 'best'"):
        policy_named("best")
