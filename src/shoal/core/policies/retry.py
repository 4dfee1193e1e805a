"""Retry policy: outcomes of attempts, delays before the next attempt, and starts before the end of an allocation.

A failed task is repeated as often as its author declared. A *lost* attempt (its worker died, or its node went away) is
not the task's fault and does not count as a failure, but the number of losses is bounded, so that a task that kills
every worker does not run forever.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MOST_LOSSES = 10
MOST_REQUESTS = 5
"""How often a task may request another attempt, if its author declared fewer retries."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
ROOM_DELAY = 2.0
"""Seconds before a task whose inputs found no room is tried again: other tasks may have ended by then."""
MOST_DOUBLINGS = 10
"""More than enough to reach the longest delay; an unbounded power would overflow."""


class AttemptOutcome(Enum):
    """How an attempt ended."""

    OK = "ok"
    FAILED = "failed"
    CRASHED = "crashed"
    """Killed by a signal, or the worker process died during the call."""
    TIMEOUT = "timeout"
    LOST = "lost"
    UNBEGUN = "unbegun"
    """Returned without having started: an earlier call of its bundle took too long or killed the worker."""
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"
    """Killed because it exceeded its limit of a resource."""
    MISSING = "missing"
    """Not started: an input no longer exists. The run store decides what follows."""
    NO_ROOM = "no room"
    """Not started: its inputs do not fit on the disk of its node."""
    AGAIN = "again"
    """The task itself requested another attempt."""


def retry_delay(
    outcome: AttemptOutcome, failures: int, losses: int, retries: int, first_delay: float = FIRST_DELAY
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up. The first repetition does not wait.

    `failures` and `losses` include this attempt.
    """
    if outcome is AttemptOutcome.UNBEGUN:
        return 0.0
    if outcome is AttemptOutcome.MISSING:
        return None
    if outcome is AttemptOutcome.NO_ROOM:
        return ROOM_DELAY
    if outcome is AttemptOutcome.LOST:
        return _delay(losses) if losses <= MOST_LOSSES else None
    if outcome is AttemptOutcome.AGAIN:
        retries = max(retries, MOST_REQUESTS)
    return _delay(failures, first_delay) if failures <= retries else None


def _delay(count: int, first: float = FIRST_DELAY) -> float:
    return 0.0 if count <= 1 else min(LONGEST_DELAY, first * 2.0 ** min(count - 2, MOST_DOUBLINGS))


NOTICE = 30.0
"""Seconds before the end of an allocation in which no task should run, so that results can leave the node."""
SPREADS = 2.0
"""Number of spreads above its expected duration that are reserved for a task."""


def can_finish(
    ends_at: float | None, now: float, expected: float | None, spread: float = 0.0, notice: float = NOTICE
) -> bool:
    """Whether a task started now would end before the node's allocation ends.

    A task of unknown duration may start as long as there is any time: otherwise its duration would never be known.
    """
    if ends_at is None:
        return True
    return now + (expected or 0.0) + SPREADS * spread < ends_at - notice


def typical_duration(lanes: Iterable[tuple[int, float | None]]) -> float | None:
    """Mean duration of queued tasks, from pairs of number and duration per kind; None if unknown."""
    total, count = 0.0, 0
    for queued, seconds in lanes:
        if seconds is not None:
            total += queued * seconds
            count += queued
    return total / count if count else None
