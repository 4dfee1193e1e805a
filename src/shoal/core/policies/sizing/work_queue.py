"""Work Queue's automatic allocation, reproduced exactly: first allocations from histograms, categories, and bucketing.

Peaks fall into buckets of equal width, which are represented by their upper ends; each keeps its number of tasks and
their total wall time. Rounding of floating-point sums decides ties, so sums are computed in the original's order. The
bucketing modes, which draw from probabilities, are at the end (`buckets_of`, `BucketState`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from shoal.core.policies.sizing.adviser import SIZED, Amounts, Tried
from shoal.core.resources import FRACTION, Resources

MODES = ("fixed", "max", "min-waste", "max-throughput")
LABELED = ("cores", "gpus", "memory", "disk")
BUCKET_WIDTHS = {"cores": 1.0, "gpus": 1.0, "memory": 250.0, "disk": 250.0}
STEADY_TASKS = 25
MICROSECONDS = 1_000_000
"""The original divides every wall time by this, whatever its unit; the quotients decide ties, so they are
reproduced."""


class Histogram:
    """Counts and total times per bucket `(end - width, end]`."""

    def __init__(self, width: float) -> None:
        self.width = float(width)
        self.largest = 0.0
        self.counts: dict[float, int] = {}
        self.times: dict[float, float] = {}

    def round_up(self, value: float) -> float:
        """Upper end of the bucket that contains `value`."""
        return math.ceil(value / self.width) * self.width

    def add(self, value: float, wall_time: float) -> None:
        """Counts one task; unmeasured (negative) values are ignored."""
        if value < 0 or wall_time < 0:
            return
        end = self.round_up(value)
        self.counts[end] = self.counts.get(end, 0) + 1
        self.times[end] = self.times.get(end, 0.0) + wall_time / MICROSECONDS
        self.largest = max(self.largest, value)


def first_allocation(
    mode: str,
    values: Sequence[float],
    times: Sequence[float],
    top: float,
    bucket_width: float,
    *,
    largest_worker: float | None = None,
    explicit_max: float | None = None,
    explicit_min: float | None = None,
    rounded: bool = True,
) -> float | None:
    """The first allocation after tasks with these peaks and wall times; None where the original leaves it undefined.

    A task that exhausts it is repeated with `top`. `rounded` selects the current behaviour of the original; releases
    until 2022 do not round a result that was limited to `top`.
    """
    histogram = Histogram(bucket_width)
    for value, wall_time in zip(values, times, strict=True):
        histogram.add(value, wall_time)
    found = allocate(histogram, mode, top, largest_worker, explicit_max, rounded)
    if explicit_min is not None and explicit_min >= 0:
        return explicit_min if found is None else max(found, explicit_min)
    return found


def allocate(
    histogram: Histogram,
    mode: str,
    top: float,
    largest_worker: float | None = None,
    explicit_max: float | None = None,
    rounded: bool = True,
) -> float | None:
    """The first allocation from a histogram, before the category's minimum is applied."""
    top = int(top)
    if mode == "fixed":
        return float(top) if top >= 0 else None
    if top < 0 or not histogram.counts:
        return None
    if mode == "max":
        return _largest_seen(histogram, largest_worker, explicit_max)
    keys = sorted(histogram.counts)
    if mode == "min-waste":
        best = _least_waste(histogram, keys, top)
    elif mode == "max-throughput":
        best = _most_throughput(histogram, keys, top)
    else:
        raise ValueError(f"unknown mode {mode!r}")
    best = min(best, top)
    return histogram.round_up(best) if rounded else float(best)


def _largest_seen(histogram: Histogram, largest_worker: float | None, explicit_max: float | None) -> float:
    """The largest peak plus a third of a bucket, rounded up, limited by the maximum and the largest worker."""
    size = histogram.round_up(histogram.largest + math.floor(histogram.width / 3))
    bounds = [int(bound) for bound in (explicit_max, largest_worker) if bound is not None and bound > -1]
    return min([size, *bounds])


def _mean_and_tails(histogram: Histogram, keys: Sequence[float]) -> tuple[float, list[float]]:
    """Mean wall time, and for each bucket the part of it that tasks in larger buckets contribute."""
    total = sum(histogram.counts.values())
    tails = [0.0] * len(keys)
    for at in range(len(keys) - 2, -1, -1):
        tails[at] = tails[at + 1] + histogram.times[keys[at + 1]] / total
    return tails[0] + histogram.times[keys[0]] / total, tails


