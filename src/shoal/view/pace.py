"""How far a run is and when it will be over, with how much that may be wrong, from a few sums. Needs no numpy.

This is the one model behind the page, `shoal top`, `shoal status` and the display of `shoal run`. They differ in where
the sums come from: all attempts (`shoal.view.progress`), the records of a ledger (`shoal.engine.follow`), or the totals
that a run keeps of itself (`shoal.engine.pace`).

What is left is counted by category with mean and spread of those that are done, and divided by the number of tasks
that ran at the same time lately. The band is two standard deviations: of the sum of what is left, as if its tasks were
drawn from the same lot as those that are done; of the means themselves, which few tasks know badly; and of the number
of tasks at the same time, as it went up and down so far. A throttle that is still growing may double that twice. A task
that runs for much longer than others of its kind is expected to run as long again, and nobody knows that well; the band
reaches as far as if the others could never use its place, as those of a chain beside it.

No run is over before the longest chain of tasks that is left, where that is known. If nothing has been running for a
while, the rest waits for something that nobody can foresee, and nothing is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import sqrt

import msgspec

SLICES, LATELY = 12, 3
"""Of the time so far, to see how many tasks ran at the same time."""
RATE_SECONDS, RATE_TASKS = 10.0, 20
"""The rate is that of the last seconds, and of no fewer tasks than these."""
_DEVIATIONS = 2.0
_UNKNOWN_SPREAD = 1.0
"""Of a category of which at most one task is done: as much as its mean."""
_GROWTH = 4.0
_STILL, _STILL_TASKS = 5.0, 3.0
"""Nothing is foreseen if nothing has run for so many seconds, and for as long as so many tasks take."""
_NOTHING = 1e-6
"""Tasks at the same time: what is left of differences."""
_HALF = 0.5
"""Of a place: where fewer are left, those that run are in the way of all others."""
_Band = tuple[float | None, float | None, float | None]
_UNSAID: _Band = (None, None, None)
_BUCKETS, _FINEST = 256, 1 / 64


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """What the process of a run says of this moment. Running tasks are places in use: a bundle of short tasks runs in
    one of them."""

    pid: int
    """Of the process that says so."""
    running: int
    categories: dict[str, int]
    """The same by category; those of which nothing runs are left out."""
    crowded: bool = False
    """More tasks than there are cores have run together; see `Statistics.is_crowded`."""


class Tally(msgspec.Struct):
    """The tasks of one category at one moment."""

    planned: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    seconds: float = 0.0
    """Of the attempts with which the tasks that are done succeeded."""
    squares: float = 0.0
    """The same, each squared."""

    def add(self, seconds: float) -> None:
        """A task is done."""
        self.done += 1
        self.seconds += seconds
        self.squares += seconds * seconds

    def left(self) -> int:
        return max(0, self.planned - self.done - self.failed)

    def mean(self, otherwise: float) -> float:
        return self.seconds / self.done if self.done else otherwise

    def spread(self, mean: float) -> float:
        """The standard deviation of a task's seconds."""
        if self.done < 2:
            return _UNKNOWN_SPREAD * mean
        return sqrt(max(0.0, self.squares / self.done - mean**2) * self.done / (self.done - 1))


