"""The block that `shoal run` redraws: no line is too wide, and what matters most is always there."""

from __future__ import annotations

import io

import pytest

from shoal.ledger.records import ThrottleDecided
from shoal.ledger.statistics import Statistics
from shoal.ledger.views.pace import CategoryPace, Progress
from shoal.ui.cli.display import LiveDisplay
from shoal.ui.cli.screen import Screen
from shoal.ui.cli.text import cells


def block(width: int, elapsed: float, left: float | None) -> list[str]:
    told = Progress(6, 0, 4, 0, 1, 1, elapsed, left, left, left and 2 * left, 3.0, 0.5)
    statistics = Statistics(6, 0, 0.0, 2.0)
    tallies = {"nap": CategoryPace(4), "gate-keeping": CategoryPace(1, running=1)}
    return LiveDisplay(Screen(io.StringIO())).lines(statistics, told, tallies, width)


@pytest.mark.parametrize("left", [None, 0.0, 0.4, 75.0, 86_400.0])
@pytest.mark.parametrize("elapsed", [0.2, 0.836, 1.2, 61.0, 100_000.0])
def test_bar_and_share_are_there_in_every_width(elapsed: float, left: float | None) -> None:
    for width in range(6, 220):
        lines = block(width, elapsed, left)
        assert max(map(cells, lines)) <= width
        assert "67 %" in lines[0]
        assert lines[0].startswith("#") == (width >= 10)


def test_the_throttle_is_not_told_of_a_category_that_is_over() -> None:
    statistics = Statistics(6, 0, 0.0, 2.0)
    statistics.throttled(ThrottleDecided(1.0, "", "nap", 2, 0, 0, "settled", "", 0.0, 0.0, ""))
    told = Progress(6, 0, 4, 0, 1, 1, 1.0, None, None, None, 3.0, 0.5)
    display = LiveDisplay(Screen(io.StringIO()))
    assert any("throttle: nap" in line for line in display.lines(statistics, told, {"nap": CategoryPace(4, 3)}, 80))
    assert not any("throttle" in line for line in display.lines(statistics, told, {"nap": CategoryPace(4, 4)}, 80))
