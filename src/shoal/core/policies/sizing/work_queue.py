"""Work Queue's automatic allocation, reproduced exactly: first allocations from histograms, categories, and bucketing.

Peaks fall into buckets of equal width, which are represented by their upper ends; each keeps its number of tasks and
their total wall time. Rounding of floating-point sums decides ties, so sums are computed in the original's order. The
bucketing modes, which draw from probabilities, are at the end (`buckets_of`, `BucketState`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
