"""How fast a run goes and how long it will still take. Pure: time is an argument.

Tasks of one category are alike, so what is left is counted per category with the mean of those that are done, and
divided by the number of tasks that ran at the same time so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

_MEMORY_SECONDS = 5.0


class Pace:
    """A smoothed rate of finished tasks, and the time that tasks have spent running; fed with running totals."""

    def __init__(self, started: float) -> None:
        self.started = started
        self.rate = 0.0
        self.busy = 0.0
        """Seconds of all tasks together, those still running included."""
        self._last = started
        self._done = 0

    def update(self, now: float, done: int, running: int) -> None:
        """Takes the totals of this moment."""
        passed = now - self._last
        if passed <= 0:
            return
        # Until the memory is filled, all that happened counts the same: no slow climb from zero.
        share = max(1 - exp(-passed / _MEMORY_SECONDS), passed / (now - self.started))
        self.rate += ((done - self._done) / passed - self.rate) * share
        self.busy += running * passed
        self._last, self._done = now, done

    def width(self) -> float:
        """How many tasks ran at the same time, on average."""
        passed = self._last - self.started
        return self.busy / passed if passed > 0 else 0.0


def work_left(left: Mapping[str, int], done: Mapping[str, tuple[int, float]]) -> float | None:
    """Seconds of work in the tasks that are left, by category; None before the first task of all is done.

    `done` has count and seconds by category. A category of which nothing is done yet counts with the mean of all.
    """
    tasks = sum(number for number, _ in done.values())
    if not tasks:
        return None
    mean_of_all = sum(seconds for _, seconds in done.values()) / tasks
    total = 0.0
    for category, number in left.items():
        known, seconds = done.get(category, (0, 0.0))
        total += number * (seconds / known if known else mean_of_all)
    return total


def time_left(work: float | None, begun: float, width: float, rate: float, tasks: int) -> float | None:
    """Seconds until the end; `begun` is the work that running tasks have behind them already.

    For tasks that are over in no time the rate tells more: starting them costs more than what they do.
    """
    if work is None or not tasks:
        return None if tasks else 0.0
    by_work = max(0.0, work - begun) / width if width > 0 else 0.0
    by_rate = tasks / rate if rate > 0 and work / tasks < 0.02 else 0.0
    return max(by_work, by_rate)
