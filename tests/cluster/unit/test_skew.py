"""Whether a clock is so wrong that it is reported."""

from __future__ import annotations

import pytest

from shoal.cluster.agent.heartbeat import TOLERATED, ahead, skew_sentence


@pytest.mark.parametrize("theirs", [100.0, 100.0 - TOLERATED, 100.0 + TOLERATED])
def test_small_differences_are_not_worth_a_word(theirs: float) -> None:
    assert ahead(100.0, 100.0, theirs) == 0.0


def test_a_clock_is_ahead_or_behind() -> None:
    assert ahead(100.0, 100.2, 40.1) == pytest.approx(60.0)
    assert ahead(100.0, 100.2, 160.1) == pytest.approx(-60.0)


def test_a_slow_answer_is_no_evidence() -> None:
    assert ahead(100.0, 110.0, 100.0) == 0.0
    assert ahead(100.0, 110.0, 110.0) == 0.0


def test_the_sentence_names_node_direction_and_remedy() -> None:
    assert skew_sentence("n7", -60.0).startswith("the clock of n7 is 1 min 00 s behind the cluster's")
    assert "1 min 00 s ahead of" in skew_sentence("n7", 60.0)
    assert "NTP" in skew_sentence("n7", 60.0)