def _least_waste(histogram: Histogram, keys: Sequence[float], top: int) -> int:
    mean, tails = _mean_and_tails(histogram, keys)
    best, least = top, math.inf
    for key, tail in zip(keys, tails, strict=True):
        size = int(key)
        if size < 1:
            continue
        expected = size * mean + top * tail
        if expected < least:
            best, least = size, expected
    return best


def _most_throughput(histogram: Histogram, keys: Sequence[float], top: int) -> int:
    mean, tails = _mean_and_tails(histogram, keys)
    total = float(sum(histogram.counts.values()))
    best, most, fitting = top, 0.0, 0.0
    for key, tail in zip(keys, tails, strict=True):
        fitting += histogram.counts[key]
        size = int(key)
        if size < 1:
            continue
        gain, seconds = (fitting * top) / size + (total - fitting), mean + tail
        # With wall times of zero the original divides by zero; the first candidate then wins.
        rate = gain / seconds if seconds else gain * math.inf if gain else 0.0
        if rate > most:
            best, most = size, rate
    return best


class AttemptSummary(msgspec.Struct):
    """What one finished attempt used; resources that were not measured are left out."""

    used: dict[str, float]
    wall_time: float
    normal: bool = True
    """Whether the task ended by itself, successfully or not, rather than being killed over its limits."""


class WorkQueueCategory:
    """A Work Queue category: measured peaks, allocation of the next task, and behaviour after exhaustion."""

    def __init__(
        self,
        mode: str = "fixed",
        *,
        maximum: Mapping[str, float] | None = None,
        minimum: Mapping[str, float] | None = None,
        automatic: Sequence[str] = ("cores", "memory", "disk"),
        widths: Mapping[str, float] = BUCKET_WIDTHS,
        steady_tasks: int = STEADY_TASKS,
        rounded: bool = True,
    ) -> None:
        self.mode = mode
        self.maximum = dict(maximum or {})
        self.minimum = dict(minimum or {})
        self.automatic = tuple(automatic)
        self.steady_tasks = steady_tasks
        self.rounded = rounded
        self.histograms = {name: Histogram(widths[name]) for name in LABELED}
        self.seen: dict[str, float] = dict(self.minimum)
        self.first: dict[str, float] | None = None
        self.steady = False
        self.completions = 0
        self.total = 0

    def guess(self, first: Mapping[str, float]) -> None:
        """Sets the user's initial guess: the category counts as steady immediately."""
        self.steady = True
        self.first = dict(first)
        for name, amount in first.items():
            self.seen[name] = max(self.seen.get(name, -1.0), amount)

    def accumulate(self, summary: AttemptSummary, worker: Mapping[str, float] | None = None) -> bool:
        """Records a finished attempt; returns whether the first allocation changed or became invalid."""
        changed = not self.steady and self._has_new_maximum(summary)
        if changed:
            self.first, self.completions = None, 0
        self.steady = self.completions >= self.steady_tasks
        for name in LABELED:
            if name in summary.used:
                self.seen[name] = max(self.seen.get(name, -1.0), summary.used[name])
        if not summary.normal:
            return changed
        for name in LABELED:
            self.histograms[name].add(summary.used.get(name, -1.0), summary.wall_time)
        self.completions += 1
        if self.steady_tasks > 0 and self.completions % self.steady_tasks == 0:
            changed = self.update(worker) or changed
        self.total += 1
        return changed

    def _has_new_maximum(self, summary: AttemptSummary) -> bool:
        for name in LABELED:
            histogram = self.histograms[name]
            if self.maximum.get(name, -1.0) > 0:
                continue
            if summary.used.get(name, -1.0) > histogram.round_up(histogram.largest):
                return True
        return False

    def update(self, worker: Mapping[str, float] | None = None) -> bool:
        """Computes the first allocation again; a single finished task is not sufficient."""
        if self.mode == "fixed" or self.total < 1:
            return False
        worker = worker or {}
        top = {**worker, **self.seen, **self.maximum}
        first = dict(self.first or {})
        for name in self.automatic:
            size = allocate(
                self.histograms[name],
                self.mode,
                top.get(name, -1.0),
                worker.get(name),
                self.maximum.get(name),
                self.rounded,
            )
            if size is None:
                first.pop(name, None)
            else:
                first[name] = size
        for name, least in self.minimum.items():
            first[name] = max(first.get(name, -1.0), least)
        self.first = first
        return True

    def ask(self, first_attempt: bool = True, own: Mapping[str, float] | None = None) -> dict[str, float]:
        """Allocation of a task; resources missing in the result are unspecified."""
        adaptive = self.mode in ("min-waste", "max-throughput")
        asked: dict[str, float] = {}
        if self.steady and adaptive:
            asked = dict(self.seen)
            for name, amount in (self.first or {}).items():
                asked[name] = max(asked.get(name, -1.0), amount)
        asked.update(self.maximum)
        if self.steady and first_attempt and (adaptive or self.mode == "max"):
            asked.update(self.first or {})
        asked.update(own or {})
        return asked

    def least(self, first_attempt: bool = True, own: Mapping[str, float] | None = None) -> dict[str, float]:
        """Minimum resources of a node for the task."""
        least = {} if self.mode == "fixed" else dict(self.seen)
        least.update(self.ask(first_attempt, own))
        for name, amount in self.minimum.items():
            least[name] = max(least.get(name, -1.0), amount)
        return least

    def may_retry(self, measured: Mapping[str, float], own: Mapping[str, float] | None = None) -> bool:
        """Whether a task that exhausted its allocation gets another attempt, with the category's largest size."""
        if self.mode == "fixed":
            return False
        own = own or {}
        for name in LABELED:
            bound = own.get(name, self.maximum.get(name))
            if bound is not None and bound > -1 and int(measured.get(name, -1.0)) > int(bound):
                return False
        return True


