"""The totals that a run keeps of itself."""

from __future__ import annotations

import pytest

from shoal.core.resources import Resources
from shoal.core.task import Profile
from shoal.ledger.records import TaskStarted
from shoal.ledger.statistics import Statistics


def napping(cores: float) -> Profile:
    return Profile("nap", Resources.parse({"cores": cores}), cores_declared=True)


@pytest.mark.parametrize(
    ("spans", "may_oversubscribe", "utilisation"),
    [
        ([(0.0, 10.0, 1.0), (0.0, 10.0, 1.0)], True, 1.0),
        ([(0.0, 10.0, 1.0), (0.0, 10.0, 1.0), (4.0, 10.0, 1.0)], True, 0.05),
        ([(0.0, 10.0, 1.0), (0.0, 10.0, 1.0), (4.0, 10.0, 1.0)], False, 1.0),
        ([(0.0, 10.0, 2.0), (0.0, 10.0, 0.0)], True, 1.0),
        ([(0.0, 5.0, 2.0), (5.0, 10.0, 2.0)], True, 1.0),
        ([(0.0, 5.001, 2.0), (5.0, 10.0, 2.0)], True, 1.0),
        ([(0.0, 7.0, 2.0), (5.0, 10.0, 2.0)], True, 0.05),
    ],
)
def test_cores_are_held_by_running_tasks_until_more_run_than_there_are(
    spans: list[tuple[float, float, float]], may_oversubscribe: bool, utilisation: float
) -> None:
    totals = Statistics(2, 0, 100.0, 2.0)
    totals.may_oversubscribe = may_oversubscribe
    for begin, end, cores in spans:
        totals.oversubscription.add(1.7e9 + begin, 1.7e9 + end, cores)
    for task in range(2):
        totals.attempt_ended(task, totals.category("nap"), 10.0, 0.5, 0, 1.0)
    totals.ended = 110.0
    assert totals.utilisation() == pytest.approx(utilisation)


def test_places_in_use_are_counted() -> None:
    totals = Statistics(2, 0, 100.0, 2.0)
    for places in ([(1.0, 3)], [(1.0, 2), (0.0, 4)]):
        totals.count_running([(napping(cores), count) for cores, count in places])
        assert totals.running == totals.category("nap").running == sum(count for _, count in places)


def test_long_tasks_share_cores_before_one_has_ended() -> None:
    totals = Statistics(3, 0, 100.0, 2.0)
    totals.may_oversubscribe = True
    totals.going = {task: TaskStarted(task, 1, 100.0, 1, 0.0, 0) for task in range(3)}
    totals.update_oversubscription(104.0, lambda task: 1.0)
    assert totals.is_oversubscribed
    assert not totals.share_cores()
