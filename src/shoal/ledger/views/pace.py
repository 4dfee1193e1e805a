"""Progress model: estimates from a few sums when a run will end, with an error band. Needs no numpy.

The page, `shoal top`, `shoal status` and the display of `shoal run` all use this model. Only the source of the sums
differs: all attempts (`shoal.ledger.views.progress`), the records of a ledger (`shoal.ledger.status`), or the running
totals of the process that executes the run (`shoal.ledger.statistics`).

The remaining work is the number of remaining tasks of each category times the mean duration of its done tasks. It is
divided by the recent concurrency, the number of tasks that ran at the same time. The error band is two standard
deviations, from three sources: the spread of the task durations; the error of the means, which is large after few
tasks; and the variation of the concurrency so far. A throttle that is still growing may double the concurrency twice. A
task that has been running for much longer than others of its category is expected to take as long again. The upper
bound then assumes that the other tasks never get its slot, because they may depend on it.

No run ends before the longest chain of remaining tasks, where that is known. If nothing has been running for a while,
the rest waits for something that cannot be predicted, and there is no estimate.
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
"""Number of slices of the elapsed time in which concurrency is measured, and how many of the last ones count as
recent."""
RATE_SECONDS, RATE_TASKS = 10.0, 20
"""The rate covers at least this time and at least this number of tasks."""
_DEVIATIONS = 2.0
_UNKNOWN_SPREAD = 1.0
"""Relative spread of a category with at most one done task."""
_GROWTH = 4.0
_STILL, _STILL_TASKS = 5.0, 3.0
"""There is no estimate if nothing has been running for this number of seconds, and for the mean duration of this number
of tasks."""
_NOTHING = 1e-6
"""Concurrency below this is rounding error."""
_HALF = 0.5
"""If long-running tasks leave fewer free slots than this, all other tasks wait for them."""
_Band = tuple[float | None, float | None, float | None]
_UNSAID: _Band = (None, None, None)
_BUCKETS, _FINEST = 256, 1 / 64


class LiveCounters(msgspec.Struct, frozen=True, array_like=True):
    """Counters of the present state that the process of a run publishes. Running tasks are counted as occupied slots: a
    batch of short tasks occupies one."""

    pid: int
    """Process id of the run."""
    running: int
    categories: dict[str, int]
    """The same by category, without categories that have no running task."""
    crowded: bool = False
    """More tasks ran together than there are cores; see `Statistics.is_oversubscribed`."""


class CategoryPace(msgspec.Struct):
    """The tasks of one category at one moment."""

    planned: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    seconds: float = 0.0
    """Seconds of successful attempts."""
    squares: float = 0.0
    """Sum of their squares."""

    def add(self, seconds: float) -> None:
        """Counts a done task."""
        self.done += 1
        self.seconds += seconds
        self.squares += seconds * seconds

    def left(self) -> int:
        return max(0, self.planned - self.done - self.failed)

    def mean(self, otherwise: float) -> float:
        return self.seconds / self.done if self.done else otherwise

    def spread(self, mean: float) -> float:
        """Standard deviation of a task's duration."""
        if self.done < 2:
            return _UNKNOWN_SPREAD * mean
        return sqrt(max(0.0, self.squares / self.done - mean**2) * self.done / (self.done - 1))


