"""How fast files come, from what came."""

from __future__ import annotations

import pytest

from shoal.cluster.agent.task_files import FRESH, LEAST, PERIOD, ArrivalRate


def test_nothing_is_known_before_enough_has_come() -> None:
    inflow = ArrivalRate()
    inflow.arrived(1.0, LEAST, 0)  # nobody saw it begin
    inflow.begins(2.0)
    inflow.arrived(2.1, LEAST - 1, 0)
    assert inflow.rate is None


def test_what_comes_together_counts_together() -> None:
    inflow = ArrivalRate()
    inflow.begins(10.0)
    inflow.begins(10.1)
    inflow.arrived(10.2, LEAST, 1)
    assert inflow.rate is None
    inflow.arrived(10.4, LEAST, 0)
    assert inflow.rate == pytest.approx(2 * LEAST / 0.4)


def test_time_in_which_nothing_is_on_its_way_does_not_count() -> None:
    inflow = ArrivalRate()
    inflow.begins(0.0)
    inflow.arrived(1.0, LEAST, 0)
    inflow.begins(100.0)
    inflow.arrived(101.0, LEAST, 0)
    assert inflow.rate == pytest.approx(LEAST)


def test_a_link_that_became_slower_is_followed() -> None:
    inflow = ArrivalRate()
    inflow.begins(0.0)
    inflow.arrived(PERIOD, 10 * LEAST, 1)
    inflow.arrived(PERIOD + 1.0, LEAST, 0)
    assert inflow.rate == pytest.approx((1 - FRESH) * 10 * LEAST / PERIOD + FRESH * LEAST)
