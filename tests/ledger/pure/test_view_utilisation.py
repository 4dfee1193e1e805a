"""Utilisation of cores: the same number for a run in all views."""

from __future__ import annotations

from random import Random

import pytest

from shoal.ledger.records import Record, TaskStarted, ThrottleDecided
from shoal.ledger.views import run
from shoal.ledger.views.attempts import columns_of
from shoal.ledger.views.run import RunView
from shoal.ui.report.data import run_data
from support.views import BEGAN, GIB, ended, over, planned, started, view_of

THROTTLE = ThrottleDecided(BEGAN, "", "a", 3, 2, 5, "growing", "cores", 0.5, 2.0, "so")
HEAD: list[Record] = [started(9, cores=2.0), planned("aaaaaaaaa"), THROTTLE]
GOES = TaskStarted(8, 1, BEGAN + 4.0, 7, 0.0, 0)
BESIDE = [ended(task, 0.0, 4.0, cpu=0.5) for task in (0, 1)]
OVERSUBSCRIBED = [*BESIDE, ended(2, 0.0, 4.0, cpu=0.5)]
END = over(8.0)


@pytest.mark.parametrize(
    ("records", "now", "used"),
    [
        ([*BESIDE, END], None, 8 / 16),
        ([*OVERSUBSCRIBED, END], None, 1.5 / 16),
        ([*BESIDE, GOES], BEGAN + 8.0, 12 / 16),
        ([*OVERSUBSCRIBED, GOES], BEGAN + 8.0, (1.5 + 4 * 0.125) / 16),
        ([*BESIDE, GOES, ended(3, 4.0, 6.0)], None, 12 / 12),
        ([GOES], None, 0.0),
    ],
    ids=["over", "crowded", "going", "going crowded", "killed", "killed at once"],
)
def test_progress_and_figures_go_by_one_rule(records: list[Record], now: float | None, used: float) -> None:
    found = run_data(view_of(*HEAD, *records), workflow="flow.py", now=now)
    assert found["progress"]["utilisation"] == pytest.approx(used)
    assert found["figures"]["utilisation"] == pytest.approx(used, abs=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_how_many_ran_together_is_the_same_seen_bit_by_bit(seed: int) -> None:
    random = Random(seed)
    begins = [random.uniform(0.0, 20.0) for _ in range(60)]
    ends = [ended(task, begin, begin + random.choice([0.0, 1.0, 9.0])) for task, begin in enumerate(begins)]
    ends.sort(key=lambda record: record.ended)
    for cores in (1, 2, 5, 10, 15, 20):
        head: list[Record] = [started(60, cores=cores), planned("a" * 60), THROTTLE]
        bit_by_bit, at_once = RunView(), RunView()
        bit_by_bit.take_all(head)
        at_once.take_all(head)
        for begin in range(0, 60, 5):
            bit_by_bit.take_ends(columns_of(ends[begin : begin + 5]))
            bit_by_bit.is_oversubscribed()
        at_once.take_ends(columns_of(ends))
        moments = sorted(record.started for record in ends)
        most = max(sum(each.started <= moment < each.ended for each in ends) for moment in moments)
        assert bit_by_bit.is_oversubscribed() == at_once.is_oversubscribed()
        if most <= cores:
            assert not at_once.is_oversubscribed()
        if cores == 1:  # most of the time there are more
            assert at_once.is_oversubscribed()


def test_a_throttle_that_speaks_late_counts_at_once() -> None:
    view = view_of(*HEAD[:2], *OVERSUBSCRIBED)
    assert view.held().tolist() == [1.0] * 3
    view.take(THROTTLE)
    assert view.held().tolist() == [0.125] * 3


def test_tasks_that_run_without_a_plan_are_shown() -> None:
    found = run_data(view_of(started(1), GOES), workflow="flow.py", now=BEGAN + 6.0)
    assert (found["progress"]["running"], found["shown"]) == (1, ["unknown"])


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_the_most_together_does_not_depend_on_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_PIECE", piece)
    random = Random(5)
    ends = sorted(random.uniform(0, 50) for _ in range(60))
    spans = [(max(0.0, end - random.expovariate(0.4)), end, random.randrange(1, 5) * GIB) for end in ends]
    rows = [ended(task, begin, end, memory=size) for task, (begin, end, size) in enumerate(spans)]
    view = view_of(started(60), planned(["a"] * 60), *rows)
    expected = max(sum(size for begin, end, size in spans if begin <= moment < end) for moment, *_ in spans)
    assert view.most_memory() == pytest.approx(expected)
