"""The totals that a run keeps of itself."""

from __future__ import annotations

import pytest

from shoal.engine.statistics import Statistics
from shoal.model.resources import Resources
from shoal.model.task import Profile


def napping(cores: float) -> Profile:
    return Profile("nap", Resources.parse({"cores": cores}), cores_declared=True)


@pytest.mark.parametrize(
    ("together", "may_crowd", "utilisation"),
    [
        ([[(1.0, 1)], [(1.0, 2)]], True, 1.0),
        ([[(1.0, 3)], [(1.0, 2)]], True, 0.05),
        ([[(1.0, 3)]], False, 1.0),
        ([[(1.0, 2), (0.0, 4)]], True, 1.0),
        ([[(2.0, 1), (1.0, 1)]], True, 0.05),
    ],
)
def test_cores_are_held_by_whoever_runs_until_more_run_than_there_are(
    together: list[list[tuple[float, int]]], may_crowd: bool, utilisation: float
) -> None:
    totals = Statistics(2, 0, 100.0, 2.0)
    totals.may_crowd = may_crowd
    for places in together:
        totals.count_running([(napping(cores), count) for cores, count in places])
        assert totals.running == totals.category("nap").running == sum(count for _, count in places)
    for task in range(2):
        totals.attempt_ended(task, totals.category("nap"), 10.0, 0.5, 0, 1.0)
    totals.ended = 110.0
    assert totals.utilisation() == pytest.approx(utilisation)
