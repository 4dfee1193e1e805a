"""How far a run is and when it will be over, with how much that may be wrong, from a few sums. Needs no numpy.

This is the one model behind the page, `shoal top`, `shoal status` and the display of `shoal run`. They differ in where
the sums come from: all attempts (`shoal.ledger.views.progress`), the records of a ledger (`shoal.ledger.status`), or
the totals that a run keeps of itself (`shoal.ledger.statistics`).

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

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, islice
from math import inf, sqrt

import msgspec

from shoal.core.graph import NO_TASK
from shoal.ledger.records import TasksLinked, numbers

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


class LiveCounters(msgspec.Struct, frozen=True, array_like=True):
    """What the process of a run says of this moment. Running tasks are places in use: a bundle of short tasks runs in
    one of them."""

    pid: int
    """Of the process that says so."""
    running: int
    categories: dict[str, int]
    """The same by category; those of which nothing runs are left out."""
    crowded: bool = False
    """More tasks than there are cores have run together; see `Statistics.is_crowded`."""


class CategoryPace(msgspec.Struct):
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

    tasks: Sequence[tuple[CategoryPace, float]]
    """How many of which category; of several chains that are as long the mean."""
    begun: float = 0.0
    """Seconds that its first task has behind it."""


class KnownProgress(msgspec.Struct, frozen=True):
    """What is known of a run at one moment."""

    to_run: int
    up_to_date: int
    running: int
    elapsed: float
    over: bool
    tallies: Sequence[CategoryPace]
    going: Sequence[tuple[CategoryPace, float]]
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


def progress_of(known: KnownProgress) -> Progress:
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


def _left(known: KnownProgress) -> _Band:
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


def _expected(tasks: Iterable[tuple[CategoryPace, float]], mean_of_all: float) -> tuple[float, float]:
    """Seconds that so many tasks of these categories take one after another, and the variance of that."""
    seconds = variance = 0.0
    for tally, count in tasks:
        mean = tally.mean(mean_of_all)
        spread = tally.spread(mean)
        seconds += count * mean
        variance += count * spread**2 + (count * spread) ** 2 / max(1, tally.done)
    return seconds, variance


def _behind(
    going: Sequence[tuple[CategoryPace, float]], mean_of_all: float
) -> tuple[float, list[tuple[CategoryPace, float]]]:
    """Seconds of expected work that running tasks have done, and those of them that run for much longer."""
    begun = 0.0
    late = []
    for tally, seconds in going:
        mean = tally.mean(mean_of_all)
        begun += min(seconds, mean)
        if seconds > mean + _DEVIATIONS * tally.spread(mean):
            late.append((tally, seconds))
    return begun, late


def _beside(
    known: KnownProgress, late: Sequence[tuple[CategoryPace, float]], work: float, overdue: float, width: float
) -> float:
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


def _quiet(known: KnownProgress) -> float:
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


MOST_LINKED = 100_000
"""Dependencies that are looked at whenever anybody asks how far a run is."""
_AT_ONCE = 10_000
"""Tasks that are looked through once a second; more of them, less often."""
_FEW = 100
"""Tasks that are looked through whenever anybody asks."""


def steps_of_longest(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """By task: which step of a longest chain it is, from 1; 0 for tasks that are on none, and for those that run
    nothing. Parents and children are pairs: the one is needed by the other."""
    before, behind = _depths(parents, children, runs), _depths(children, parents, runs)
    through = [one + other - own for one, other, own in zip(before, behind, runs, strict=True)]  # it is in both itself
    most = max(through, default=0)
    return [step if own and long == most else 0 for step, own, long in zip(before, runs, through, strict=True)]


def _depths(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """Tasks on the longest chain that ends with each task, itself included; those that run nothing do not count."""
    start, left = [0] * (len(runs) + 1), [0] * len(runs)
    for parent, child in zip(parents, children, strict=True):
        start[parent + 1] += 1
        left[child] += 1
    start = list(accumulate(start))
    free, below = start[:], [0] * len(parents)  # one list for all: a list for each task would take ten times as much
    for parent, child in zip(parents, children, strict=True):
        below[free[parent]] = child
        free[parent] += 1
    depth = [0] * len(runs)
    front = [task for task, count in enumerate(left) if not count]
    for task in front:  # grows while we walk it
        here = depth[task] = depth[task] + runs[task]
        for child in below[start[task] : start[task + 1]]:
            left[child] -= 1
            if here > depth[child]:
                depth[child] = here
            if not left[child]:
                front.append(child)
    return depth


def chain_of(left: Iterable[tuple[int, CategoryPace, int]], begun: float) -> Chain | None:
    """From what is left: which step, which category, and how many tasks of both; None if nothing is. `begun` are the
    seconds that the first step has behind it."""
    rows = list(left)
    there: Counter[int] = Counter()
    for step, _, count in rows:
        there[step] += count
    shares: dict[int, tuple[CategoryPace, float]] = {}
    for step, tally, count in rows:
        _, so_far = shares.get(id(tally), (tally, 0.0))
        shares[id(tally)] = tally, so_far + count / there[step]
    return Chain(list(shares.values()), begun) if shares else None


class Longest:
    """Follows the longest chain of one run."""

    def __init__(self, steps: Sequence[int], category_of: Callable[[int], str]) -> None:
        self._key = {task: (step, category_of(task)) for task, step in enumerate(steps) if step}
        self._left = list(self._key)
        self._counts: Counter[tuple[int, str]] = Counter(self._key.values())
        self._ahead: list[list[int]] = []
        """The tasks that are left of each step; the first step stands last."""
        self._looked, self._due = inf, 0.0

    def look(self, is_over: Callable[[int], object], now: float) -> None:
        """Finds out which tasks of it are over; at all of them it looks not more often than is worth it."""
        if self._looked <= now < self._due:  # a clock may have been put back
            self._go_on(is_over)
            return
        self._left = [task for task in self._left if not is_over(task)]
        self._looked, self._due = now, now + max(1, len(self._left) // _AT_ONCE)
        self._counts = Counter(map(self._key.__getitem__, self._left))
        ahead: dict[int, list[int]] = {}
        for task in self._left:
            ahead.setdefault(self._key[task][0], []).append(task)
        self._ahead = [ahead[step] for step in sorted(ahead, reverse=True)]

    def _go_on(self, is_over: Callable[[int], object]) -> None:
        """From steps that have ended since to the next one: however long they took, they would count as not begun. Of
        a step with many tasks the next look will tell."""
        while self._ahead and len(self._ahead[-1]) <= _FEW:
            first, rest = self._ahead[-1], [task for task in self._ahead[-1] if not is_over(task)]
            for key in map(self._key.__getitem__, set(first).difference(rest)):
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]
            self._ahead[-1] = rest
            if rest:
                return
            self._ahead.pop()

    def chain(self, tallies: Mapping[str, CategoryPace], begun: Mapping[int, float]) -> Chain | None:
        """What was left of it at the last look; `begun` are the seconds that running tasks have behind them."""
        unplanned = CategoryPace()
        rows = [(step, tallies.get(name, unplanned), count) for (step, name), count in self._counts.items()]
        first, behind = self._ahead[-1] if self._ahead else [], 0.0
        if len(first) <= len(begun):  # or else one of them has not begun
            means = ((task, tallies.get(self._key[task][1], unplanned).mean(0.0)) for task in first)
            behind = min((min(begun.get(task, 0.0), mean) for task, mean in means), default=0.0)
        return chain_of(rows, behind)


def longest_of(links: Sequence[TasksLinked], category_of: Mapping[int, str]) -> Longest:
    """From records; tasks that have a category are those that run something."""
    parents: list[int] = []
    children: list[int] = []
    for record in links:
        needed = iter(numbers(record.needs))
        for task, count in zip(numbers(record.tasks), numbers(record.counts), strict=True):
            known = [parent for parent in islice(needed, count) if parent != NO_TASK]
            parents += known
            children += [task] * len(known)
    size = 1 + max(max(parents, default=-1), max(children, default=-1), max(category_of, default=-1))
    steps = steps_of_longest(parents, children, [task in category_of for task in range(size)])
    return Longest(steps, category_of.__getitem__)
