"""How often a failed attempt is repeated, and after how long."""

from __future__ import annotations

import pytest

from shoal.core.policies.retry import (
    FIRST_DELAY,
    LONGEST_DELAY,
    MOST_LOSSES,
    MOST_REQUESTS,
    AttemptOutcome,
    retry_delay,
)

CHARGED = [AttemptOutcome.FAILED, AttemptOutcome.CRASHED, AttemptOutcome.TIMEOUT]


@pytest.mark.parametrize("outcome", CHARGED)
def test_a_task_gets_the_retries_it_was_given_and_no_more(outcome: AttemptOutcome) -> None:
    assert retry_delay(outcome, 1, 0, retries=0) is None
    assert retry_delay(outcome, 2, 0, retries=2) is not None
    assert retry_delay(outcome, 3, 0, retries=2) is None


def test_the_first_repetition_does_not_wait_and_later_ones_wait_twice_as_long_each() -> None:
    delays = [retry_delay(AttemptOutcome.FAILED, failures, 0, retries=99) for failures in range(1, 6)]
    assert delays == [0.0, FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY, 8 * FIRST_DELAY]


@pytest.mark.parametrize("failures", [20, 5_000])
def test_no_wait_is_longer_than_the_bound_however_many_attempts_failed(failures: int) -> None:
    assert retry_delay(AttemptOutcome.FAILED, failures, 0, retries=10_000) == LONGEST_DELAY


def test_a_lost_attempt_is_not_charged_to_the_task() -> None:
    assert retry_delay(AttemptOutcome.LOST, 0, 1, retries=0) == 0.0
    assert retry_delay(AttemptOutcome.FAILED, 1, MOST_LOSSES, retries=1) == 0.0


def test_a_task_that_loses_every_worker_is_given_up() -> None:
    assert retry_delay(AttemptOutcome.LOST, 0, MOST_LOSSES, retries=0) is not None
    assert retry_delay(AttemptOutcome.LOST, 0, MOST_LOSSES + 1, retries=99) is None


def test_attempt_that_was_never_begun_is_repeated_at_once_however_often() -> None:
    assert retry_delay(AttemptOutcome.UNBEGUN, 99, 99, retries=0) == 0.0


def test_a_task_that_asks_for_it_runs_again_although_it_was_given_no_retries() -> None:
    assert retry_delay(AttemptOutcome.AGAIN, MOST_REQUESTS, 0, retries=0, first_delay=0.0) == 0.0
    assert retry_delay(AttemptOutcome.AGAIN, MOST_REQUESTS + 1, 0, retries=0) is None
