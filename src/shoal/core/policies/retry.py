"""When a failed attempt is repeated, and how long to wait before.

A task is given the retries its author asked for. An attempt that was *lost* (its worker died under it, the node went
away) is not the task's fault and is not charged, but a bound keeps a task that kills every worker from running for
ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MOST_LOSSES = 10
MOST_REQUESTS = 5
"""How often a task may ask for another attempt beyond the retries its author gave it."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
ROOM_DELAY = 2.0
"""Until a task whose inputs found no room is tried again: others have ended by then, or end later."""
MOST_DOUBLINGS = 10
"""More than enough to reach the longest delay; a power without bound would overflow."""


class AttemptOutcome(Enum):
    """How an attempt ended."""

    OK = "ok"
    FAILED = "failed"
    CRASHED = "crashed"
    """Ended by a signal, or the worker process died in the middle of the call."""
    TIMEOUT = "timeout"
    LOST = "lost"
    UNBEGUN = "unbegun"
    """Handed back without having been begun: it was bundled behind a call that took long or took its worker along."""
    CANCELLED = "cancelled"
    EXHAUSTED = "exhausted"
    """Ended because it used more of a resource than it may."""
    MISSING = "missing"
    """Not begun: an input is not there any more. Whoever keeps the books of the files decides what follows."""
    NO_ROOM = "no room"
    """Not begun: what it reads does not fit on the disk of its node."""
    AGAIN = "again"
    """The task itself asks to be run again."""


def retry_delay(
    outcome: AttemptOutcome, failures: int, losses: int, retries: int, first_delay: float = FIRST_DELAY
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up. The first repetition does not wait.

    `failures` and `losses` count this attempt too.
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
"""Seconds before the end of an allocation in which nothing should run any more, so that results can leave the node."""
SPREADS = 2.0
"""How many spreads above its expected duration a task is allowed for."""


def can_finish(
    ends_at: float | None, now: float, expected: float | None, spread: float = 0.0, notice: float = NOTICE
) -> bool:
    """Whether a task begun now ends before the node is taken away.

    A task of unknown duration may begin as long as there is any time: otherwise its duration would never be known.
    """
    if ends_at is None:
        return True
    return now + (expected or 0.0) + SPREADS * spread < ends_at - notice


def typical_duration(lanes: Iterable[tuple[int, float | None]]) -> float | None:
    """Mean seconds of queued tasks, from how many there are of each kind and how long one takes; None: not known."""
    total, count = 0.0, 0
    for queued, seconds in lanes:
        if seconds is not None:
            total += queued * seconds
            count += queued
    return total / count if count else None
