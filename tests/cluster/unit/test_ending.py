"""What is thought of tasks that end with their node, and what may still begin on one that will be taken away."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from shoal.cluster.agent.run_share import DOUBT_SECONDS, NodeEnding, longest_time
from shoal.core.policies.retry import NOTICE, can_finish, typical_duration
from shoal.core.resources import Resources
from shoal.core.store.directory import NodeInfo


def row(task: int, outcome: str, status: int = 0) -> tuple[Any, ...]:
    return ("ended", task, 1, outcome, status, 0.0, 1.0)


TERMINATED = row(7, "crashed", signal.SIGTERM)


def test_a_task_ended_by_sigterm_is_lost_if_its_node_is_stopped_soon_after() -> None:
    ending = NodeEnding(None)
    assert ending.take_ended([row(1, "ok"), TERMINATED], 10.0) == [row(1, "ok")]
    assert ending.decided_at() == 10.0 + DOUBT_SECONDS
    ending.leaving = True
    assert ending.take_decided(10.1) == [row(7, "lost", signal.SIGTERM)]
    assert ending.take_decided(10.2) == []
    assert ending.decided_at() is None


@pytest.mark.parametrize("status", [signal.SIGTERM, -signal.SIGTERM, 143])
def test_a_task_ended_by_sigterm_alone_has_crashed_after_a_moment(status: int) -> None:
    ended, ending = row(7, "crashed", status), NodeEnding(None)
    assert ending.take_ended([ended], 10.0) == []
    assert ending.take_decided(10.0 + DOUBT_SECONDS / 2) == []
    assert ending.take_decided(10.0 + DOUBT_SECONDS) == [ended]


def test_other_ends_are_reported_at_once() -> None:
    rows = [row(1, "ok"), row(2, "failed", 3), row(3, "crashed", signal.SIGSEGV), row(4, "timeout", signal.SIGTERM)]
    assert NodeEnding(None).take_ended(rows, 0.0) == rows


def test_failures_on_a_node_that_is_stopped_are_not_charged_and_successes_count() -> None:
    ending = NodeEnding(None)
    ending.leaving = True
    told = ending.take_ended([row(1, "ok"), row(2, "failed", 3), row(3, "cancelled"), TERMINATED], 0.0)
    assert [each[3] for each in told] == ["ok", "lost", "cancelled", "lost"]


def test_a_task_may_begin_if_it_ends_before_the_notice() -> None:
    assert can_finish(None, 0.0, 1e9)
    assert can_finish(100.0 + NOTICE, 0.0, 99.0)
    assert not can_finish(100.0 + NOTICE, 0.0, 101.0)
    assert can_finish(1.0 + NOTICE, 0.0, None), "what nobody knows yet must be tried"
    assert not can_finish(NOTICE - 1.0, 0.0, None)


def test_a_typical_duration_counts_every_queued_task_of_which_it_is_known() -> None:
    assert typical_duration([]) is None
    assert typical_duration([(5, None)]) is None
    assert typical_duration([(3, 10.0), (1, 50.0), (100, None)]) == 20.0


def test_the_longest_time_is_that_of_the_node_that_stays_longest() -> None:
    def node(ends_at: float | None) -> NodeInfo:
        return NodeInfo("", "", Resources(), {}, ends_at, "", "")

    assert longest_time({0: node(100.0), 1: node(500.0)}, 50.0) == 450.0 - NOTICE
    assert longest_time({0: node(100.0), 1: node(None)}, 50.0) is None
