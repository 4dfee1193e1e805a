"""Measurements of a node and their aggregation into control periods.

A driver passes a `NodeSample` to the meter every half second, and the duration of each task that ended. At the end of a
control period it takes a `Period` from the meter. A constant use is best estimated by the fullest of 21 bins (the
mode), a growing or bursty use by the mean: the period has both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

SAMPLE_SECONDS = 0.5
PERIOD_SECONDS = 4.0
"""Length of a control period: eight samples, the minimum for a meaningful mode."""
BINS = 21
UNUSED = 1e-4
"""The mode ignores samples below this use."""
TOGETHER = 0.06
"""A target was really running if the mean differs from it by at most this share, or by half a task."""

CPU, DISK, NETWORK = "cpu", "disk", "network"
COMPRESSIBLE = (CPU, DISK, NETWORK)
"""Resources that tasks wait for if there is too little. Memory is not among them: the contract limits it."""


class NodeSample(msgspec.Struct, frozen=True):
    """Measurements of a node; shares are from 0 to 1 of the node's capacity, over the time since the last sample."""

    user: float = 0.0
    system: float = 0.0
    iowait: float = 0.0
    steal: float = 0.0
    disk: float = 0.0
    """Share of time in which the disk was busy."""
    disk_latency: float = 0.0
    """Seconds per request."""
    network: float = 0.0
    """Share of the link's rate, in the busier direction."""
    network_latency: float = 0.0
    memory_pressure: float = 0.0
    """Share of time in which some task waited for memory."""
    run_queue: int = 0
    running: Mapping[str, int] = {}
    """Running tasks of each category."""

    def use(self, resource: str) -> float:
        """Use of one of `COMPRESSIBLE`; stolen processor time counts as not available."""
        if resource == CPU:
            return min(1.0, (self.user + self.system) / max(0.05, 1.0 - self.steal))
        return self.disk if resource == DISK else self.network


class Figure(msgspec.Struct, frozen=True):
    """Statistics of one measurement over a period."""

    mean: float = 0.0
    mode: float = 0.0
    error: float = 0.0
    """Standard error of the mean."""


class Endings(msgspec.Struct):
    """Durations of ended tasks of a category; logarithms limit the effect of a few long ones."""

    count: int = 0
    seconds: float = 0.0
    logs: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float) -> None:
        log = math.log(max(seconds, 1e-6))
        self.count += 1
        self.seconds += seconds
        self.logs += log
        self.squares += log * log

    def merge(self, other: Endings, weight: float = 1.0) -> None:
        """Adds the other statistics after scaling this one by `weight`."""
        self.count = round(self.count * weight) + other.count
        self.seconds = self.seconds * weight + other.seconds
        self.logs = self.logs * weight + other.logs
        self.squares = self.squares * weight + other.squares

    @property
    def mean(self) -> float:
        return self.seconds / self.count if self.count else 0.0

    @property
    def log_mean(self) -> float:
        return self.logs / self.count if self.count else 0.0

    @property
    def log_spread(self) -> float:
        """Standard deviation of the logarithms: relative spread of the durations."""
        return math.sqrt(max(0.0, self.squares / self.count - self.log_mean**2)) if self.count else 0.0

    @property
    def log_error(self) -> float:
        """Standard error of the mean logarithm: relative error of the geometric mean."""
        return math.hypot(self.log_spread, 0.01) / math.sqrt(self.count - 1) if self.count > 1 else 1.0


class Turnout(msgspec.Struct, frozen=True):
    """One category in one period."""

    target: int
    """Number of tasks that should have run."""
    running: float
    """Mean number of tasks that ran."""
    endings: Endings
    """Tasks that ended late enough to have run beside the target number of others."""
    completed: int = 0
    """All tasks that ended."""
    waiting: int = 0
    """Ready tasks at the end of the period."""
    limit: int | None = None
    """How many tasks the contract admits; None if unknown."""

    @property
    def held(self) -> bool:
        """Whether the target was really running; otherwise the measurements do not apply to it."""
        return self.target > 0 and abs(self.running - self.target) <= max(0.5, TOGETHER * self.target)


