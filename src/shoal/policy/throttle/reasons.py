"""Sentences that say why so many tasks of a category run together and no more."""

from __future__ import annotations

from shoal.policy.throttle.climb import Climber
from shoal.policy.throttle.controller import State

BUSY = {"cpu": "the processors are busy", "disk": "the disk is busy", "network": "the network is busy"}
ORDINALS = (
    "no",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


def explain(category: str, cap: int, climber: Climber, dominant: str | None, ahead: str | None) -> str:
    """One sentence without a full stop."""
    if ahead is not None:
        what = f" ({BUSY[dominant]})" if dominant is not None else ""
        return f"category '{category}' waits for its turn after '{ahead}'{what}"
    run = f"{cap} of category '{category}' run{'s' if cap == 1 else ''} together" if cap != 1 else _alone(category)
    if climber.state is State.PROFILING:
        return f"{run} until it is known what one of them uses"
    if climber.state is State.GROWING:
        return f"{run}, to see whether that is faster"
    if climber.state is State.PROBING:
        return f"{run} for a moment, to see whether another number is better"
    if climber.limit is not None and cap >= climber.limit:
        return f"{run}; the contract admits no more"
    why = BUSY[dominant] if dominant is not None else "something outside the node is busy"
    if climber.tried is None:
        return f"{run}; more would slow each other down ({why})"
    if climber.tried == cap + 1:
        return f"{run}; a {_ordinal(climber.tried)} was tried and brought nothing ({why})"
    return f"{run}; {climber.tried} were tried and brought nothing ({why})"


def _alone(category: str) -> str:
    return f"1 of category '{category}' runs at a time"


def _ordinal(number: int) -> str:
    if number < len(ORDINALS):
        return ORDINALS[number]
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
