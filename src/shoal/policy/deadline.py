"""Whether a task may still be begun on a node that will be taken away. Pure: the time is told."""

from __future__ import annotations

from collections.abc import Iterable

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
