"""Which of several implementations of a task: the one whose result is there first, as far as was learned.

Each implementation has a number of places at which it runs, and what waits for them delays what comes after. One that
was never tried is tried first, and gets no more than its places hold until its first time is known. Times are moving
averages, so that what changes while a run goes on is noticed; an implementation that was passed over for long is tried
again now and then.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

WEIGHT = 0.25
"""Of a new time in the average."""
LOOK_AGAIN = 64
"""Choices after which an implementation that was never chosen is tried once more."""


class MeasuredImplementation(msgspec.Struct):
    """What is known of one implementation of a task."""

    seconds: float | None = None
    under_way: int = 0
    passed_over: int = 0
    count: int = 0


class Performance:
    """What was learned of all tasks with several implementations."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], MeasuredImplementation] = {}

    def of(self, task: str, name: str) -> MeasuredImplementation:
        return self._known.setdefault((task, name), MeasuredImplementation())

    def choose(self, task: str, places: Mapping[str, int]) -> str:
        """One of the implementations in `places`, which says how many of each can run at once; counts it as begun."""
        known = {name: self.of(task, name) for name in places}
        untried = [name for name, each in known.items() if each.seconds is None and not each.under_way]
        stale = [name for name, each in known.items() if each.passed_over >= LOOK_AGAIN]
        if untried or stale:
            best = (untried or stale)[0]
        else:
            timed = [name for name, each in known.items() if each.seconds is not None]
            open_ones = [name for name in places if name in timed or known[name].under_way < places[name]]
            some = open_ones if timed else list(places)
            best = min(some, key=lambda name: self._expected(known, name, places[name]))
        for name, each in known.items():
            each.passed_over = 0 if name == best else each.passed_over + 1
        known[best].under_way += 1
        return best

    def _expected(self, known: Mapping[str, MeasuredImplementation], name: str, places: int) -> float:
        """When the next task would be done; one not timed yet is taken to be like the slowest that was."""
        each = known[name]
        slowest = max((other.seconds for other in known.values() if other.seconds is not None), default=1.0)
        seconds = each.seconds if each.seconds is not None else slowest
        return seconds * (1 + each.under_way // max(1, places))

    def ended(self, task: str, name: str, seconds: float) -> None:
        """One that was chosen is done."""
        each = self.of(task, name)
        each.under_way = max(0, each.under_way - 1)
        each.count += 1
        each.seconds = seconds if each.seconds is None else (1 - WEIGHT) * each.seconds + WEIGHT * seconds

    def lost(self, task: str, name: str) -> None:
        """One that was chosen came to nothing."""
        each = self.of(task, name)
        each.under_way = max(0, each.under_way - 1)
