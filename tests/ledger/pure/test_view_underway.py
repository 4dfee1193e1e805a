"""What nodes of a cluster say runs on them: it fills the curves up to now, and nothing known is counted twice."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ledger.records import NetMarked, NodeLeft, NodeSeen, NodeTold, Record
from shoal.ledger.views.core_use import MOST_MOMENTS, ReportedUse, unexplained
from shoal.ledger.views.progress import progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import Timeline, shown_categories, timeline
from shoal.ui.notebook.run_cards import UNDERWAY, run_card
from support.views import BEGAN, ended, over, planned, started, view_of

FOUR = [("cores", 40_000)]


def told(at: float, node: int, running: int) -> NodeTold:
    return NodeTold(BEGAN + at, node, running=running, cores=10_000 * running)


def cluster(*records: Record) -> RunView:
    nodes = [NodeSeen(BEGAN, 1, "n1", FOUR), NodeSeen(BEGAN, 2, "n2", FOUR)]
    return view_of(started(9), planned(["a"] * 9), *nodes, *records)


def shown(view: RunView, until: float, buckets: int) -> Timeline:
    return timeline(view, shown_categories(view), until=BEGAN + until, buckets=buckets)


def test_long_tasks_of_which_none_has_ended_are_seen() -> None:
    view = cluster(told(0.0, 1, 4), told(0.0, 2, 2))
    found = shown(view, 100.0, 4)
    assert found.untold.tolist() == pytest.approx([6.0] * 4) and found.running.tolist() == pytest.approx([6.0] * 4)
    assert not found.cores.any() and found.held().tolist() == pytest.approx([6.0] * 4)
    assert progress(view, BEGAN + 100.0).utilisation == pytest.approx(6 / 8)
    area = run_card(view, "flow.py", "running", BEGAN + 100.0).area
    assert area is not None and area.names == ["a", UNDERWAY]


def test_what_has_ended_is_not_counted_twice() -> None:
    ends = [ended(task, 0.0, 50.0, node=1) for task in range(4)]
    view = cluster(told(0.0, 1, 4), *ends, told(50.0, 1, 4))
    found = shown(view, 100.0, 4)
    assert found.cores.sum(axis=0).tolist() == pytest.approx([4.0, 4.0, 0.0, 0.0])
    assert found.untold.tolist() == pytest.approx([0.0, 0.0, 4.0, 4.0])


def test_words_that_came_late_change_nothing_further_back() -> None:
    ends = [ended(task, 10.0 * task, 10.0 * task + 10.0, node=1) for task in range(9)]
    view = cluster(*(told(moment, 1, 2) for moment in (0.0, 1.0)), told(5.0, 1, 1), *ends, told(90.0, 1, 0))
    assert shown(view, 100.0, 10).untold.tolist() == pytest.approx([0.0] * 10)


def test_a_node_that_is_gone_runs_nothing_and_a_run_that_is_over_neither() -> None:
    gone = cluster(told(0.0, 1, 4), told(0.0, 2, 2), NodeLeft(BEGAN + 50.0, 1))
    assert shown(gone, 100.0, 2).untold.tolist() == pytest.approx([6.0, 2.0])
    assert not shown(cluster(told(0.0, 1, 4), over(10.0)), 100.0, 2).untold.any()


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=40), buckets=st.integers(1, 30))
def test_the_area_is_that_of_the_steps(counts: list[int], buckets: int) -> None:
    underway = ReportedUse()
    for at, count in enumerate(counts):
        underway.take(told(float(at), 1, count))
    until = float(len(counts))
    running, cores = underway.over(np.linspace(0.0, until, buckets + 1), BEGAN, BEGAN + until)
    assert running.sum() * until / buckets == pytest.approx(sum(counts), abs=1e-6)
    assert cores == pytest.approx(running)
    assert underway.core_seconds(BEGAN + until) == pytest.approx(sum(counts))


def test_a_long_run_needs_no_more_memory_than_a_short_one() -> None:
    underway = ReportedUse()
    for at in range(20_000):
        underway.take(told(float(at), at % 7, 3))
    assert len(underway._moments) <= MOST_MOMENTS
    running, _ = underway.over(np.array([100.0, 20_000.0]), BEGAN, BEGAN + 20_000.0)
    assert running[0] == pytest.approx(21.0, rel=0.01)


def test_only_the_end_is_filled() -> None:
    said, known = np.array([5.0, 5.0, 5.0, 5.0]), np.array([1.0, 5.0, 2.0, 0.0])
    assert unexplained(said, known, np.full(4, 8.0)).tolist() == [0.0, 0.0, 3.0, 5.0]


def test_of_a_net_those_run_that_are_at_work_and_not_all_that_have_their_tokens() -> None:
    mark = NetMarked(1.0, {}, {"a": 3, "b": 1}, {}, [])
    assert mark.running_now() == 4
    assert msgspec.structs.replace(mark, at_work=2).running_now() == 2
