"""When a failed attempt is repeated, and how long to wait before.

A task is given the retries its author asked for. An attempt that was *lost* (its worker died under it, the node went
away) is not the task's fault and is not charged, but a bound keeps a task that kills every worker from running for
ever.
"""

from __future__ import annotations

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


class Outcome(Enum):
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
    outcome: Outcome, failures: int, losses: int, retries: int, first_delay: float = FIRST_DELAY
) -> float | None:
    """Seconds to wait before the next attempt, or None to give up. The first repetition does not wait.

    `failures` and `losses` count this attempt too.
    """
    if outcome is Outcome.UNBEGUN:
        return 0.0
    if outcome is Outcome.MISSING:
        return None
    if outcome is Outcome.NO_ROOM:
        return ROOM_DELAY
    if outcome is Outcome.LOST:
        return _delay(losses) if losses <= MOST_LOSSES else None
    if outcome is Outcome.AGAIN:
        retries = max(retries, MOST_REQUESTS)
    return _delay(failures, first_delay) if failures <= retries else None


def _delay(count: int, first: float = FIRST_DELAY) -> float:
    return 0.0 if count <= 1 else min(LONGEST_DELAY, first * 2.0 ** min(count - 2, MOST_DOUBLINGS))