_MEGABYTE = 1 << 20
_UNITS = {"cores": FRACTION, "memory": _MEGABYTE, "disk": _MEGABYTE}


def labelled_category(mode: str = "max-throughput") -> WorkQueueCategory:
    """Initial state of a category that Work Queue labels automatically."""
    return WorkQueueCategory(mode, automatic=SIZED)


class WorkQueueAdviser:
    """The adviser for profiles of one category that leave the same resources open."""

    def __init__(self, node: Resources, names: Sequence[str], category: WorkQueueCategory) -> None:
        self.names = tuple(names)
        self.category = category
        self.resize(node)

    def resize(self, node: Resources) -> None:
        """Sets new total resources of the node."""
        self._whole = {name: max(node.get(name), _UNITS[name]) for name in self.names}
        self._worker = {name: node.get(name) / _UNITS[name] for name in SIZED if node.get(name)}

    def ask(self, tried: Tried) -> Amounts:
        """Sizes for the next attempt; the whole node for resources that Work Queue leaves unspecified."""
        asked = self.category.ask(first_attempt=not any(tried))
        return tuple(self._size(name, asked.get(name), sizes) for name, sizes in zip(SIZED, tried, strict=True))

    def _size(self, name: str, asked: float | None, tried: Sequence[int]) -> int:
        if name not in self.names:
            return 0
        size = 0 if asked is None else round(asked * _UNITS[name])
        if size <= 0 or (tried and (len(tried) > 1 or size <= tried[-1])):
            return self._whole[name]
        least = FRACTION if name == "cores" else 1
        return max(least, min(self._whole[name], size))

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted everything that the node has of a resource."""
        return any(
            sizes and name in self.names and max(sizes) >= self._whole[name]
            for name, sizes in zip(SIZED, tried, strict=True)
        )

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """Learns from an attempt that ended by itself, or exceeded its size of the resource with index `exhausted`."""
        measured = {}
        for at, name in enumerate(SIZED):
            amount = max(used[at], sizes[at]) if at == exhausted else used[at]
            if amount:
                measured[name] = amount / FRACTION if name == "cores" else float(-(-amount // _MEGABYTE))
        self.category.accumulate(AttemptSummary(measured, duration, normal=exhausted < 0), self._worker)


BUCKETING_MODES = ("greedy", "det-greedy", "exhaustive", "det-exhaustive", "quantized")
SAMPLING_POINTS = 10
GROWTH = 2.0
MOST_BUCKETS = 10
MOST_QUANTIZED = 1


class FinishedTask(NamedTuple):
    """Peak and weight of one finished task."""

    value: float
    weight: int


class Bucket(NamedTuple):
    """A candidate size, and the share of the tasks it is meant for (-1 in modes without shares)."""

    top: float
    share: float


def buckets_of(mode: str, values: Sequence[float], most: int | None = None) -> list[Bucket]:
    """The buckets after tasks with these peaks, in order of arrival."""
    points: list[FinishedTask] = []
    for number, value in enumerate(values, 1):
        insert(points, FinishedTask(float(value), number))
    return cut(mode, points, most_of(mode) if most is None else most)


def most_of(mode: str) -> int:
    """Default of the maximum number of buckets in a mode."""
    return MOST_QUANTIZED if mode == "quantized" else MOST_BUCKETS


def insert(points: list[FinishedTask], point: FinishedTask) -> None:
    """Inserts into points sorted by value; among equals the latest comes first, as in the original."""
    points.insert(bisect_left(points, point.value, key=lambda known: known.value), point)


def cut(mode: str, points: Sequence[FinishedTask], most: int) -> list[Bucket]:
    """The buckets of a mode for points sorted by value."""
    if mode in ("greedy", "det-greedy"):
        return _greedy(points, deterministic=mode == "det-greedy")
    if mode in ("exhaustive", "det-exhaustive"):
        return _exhaustive(points, most, deterministic=mode == "det-exhaustive")
    if mode == "quantized":
        return _quantized(points, most)
    raise ValueError(f"unknown bucketing mode {mode!r}")


def grown(size: float, previous: float, growth: float = GROWTH) -> float:
    """The smallest `size * growth ** n` above `previous`; a size of 0 grows from one unit.

    The original stays at 0 there and would repeat the task forever.
    """
    size = size or 1.0
    return float(size * growth ** (math.floor(math.log(previous / size) / math.log(growth)) + 1))


class BucketState:
    """State of bucketing for one resource of one category."""

    def __init__(
        self,
        mode: str,
        default: float,
        sampling: int = SAMPLING_POINTS,
        growth: float = GROWTH,
        most: int | None = None,
        epoch: int = 1,
    ) -> None:
        self.mode = mode
        self.default = default
        self.sampling = sampling
        self.growth = growth
        self.most = most_of(mode) if most is None else most
        self.epoch = epoch
        """Number of further tasks after which buckets are computed again."""
        self.points: list[FinishedTask] = []
        self.buckets: list[Bucket] = []

    def add(self, value: float) -> None:
        """Records the peak of a successful task."""
        insert(self.points, FinishedTask(float(value), len(self.points) + 1))
        beyond = len(self.points) - self.sampling
        if beyond >= 0 and beyond % self.epoch == 0:
            self.buckets = cut(self.mode, self.points, self.most)

    def predict(self, previous: float | None, draw: float) -> float:
        """The size for the first attempt, or after `previous` was exhausted; `draw` is a random number in [0, 1)."""
        if not self.buckets:
            return self.default if not previous else grown(self.default, previous, self.growth)
        bound = -1.0 if previous is None else previous
        left, reached = 1.0, 0.0
        for bucket in self.buckets:
            if bucket.top <= bound:
                left -= bucket.share
                continue
            reached += bucket.share
            if self.mode.startswith("det-") or reached / left > draw:
                return bucket.top
        top = self.buckets[-1].top
        return top if top > bound else grown(self.default, bound, self.growth)


def _greedy(points: Sequence[FinishedTask], deterministic: bool) -> list[Bucket]:
    """Splits the points recursively wherever a split is cheaper than none."""
    last = len(points) - 1
    ends = {last}
    waiting = [(0, last)]
    while waiting:
        low, high = waiting.pop()
        middle = _best_split(points[low : high + 1], deterministic) + low
        if middle == high:
            continue
        ends.add(middle)
        if middle + 1 != high:
            waiting.append((middle + 1, high))
        if middle != low:
            waiting.append((low, middle))
    tops = [points[end].value for end in sorted(ends)]
    if deterministic:
        return [Bucket(top, -1.0) for top in tops]
    weights = _weights_up_to(points, tops)
    total = float(sum(point.weight for point in points))
    return [Bucket(top, weight / total) for top, weight in zip(tops, weights, strict=True)]


def _weights_up_to(points: Sequence[FinishedTask], tops: Sequence[float]) -> list[int]:
    """Weight assigned to each top; equal points on both sides of a split all count on its left."""
    weights = [0] * len(tops)
    at = 0
    for point in points:
        while point.value > tops[at]:
            at += 1
        weights[at] += point.weight
    return weights


def _best_split(points: Sequence[FinishedTask], deterministic: bool) -> int:
    """Index of the last point left of the cheapest split; the last of equally cheap ones."""
    weights = list(accumulate(point.weight for point in points))
    masses = list(accumulate(point.value * point.weight for point in points))
    rests = _masses_after(points, masses)
    total = weights[-1]
    top = int(points[-1].value)
    best, least = 0, math.inf
    for at, point in enumerate(points):
        lower, upper = weights[at] / total, (total - weights[at]) / total
        mean_lower = masses[at] / weights[at]
        mean_upper = rests[at] / (total - weights[at]) if at + 1 < len(points) else 0.0
        size = int(point.value)
        if deterministic:
            cost = lower * (size - mean_lower) + upper * (size + top - mean_upper)
        else:
            cost = lower * (lower * (size - mean_lower)) + lower * (upper * (top - mean_lower))
            cost += upper * (lower * (size + top - mean_upper))
            cost += upper * (upper * (top - mean_upper))
        if cost <= least:
            best, least = at, cost
    return best


def _masses_after(points: Sequence[FinishedTask], masses: Sequence[float]) -> list[float]:
    """For each position the sum over all points after it, added from left to right.

    Integers give the same sums in any order, so differences can be used; fractions are added in the original's order.
    """
    if all(point.value.is_integer() for point in points):
        return [masses[-1] - mass for mass in masses]
    rests = []
    for at in range(len(points)):
        mass = 0.0
        for value, weight in points[at + 1 :]:
            mass += value * weight
        rests.append(mass)
    return rests


def _exhaustive(points: Sequence[FinishedTask], most: int, deterministic: bool) -> list[Bucket]:
    """The cheapest bucket list of 1, 2, ... `most` equal parts, with powers of two below the first."""
    best: list[Bucket] = []
    least = math.inf
    for number in range(1, most + 1):
        buckets = _parts(points, number)
        means = _means(points, buckets)
        cost = _cost_in_turn(buckets, means) if deterministic else _cost_by_draw(buckets, means)
        if cost < least:
            best, least = buckets, cost
    return best


def _parts(points: Sequence[FinishedTask], number: int) -> list[Bucket]:
    """Candidate tops, each reduced to the largest point it contains; tops without points are omitted."""
    top = points[-1].value
    steps = max(0, math.floor(math.log(top / number) / math.log(2))) if top else 0
    tops = [2.0**step for step in range(steps)]
    tops += [top * part / float(number) for part in range(1, number)] + [top]
    weights = [0.0] * len(tops)
    at, previous = 0, 0.0
    for value, weight in points:
        while tops[at] < value:
            tops[at] = previous
            at += 1
        previous = value
        weights[at] += weight
    total = float(sum(point.weight for point in points))
    return [Bucket(top, weight / total) for top, weight in zip(tops, weights, strict=True) if weight]


def _means(points: Sequence[FinishedTask], buckets: Sequence[Bucket]) -> list[float]:
    """Weighted mean of the points in each bucket."""
    masses = [0.0] * len(buckets)
    weights = [0.0] * len(buckets)
    at = 0
    for value, weight in points:
        while value > buckets[at].top:
            at += 1
        masses[at] += value * weight
        weights[at] += weight
    return [mass / weight for mass, weight in zip(masses, weights, strict=True)]


def _cost_by_draw(buckets: Sequence[Bucket], means: Sequence[float]) -> float:
    """Expected waste if the first bucket is drawn by its share, and each next one among the larger."""
    size = len(buckets)
    table = [[bucket.top - mean for bucket in buckets] for mean in means]
    for chosen in range(size - 2, -1, -1):
        larger = buckets[chosen + 1 :]
        left = 0.0
        for bucket in larger:
            left += bucket.share
        for row in table[chosen + 1 :]:
            cost = buckets[chosen].top
            for at, bucket in enumerate(larger, chosen + 1):
                cost += bucket.share / left * row[at]
            row[chosen] = cost
    expected = 0.0
    for needed, row in zip(buckets, table, strict=True):
        for bucket, cost in zip(buckets, row, strict=True):
            expected += needed.share * bucket.share * cost
    return expected


def _cost_in_turn(buckets: Sequence[Bucket], means: Sequence[float]) -> float:
    """Expected waste if buckets are tried in ascending order."""
    expected = spent = 0.0
    for bucket, mean in zip(buckets, means, strict=True):
        spent += bucket.top
        expected += bucket.share * (spent - mean)
    return expected


def _quantized(points: Sequence[FinishedTask], most: int) -> list[Bucket]:
    """Buckets that contain equal numbers of points."""
    total = len(points)
    buckets: list[Bucket] = []
    bound = math.floor(1.0 * total / most)
    held = 0
    for number, point in enumerate(points, 1):
        held += 1
        if number >= bound:
            buckets.append(Bucket(point.value, held / total))
            held = 0
            bound = math.floor((1.0 + len(buckets)) / most * total)
    return buckets
