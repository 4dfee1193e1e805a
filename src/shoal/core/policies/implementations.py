"""Selects one of several implementations of a task: the one expected to finish first, from measured durations.

Each implementation has a number of slots, and tasks that wait for them delay the next one. An untested implementation
is tried first, and gets no more tasks than it has slots until its first duration is known. Durations are moving
averages, so that changes during a run are noticed. An implementation that was not chosen for a long time is tried
again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

WEIGHT = 0.25
"""Weight of a new duration in the moving average."""
LOOK_AGAIN = 64
"""Number of choices after which an implementation that was not chosen is tried again."""


class MeasuredImplementation(msgspec.Struct):
    """Measured state of one implementation of a task."""

    seconds: float | None = None
    under_way: int = 0
    passed_over: int = 0
    count: int = 0


class Performance:
    """Measured durations of all tasks with several implementations."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], MeasuredImplementation] = {}

    def of(self, task: str, name: str) -> MeasuredImplementation:
        return self._known.setdefault((task, name), MeasuredImplementation())

    def choose(self, task: str, places: Mapping[str, int]) -> str:
        """Selects one of the implementations in `places` (slots by name), and counts it as started."""
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
        """Expected end of the next task; an implementation without a duration is assumed to be as slow as the
        slowest."""
        each = known[name]
        slowest = max((other.seconds for other in known.values() if other.seconds is not None), default=1.0)
        seconds = each.seconds if each.seconds is not None else slowest
        return seconds * (1 + each.under_way // max(1, places))

    def ended(self, task: str, name: str, seconds: float) -> None:
        """Records a finished execution."""
        each = self.of(task, name)
        each.under_way = max(0, each.under_way - 1)
        each.count += 1
        each.seconds = seconds if each.seconds is None else (1 - WEIGHT) * each.seconds + WEIGHT * seconds

    def lost(self, task: str, name: str) -> None:
        """Records an execution without a result."""
        each = self.of(task, name)
        each.under_way = max(0, each.under_way - 1)