class Progress(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    to_run: int
    """0 if that is not known beforehand, as of a net: then there is no share of it and no time left."""
    up_to_date: int
    done: int
    failed: int
    running: int
    waiting: int
    elapsed: float
    left: float | None
    """Seconds; None if nothing can be said yet, 0 when the run is over."""
    least: float | None
    most: float | None
    rate: float
    """Tasks per second, lately; of a run that is over, on the whole."""
    utilisation: float | None = None
    """The share of all cores that was held so far, or used where tasks share them; None if that is not known."""
    cannot_run: int = 0
    """Tasks that need something that failed or was cancelled, as far as that is known."""
    cancelled: int = 0

    @property
    def over(self) -> int:
        """Tasks that were done, or will not be done any more; how far the run is says `done` alone."""
        return self.done + self.failed + self.cancelled + self.cannot_run

    @property
    def not_run(self) -> int:
        """Of a run that is over: tasks of which nothing became, and that nobody cancelled."""
        return self.waiting + self.running + self.cannot_run


class Chain(msgspec.Struct, frozen=True):
    """What is left of the longest chain of tasks: no number of cores makes it shorter."""

    tasks: Sequence[tuple[Tally, float]]
    """How many of which category; of several chains that are as long the mean."""
    begun: float = 0.0
    """Seconds that its first task has behind it."""


class Known(msgspec.Struct, frozen=True):
    """What is known of a run at one moment."""

    to_run: int
    up_to_date: int
    running: int
    elapsed: float
    over: bool
    tallies: Sequence[Tally]
    going: Sequence[tuple[Tally, float]]
    """Running tasks: of which category, and what seconds each has behind it."""
    widths: Sequence[float]
    """How many tasks ran at the same time, in equal slices of the time so far."""
    rate: float
    growing: bool = False
    """A throttle lets more and more of them run."""
    cannot_run: int = 0
    cancelled: int = 0
    utilisation: float | None = None
    begun: float = 0.0
    """Seconds that running tasks have behind them of which nothing else is known."""
    quiet: float | None = None
    """Seconds since the last attempt ended, if none runs; None if only `widths` tell."""
    chain: Chain | None = None
    """None if it is not known what tasks wait for."""


def progress_of(known: Known) -> Progress:
    """The model at one moment."""
    done = sum(tally.done for tally in known.tallies)
    failed = sum(tally.failed for tally in known.tallies)
    open_ones = max(0, known.to_run - done - failed - known.cannot_run - known.cancelled)
    # Who says what runs may have said it a moment ago: of a task that is over none runs.
    running = min(known.running, open_ones) if known.to_run else known.running
    # Of a net nobody knows how many tasks there will be: what was handed out is no measure of what is left.
    likely, least, most = (0.0, 0.0, 0.0) if known.over else _left(known) if known.to_run else _UNSAID
    rate = known.rate
    if known.over:
        rate = done / known.elapsed if known.elapsed > 0 else 0.0
    return Progress(
        known.to_run,
        known.up_to_date,
        done,
        failed,
        running,
        open_ones - running if known.to_run else 0,
        known.elapsed,
        likely,
        least,
        most,
        rate,
        known.utilisation,
        known.cannot_run,
        known.cancelled,
    )


def _left(known: Known) -> _Band:
    """Seconds to the end: likely, at least and at most."""
    tasks = sum(tally.done for tally in known.tallies)
    width = _lately(known.widths)
    counted = sum(tally.left() for tally in known.tallies)
    if not tasks or width <= 0:
        return _UNSAID
    # Those that will not run any more are not told by category.
    runs = max(0, counted - known.cannot_run - known.cancelled) / counted if counted else 0.0
    mean_of_all = sum(tally.seconds for tally in known.tallies) / tasks
    if runs and not known.running and _quiet(known) > max(_STILL, _STILL_TASKS * mean_of_all):
        return _UNSAID
    work, variance = _expected([(tally, runs * tally.left()) for tally in known.tallies], mean_of_all)
    swing = _deviation(known.widths) / width / sqrt(LATELY)
    places = min(width, max(1.0, runs * counted))  # the last ones do not fill all of them
    begun, late = _behind(known.going, mean_of_all)
    overdue = max((seconds - tally.mean(mean_of_all) for tally, seconds in late), default=0.0)
    work = max(0.0, work - begun - known.begun)
    left = max(work / places, overdue)
    band = _DEVIATIONS * sqrt(variance / places**2 + (left * swing) ** 2 + (overdue / 2) ** 2)
    least = max(0.0, left - band) / (_GROWTH if known.growing else 1.0)
    most = max(left + band, _beside(known, late, work, overdue, width))
    if known.chain is None:
        return left, least, most
    path, variance = _expected(known.chain.tasks, mean_of_all)
    path, band = max(0.0, path - known.chain.begun), _DEVIATIONS * sqrt(variance)
    return max(left, path), max(least, path - band), max(most, path + band)


def _expected(tasks: Iterable[tuple[Tally, float]], mean_of_all: float) -> tuple[float, float]:
    """Seconds that so many tasks of these categories take one after another, and the variance of that."""
    seconds = variance = 0.0
    for tally, count in tasks:
        mean = tally.mean(mean_of_all)
        spread = tally.spread(mean)
        seconds += count * mean
        variance += count * spread**2 + (count * spread) ** 2 / max(1, tally.done)
    return seconds, variance


def _behind(going: Sequence[tuple[Tally, float]], mean_of_all: float) -> tuple[float, list[tuple[Tally, float]]]:
    """Seconds of expected work that running tasks have done, and those of them that run for much longer."""
    begun = 0.0
    late = []
    for tally, seconds in going:
        mean = tally.mean(mean_of_all)
        begun += min(seconds, mean)
        if seconds > mean + _DEVIATIONS * tally.spread(mean):
            late.append((tally, seconds))
    return begun, late


def _beside(known: Known, late: Sequence[tuple[Tally, float]], work: float, overdue: float, width: float) -> float:
    """Seconds for the rest if it never has the places of those that run for so long: it may be a chain, or wait for
    them. Others of a category of which none is done may take as long."""
    if not late:
        return 0.0
    lately = known.elapsed * min(1.0, LATELY / len(known.widths))
    free = width - sum(min(1.0, seconds / lately) if lately > 0 else 1.0 for _, seconds in late)
    unknown = {id(tally): (tally.left(), seconds) for tally, seconds in late if not tally.done}
    alike = [id(tally) for tally, _ in known.going]
    work += sum(max(0, left - alike.count(one)) * 2 * seconds for one, (left, seconds) in unknown.items())
    return overdue + work / width if free < _HALF else max(overdue, work / free)


def _quiet(known: Known) -> float:
    """Seconds in which nothing ran, as far as one can see."""
    if known.quiet is not None:
        return known.quiet
    slices = 0
    while slices < len(known.widths) and known.widths[-1 - slices] <= _NOTHING:
        slices += 1
    return known.elapsed * slices / len(known.widths)


def _lately(widths: Sequence[float]) -> float:
    last = widths[-LATELY:]
    return (sum(last) / len(last) if last else 0.0) or (sum(widths) / len(widths) if widths else 0.0)


def _deviation(widths: Sequence[float]) -> float:
    mean = sum(widths) / len(widths)
    return sqrt(sum((width - mean) ** 2 for width in widths) / len(widths))


class Widths:
    """How many tasks ran at the same time, over the time so far; O(1) for each interval, and of a fixed size.

    The area under a sum of steps up to a moment `t` is `t` times the weights begun so far, less their moments times
    their weights. Buckets become twice as wide when time goes beyond the last.
    """

    def __init__(self) -> None:
        self._bucket = _FINEST
        self._steps = [0.0] * _BUCKETS
        self._moments = [0.0] * _BUCKETS

    def add(self, begin: float, end: float, weight: float = 1.0) -> None:
        """So many ran from one moment to another, in seconds from the beginning of the run."""
        begin = max(0.0, begin)
        end = max(begin, end)
        while end >= _BUCKETS * self._bucket:
            self._widen()
        for moment, sign in ((begin, weight), (end, -weight)):
            at = int(moment / self._bucket)
            self._steps[at] += sign
            self._moments[at] += sign * moment

    def _widen(self) -> None:
        self._bucket *= 2
        for column in (self._steps, self._moments):
            column[:] = [column[at] + column[at + 1] for at in range(0, _BUCKETS, 2)] + [0.0] * (_BUCKETS // 2)

    def slices(self, until: float, begun: Iterable[float] = ()) -> list[float]:
        """In equal slices up to a moment, with those that began at these moments and still run."""
        if until <= 0:
            return []
        going = [max(0.0, moment) for moment in begun]
        areas = self._areas()
        edges = [until * number / SLICES for number in range(SLICES + 1)]
        up_to = [self._area(areas, edge) + sum(edge - moment for moment in going if moment < edge) for edge in edges]
        return [max(0.0, up_to[at + 1] - up_to[at]) * SLICES / until for at in range(SLICES)]

    def total(self) -> float:
        """Seconds of all tasks together."""
        return self._areas()[-1]

    def _areas(self) -> list[float]:
        """Up to each edge of the buckets."""
        steps, moments = accumulate(self._steps), accumulate(self._moments)
        ends = [(number + 1) * self._bucket for number in range(_BUCKETS)]
        return [0.0, *(step * end - moment for step, moment, end in zip(steps, moments, ends, strict=True))]

    def _area(self, areas: Sequence[float], moment: float) -> float:
        at = min(_BUCKETS - 1, int(moment / self._bucket))
        part = min(1.0, moment / self._bucket - at)
        return areas[at] + (areas[at + 1] - areas[at]) * part


class Rate:
    """Tasks done per second, lately; fed with running totals."""

    def __init__(self, started: float) -> None:
        self._told: deque[tuple[float, int]] = deque([(started, 0)])

    def update(self, now: float, done: int) -> None:
        """Takes the total of this moment."""
        if done != self._told[-1][1]:
            self._told.append((now, done))
        # The first one is where the rate is counted from: the last that is far enough back in time and in tasks.
        while len(self._told) > 1 and self._is_enough(now, done, *self._told[1]):
            self._told.popleft()

    @staticmethod
    def _is_enough(now: float, done: int, moment: float, then: int) -> bool:
        return now - moment >= RATE_SECONDS and done - then >= RATE_TASKS

    def at(self, now: float) -> float:
        """At a moment, as if nothing had been done since the last total."""
        done = self._told[-1][1]
        self.update(now, done)
        moment, then = self._told[0]
        return (done - then) / (now - moment) if now > moment else 0.0
