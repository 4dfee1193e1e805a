"""How far a run is, from the totals that it keeps of itself; the model is in `shoal.view.pace`. Time is an argument.

How many tasks ran at the same time is counted from tick to tick. Of tasks that are over in no time most of that is the
time between two of them: it counts with no more than what those that ended took, and what those that run may have
behind them. Since when tasks run is known on this machine; on a cluster it follows from the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.engine.statistics import Statistics
from shoal.view.pace import Known, Progress, Rate, Tally, Widths, progress_of


class Pace:
    """Follows the totals of one run, of which so many tasks of each category are planned."""

    def __init__(self, started: float, planned: Mapping[str, int], category_of: Callable[[int], str]) -> None:
        self.started = started
        self._planned = planned
        self._category_of = category_of
        self._widths = Widths()
        self._rate = Rate(started)
        self._last = started
        self._ended = 0.0
        """Seconds of attempts that had ended at the last tick."""
        self._busy = started
        """When something ran last."""
        self._ticked = 0.0
        """Seconds of all tasks together, counted from tick to tick."""

    def update(self, statistics: Statistics, now: float) -> None:
        """Takes the totals of this moment."""
        if now <= self._last:
            return
        passed = now - self._last
        # What came and went between two ticks, or ran where nobody says so, is seen when it has ended.
        running = statistics.running or (statistics.seconds - self._ended) / passed
        if running > 0:
            self._busy = now
        self._widths.add(self._last - self.started, now - self.started, running)
        self._ticked += running * passed
        self._ended = statistics.seconds
        self._rate.update(now, statistics.done)
        self._last = now

    def progress(self, statistics: Statistics, now: float) -> Progress:
        """The model at this moment."""
        tallies = self.tallies(statistics)
        going = [
            (tallies.get(self._category_of(task), Tally()), max(0.0, now - record.time))
            for task, record in statistics.going.items()
        ]
        begun = sum(seconds for _, seconds in going) if going else self._begun(statistics, tallies)
        scale = (statistics.seconds + begun) / self._ticked if self._ticked > 0 else 0.0
        elapsed = now - self.started
        return progress_of(
            Known(
                statistics.to_run(),
                statistics.up_to_date,
                statistics.running,
                elapsed,
                False,
                list(tallies.values()),
                going,
                [min(1.0, scale) * width for width in self._widths.slices(self._last - self.started)],
                self._rate.at(now),
                any(record.state == "growing" for record in statistics.throttle.values()),
                statistics.doomed,
                statistics.cancelled,
                self._utilisation(statistics, begun, elapsed),
                0.0 if going else begun,
                quiet=now - self._busy,
            )
        )

    def tallies(self, statistics: Statistics) -> dict[str, Tally]:
        """By category, as they were planned."""
        found = {}
        for name, planned in self._planned.items():
            totals = statistics.category(name)
            found[name] = Tally(planned, totals.done, totals.failed, totals.running, totals.good, totals.squares)
        return found

    def _begun(self, statistics: Statistics, tallies: Mapping[str, Tally]) -> float:
        counted = max(0.0, self._ticked - statistics.seconds)
        tasks = sum(tally.done for tally in tallies.values())
        if not tasks:
            return counted
        mean_of_all = sum(tally.seconds for tally in tallies.values()) / tasks
        told = sum(tally.running for tally in tallies.values())
        expected = sum(tally.running * tally.mean(mean_of_all) for tally in tallies.values())
        return min(counted, expected + max(0, statistics.running - told) * mean_of_all)

    @staticmethod
    def _utilisation(statistics: Statistics, begun: float, elapsed: float) -> float | None:
        if statistics.cores * elapsed <= 0:
            return None
        used = statistics.cpu if statistics.is_crowded else statistics.work
        held = used / statistics.seconds if statistics.seconds > 0 else 1.0
        return min(1.0, (used + begun * held) / (statistics.cores * elapsed))