class Progress(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    to_run: int
    """0 if the number is not known in advance, as for a net: then there is neither a fraction nor an estimate."""
    up_to_date: int
    done: int
    failed: int
    running: int
    waiting: int
    elapsed: float
    left: float | None
    """Estimated seconds to the end; None if there is no estimate, 0 when the run has ended."""
    least: float | None
    most: float | None
    rate: float
    """Tasks per second, recently; for a run that has ended, over the whole run."""
    utilisation: float | None = None
    """Fraction of all cores that was allocated so far, or used where tasks share them; None if unknown."""
    cannot_run: int = 0
    """Tasks that depend on a failed or cancelled one, as far as dependencies are known."""
    cancelled: int = 0

    @property
    def over(self) -> int:
        """Tasks that are done or will not run. Only `done` counts as progress."""
        return self.done + self.failed + self.cancelled + self.cannot_run

    @property
    def not_run(self) -> int:
        """Of a run that has ended: tasks without a result that were not cancelled."""
        return self.waiting + self.running + self.cannot_run


class Chain(msgspec.Struct, frozen=True):
    """The rest of the longest chain of dependent tasks: a lower bound that more cores do not reduce."""

    tasks: Sequence[tuple[CategoryPace, float]]
    """Number of tasks by category; the mean over all chains of this length."""
    begun: float = 0.0
    """Elapsed seconds of its first task."""


class KnownProgress(msgspec.Struct, frozen=True):
    """Input of the progress model at one moment."""

    to_run: int
    up_to_date: int
    running: int
    elapsed: float
    over: bool
    tallies: Sequence[CategoryPace]
    going: Sequence[tuple[CategoryPace, float]]
    """Running tasks: the category and the elapsed seconds of each."""
    widths: Sequence[float]
    """Concurrency in equal slices of the elapsed time."""
    rate: float
    growing: bool = False
    """A throttle is still increasing the concurrency."""
    cannot_run: int = 0
    cancelled: int = 0
    utilisation: float | None = None
    begun: float = 0.0
    """Elapsed seconds of running tasks that are not in `going`."""
    quiet: float | None = None
    """Seconds since the last attempt ended, if none runs; None if only `widths` is known."""
    chain: Chain | None = None
    """None if the dependencies are unknown."""


def progress_of(known: KnownProgress) -> Progress:
    """Computes progress and estimate."""
    done = sum(tally.done for tally in known.tallies)
    failed = sum(tally.failed for tally in known.tallies)
    open_ones = max(0, known.to_run - done - failed - known.cannot_run - known.cancelled)
    # The report of running tasks may be older than the other counters: tasks that have ended do not run.
    running = min(known.running, open_ones) if known.to_run else known.running
    # The number of a net's tasks is not known in advance: tasks created so far do not tell what remains.
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
    """Seconds to the end: estimate, lower and upper bound."""
    tasks = sum(tally.done for tally in known.tallies)
    width = _lately(known.widths)
    counted = sum(tally.left() for tally in known.tallies)
    if not tasks or width <= 0:
        return _UNSAID
    # Tasks that will not run are not known by category, so each category is scaled by the same factor.
    runs = max(0, counted - known.cannot_run - known.cancelled) / counted if counted else 0.0
    mean_of_all = sum(tally.seconds for tally in known.tallies) / tasks
    if runs and not known.running and _quiet(known) > max(_STILL, _STILL_TASKS * mean_of_all):
        return _UNSAID
    work, variance = _expected([(tally, runs * tally.left()) for tally in known.tallies], mean_of_all)
    swing = _deviation(known.widths) / width / sqrt(LATELY)
    places = min(width, max(1.0, runs * counted))  # the last tasks do not occupy all slots
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
    """Sum of the expected durations of these numbers of tasks, and its variance."""
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
    """Expected work that running tasks have completed, and the tasks that run for much longer than expected."""
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
    """Upper bound for the rest if it never gets the slots of the long-running tasks, because it depends on them. Other
    tasks of a category without a done task may take as long."""
    if not late:
        return 0.0
    lately = known.elapsed * min(1.0, LATELY / len(known.widths))
    free = width - sum(min(1.0, seconds / lately) if lately > 0 else 1.0 for _, seconds in late)
    unknown = {id(tally): (tally.left(), seconds) for tally, seconds in late if not tally.done}
    alike = [id(tally) for tally, _ in known.going]
    work += sum(max(0, left - alike.count(one)) * 2 * seconds for one, (left, seconds) in unknown.items())
    return overdue + work / width if free < _HALF else max(overdue, work / free)


def _quiet(known: KnownProgress) -> float:
    """Seconds in which nothing ran, as far as known."""
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


class ConcurrencyHistory:
    """Concurrency over the elapsed time; O(1) per interval, constant size.

    The area under a step function up to time `t` is `t` times the sum of the steps so far, minus the sum of steps times
    their times. Bucket width doubles when time exceeds the last bucket.
    """

    def __init__(self) -> None:
        self._bucket = _FINEST
        self._steps = [0.0] * _BUCKETS
        self._moments = [0.0] * _BUCKETS

    def add(self, begin: float, end: float, weight: float = 1.0) -> None:
        """Adds `weight` tasks that ran during this interval, in seconds from the start of the run."""
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
        """Mean concurrency in equal slices up to a time, including running tasks that started at the times in
        `begun`."""
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
        """Area up to each bucket edge."""
        steps, moments = accumulate(self._steps), accumulate(self._moments)
        ends = [(number + 1) * self._bucket for number in range(_BUCKETS)]
        return [0.0, *(step * end - moment for step, moment, end in zip(steps, moments, ends, strict=True))]

    def _area(self, areas: Sequence[float], moment: float) -> float:
        at = min(_BUCKETS - 1, int(moment / self._bucket))
        part = min(1.0, moment / self._bucket - at)
        return areas[at] + (areas[at + 1] - areas[at]) * part


class Rate:
    """Recent rate of done tasks per second, from running totals."""

    def __init__(self, started: float) -> None:
        self._totals: deque[tuple[float, int]] = deque([(started, 0)])

    def update(self, now: float, done: int) -> None:
        """Takes the current total."""
        if done != self._totals[-1][1]:
            self._totals.append((now, done))
        # The rate is measured from the first entry: the latest one that satisfies both minimum time and minimum tasks.
        while len(self._totals) > 1 and self._is_enough(now, done, *self._totals[1]):
            self._totals.popleft()

    @staticmethod
    def _is_enough(now: float, done: int, moment: float, then: int) -> bool:
        return now - moment >= RATE_SECONDS and done - then >= RATE_TASKS

    def at(self, now: float) -> float:
        """The rate at a time, if no task has been done since the last total."""
        done = self._totals[-1][1]
        self.update(now, done)
        moment, then = self._totals[0]
        return (done - then) / (now - moment) if now > moment else 0.0


MOST_LINKED = 100_000
"""Maximum number of dependencies for which each status query may compute the chain."""
_AT_ONCE = 10_000
"""Up to this number all tasks are checked once a second; more of them less often."""
_FEW = 100
"""Up to this number tasks are checked at each query."""


def steps_of_longest(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """By task: its step on a longest chain, from 1; 0 for tasks on no longest chain and for those without an action.
    Each pair of parent and child is a dependency."""
    before, behind = _depths(parents, children, runs), _depths(children, parents, runs)
    through = [one + other - own for one, other, own in zip(before, behind, runs, strict=True)]  # both include itself
    most = max(through, default=0)
    return [step if own and long == most else 0 for step, own, long in zip(before, runs, through, strict=True)]


def _depths(parents: Sequence[int], children: Sequence[int], runs: Sequence[bool]) -> list[int]:
    """Number of tasks on the longest chain that ends with each task, including itself; tasks without an action do not
    count."""
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
    """Builds the chain from (step, category, number of tasks); None if nothing remains. `begun` is the elapsed time of
    the first step."""
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
    """Tracks the rest of the longest chain of one run."""

    def __init__(self, steps: Sequence[int], category_of: Callable[[int], str]) -> None:
        self._key = {task: (step, category_of(task)) for task, step in enumerate(steps) if step}
        self._left = list(self._key)
        self._counts: Counter[tuple[int, str]] = Counter(self._key.values())
        self._ahead: list[list[int]] = []
        """Remaining tasks of each step; the first step is last in the list."""
        self._looked, self._due = inf, 0.0

    def look(self, is_over: Callable[[int], object], now: float) -> None:
        """Updates which of its tasks have ended. A complete check runs at limited intervals, because it is
        expensive."""
        if self._looked <= now < self._due:  # also checks if the clock was set back
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
        """Advances past steps that have ended since the last complete check: otherwise their duration would count as
        still to come. Steps with many tasks wait for the next complete check."""
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
        """The chain at the last check; `begun` has the elapsed seconds of running tasks."""
        unplanned = CategoryPace()
        rows = [(step, tallies.get(name, unplanned), count) for (step, name), count in self._counts.items()]
        first, behind = self._ahead[-1] if self._ahead else [], 0.0
        if len(first) <= len(begun):  # otherwise one of them has not started
            means = ((task, tallies.get(self._key[task][1], unplanned).mean(0.0)) for task in first)
            behind = min((min(begun.get(task, 0.0), mean) for task, mean in means), default=0.0)
        return chain_of(rows, behind)


def longest_of(links: Sequence[TasksLinked], category_of: Mapping[int, str]) -> Longest:
    """Builds it from ledger records; tasks with a category are those with an action."""
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
