"""How far a run is, from the totals that it keeps of itself; the model is in `shoal.view.pace`. Time is an argument.

How many tasks ran at the same time is counted from tick to tick. Of tasks that are over in no time most of that is the
time between two of them: it counts with no more than what those that ended took, and what those that run may have
behind them. Since when tasks run is known on this machine; on a cluster it follows from the count.

The longest chain of the plan is looked for once the run has taken a while, if the plan is not very large: the run
stands still meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from shoal.engine.statistics import Statistics
from shoal.model.graph import Graph
from shoal.view.longest import Longest, steps_of_longest
from shoal.view.pace import Chain, Known, Progress, Rate, Tally, Widths, progress_of

_MOST_FOLLOWED = 50_000
"""Dependencies in which a chain is looked for; that takes some 40 ms."""
_FOLLOWED_AFTER = 3.0
"""Seconds; of a shorter run nobody asks when it will be over."""


class PlannedChain:
    """The longest chain of a plan."""

    def __init__(self, graph: Graph, to_run: Sequence[int], done: Sequence[float]) -> None:
        self._graph, self._to_run = graph, to_run
        self._done = done
        """For each task when it was done, or 0."""
        self._longest: Longest | None = None

    def left(self, statistics: Statistics, tallies: Mapping[str, Tally], now: float) -> Chain | None:
        """None if it is not known: of tasks that cannot run any more nobody says which of it that concerns."""
        graph, failed = self._graph, {failure.task for failure in statistics.failures}
        if not 0 < len(graph.successors) <= _MOST_FOLLOWED or now - statistics.started < _FOLLOWED_AFTER:
            return None
        if statistics.doomed or statistics.cancelled or len(failed) < statistics.failed:
            return None
        if self._longest is None:
            runs = [False] * len(graph)
            for task in self._to_run:
                runs[task] = True
            needed = [
                task for task, (begin, end) in enumerate(pairwise(graph.successor_start)) for _ in range(begin, end)
            ]
            steps = steps_of_longest(needed, graph.successors, runs)
            self._longest = Longest(steps, lambda task: graph.profile_of(task).category)
        self._longest.look(lambda task: self._done[task] or task in failed, now)
        begun = {task: max(0.0, now - record.time) for task, record in statistics.going.items()}
        return self._longest.chain(tallies, begun)


class Pace:
    """Follows the totals of one run, of which so many tasks of each category are planned."""

    def __init__(
        self,
        started: float,
        planned: Mapping[str, int],
        category_of: Callable[[int], str],
        chain: PlannedChain | None = None,
    ) -> None:
        self.started = started
        self._chain = chain
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
                chain=self._chain.left(statistics, tallies, now) if self._chain is not None else None,
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
        used = statistics.used(shared=statistics.is_crowded)
        held = used / statistics.seconds if statistics.seconds > 0 else 1.0
        return min(1.0, (used + begun * held) / (statistics.cores * elapsed))