class Period(msgspec.Struct, frozen=True):
    """Measurements over one control period."""

    seconds: float
    samples: int
    use: Mapping[str, Figure]
    turnout: Mapping[str, Turnout]
    """Per category, in order of first appearance."""
    memory_pressure: float = 0.0
    run_queue: float = 0.0
    iowait: float = 0.0


def fullest_bin(values: Sequence[float]) -> float:
    """Mean of the values in the fullest bin; on a tie the higher bin. Zeros are ignored."""
    bins: dict[int, list[float]] = {}
    for value in values:
        if value > UNUSED:
            bins.setdefault(min(BINS - 1, int(value * (BINS - 1))), []).append(value)
    if not bins:
        return 0.0
    best = max(bins.values(), key=lambda members: (len(members), sum(members)))
    return sum(best) / len(best)


def figure(values: Sequence[float]) -> Figure:
    """Statistics of a series of samples."""
    count = len(values)
    if not count:
        return Figure()
    mean = sum(values) / count
    # Adjacent samples of bursty tasks are correlated: blocks of two give a better error of the mean.
    blocks = [sum(values[at : at + 2]) / 2 for at in range(0, count - 1, 2)]
    return Figure(mean, fullest_bin(values), max(_error(values), _error(blocks)))


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    count = len(values)
    mean = sum(values) / max(1, count)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, count - 1) / max(1, count))


class Meter:
    """Collects samples and endings, and aggregates them per control period."""

    def __init__(self) -> None:
        self._samples: list[NodeSample] = []
        self._endings: dict[str, Endings] = {}
        self._completed: dict[str, int] = {}
        self._changed: dict[str, float] = {}
        """When the target of each category last changed."""
        self._targets: dict[str, int] = {}
        self._typical: dict[str, float] = {}
        """Moving average of the durations of each category."""
        self._begin: float | None = None

    def sample(self, now: float, sample: NodeSample) -> None:
        if self._begin is None:
            self._begin = now - SAMPLE_SECONDS
        self._samples.append(sample)

    def ended(self, now: float, category: str, seconds: float) -> None:
        """Records the duration of a completed task of the category."""
        self._completed[category] = self._completed.get(category, 0) + 1
        typical = self._typical.get(category, seconds)
        self._typical[category] = typical = typical + 0.1 * (seconds - typical)
        if now - self._changed.get(category, 0.0) >= typical:
            self._endings.setdefault(category, Endings()).add(seconds)

    def aim(self, now: float, targets: Mapping[str, int]) -> None:
        """Sets the target number of concurrent tasks per category."""
        for category, target in targets.items():
            if self._targets.get(category) != target:
                self._targets[category] = target
                self._changed[category] = now

    def due(self, now: float) -> bool:
        """Whether the control period is over."""
        return self._begin is not None and now - self._begin >= PERIOD_SECONDS - SAMPLE_SECONDS / 4

    def period(self, now: float, waiting: Mapping[str, int], limits: Mapping[str, int | None] | None = None) -> Period:
        """Closes the period. `waiting` contains every category with tasks on the node, in order of appearance."""
        samples, count = self._samples, len(self._samples)
        turnout = {}
        for category, left in waiting.items():
            running = sum(sample.running.get(category, 0) for sample in samples) / max(1, count)
            turnout[category] = Turnout(
                self._targets.get(category, 0),
                running,
                self._endings.get(category, Endings()),
                self._completed.get(category, 0),
                left,
                (limits or {}).get(category),
            )
        seconds = now - self._begin if self._begin is not None else 0.0
        mean = max(1, count)
        period = Period(
            seconds,
            count,
            {name: figure([sample.use(name) for sample in samples]) for name in COMPRESSIBLE},
            turnout,
            sum(sample.memory_pressure for sample in samples) / mean,
            sum(sample.run_queue for sample in samples) / mean,
            sum(sample.iowait for sample in samples) / mean,
        )
        self._samples, self._endings, self._completed, self._begin = [], {}, {}, now
        return period
