"""Work Queue's bucketing modes for replays of traces: a few sizes with probabilities, cut from the peaks seen."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

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
