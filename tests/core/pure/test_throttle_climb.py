"""The climber alone: what it ends at for a given course of what gets done with n tasks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.core.policies.throttle.controller import ControllerState
from shoal.core.policies.throttle.hill_climber import Climber, ThroughputModel

PERIODS = 40


def climbed(done: Callable[[int], float], *, own: bool, limit: int = 32) -> tuple[Climber, list[int]]:
    """The climber after some periods, and the levels it went through."""
    climber = Climber(1)
    climber.bound(limit)
    levels = []
    for _ in range(PERIODS):
        climber.unchallenged = own
        climber.step(ThroughputModel(climber.level, done(climber.level), 0.01 * climber.level))
        levels.append(climber.level)
    return climber, levels


def test_where_more_tasks_bring_less_and_less_but_never_nothing_all_that_may_run_do() -> None:
    """As on a disk, which is busy with one task and yet serves many at once faster."""
    climber, levels = climbed(lambda count: float(count) ** 0.5, own=True)
    assert climber.level == 32
    assert climber.state is ControllerState.HOLDING
    assert levels[6:] == [32] * (PERIODS - 6)


def test_the_same_course_outside_the_node_is_no_reason_to_push_others_aside() -> None:
    climber, _ = climbed(lambda count: float(count) ** 0.5, own=False)
    assert climber.level < 8


@pytest.mark.parametrize("knee", [3, 5, 9, 12])
def test_a_clear_knee_is_held_a_little_beyond_it_also_where_the_resource_is_the_nodes_own(knee: int) -> None:
    _, levels = climbed(lambda count: float(min(count, knee)), own=True)
    assert knee <= levels[-1] <= knee + 4
    assert max(levels) <= 4 * knee


def test_of_levels_that_bring_the_same_the_lowest_is_held() -> None:
    courses = {1: 1.0, 2: 1.4, 4: 2.0, 8: 2.8, 16: 2.82, 32: 2.83}
    climber, levels = climbed(lambda count: courses.get(count, 2.8), own=True)
    assert levels[12] == 8
    assert climber.level < 16
