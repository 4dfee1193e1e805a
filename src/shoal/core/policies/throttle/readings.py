"""What a node senses, made into control periods.

A driver gives the meter a `NodeSample` every half second and a word about each task that ended; at the end of a control
period it takes a `Period` from it. A plateau is best read as the fullest of 21 bins, a slope and a use that comes in
bursts as the mean: the period has both. Reading the system is left to the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

SAMPLE_SECONDS = 0.5
PERIOD_SECONDS = 4.0
"""A control period: eight samples, the least from which a mode says anything."""
BINS = 21
UNUSED = 1e-4
"""The mode leaves out samples that show no use at all."""
TOGETHER = 0.06
"""A number of tasks was really running if the mean differs from it by no more than this share, or by half a task."""

CPU, DISK, NETWORK = "cpu", "disk", "network"
COMPRESSIBLE = (CPU, DISK, NETWORK)
"""What a task waits for if there is too little of it. Memory is not among them: it is a matter of the contract."""


class NodeSample(msgspec.Struct, frozen=True):
    """What a node senses at one moment; shares are of what the node has, from 0 to 1, over the time since the last."""

    user: float = 0.0
    system: float = 0.0
    iowait: float = 0.0
    steal: float = 0.0
    disk: float = 0.0
    """The share of time in which the disk was at work."""
    disk_latency: float = 0.0
    """Seconds per request."""
    network: float = 0.0
    """Of the link's rate, in the busier direction."""
    network_latency: float = 0.0
    memory_pressure: float = 0.0
    """The share of time in which some task waited for memory."""
    run_queue: int = 0
    running: Mapping[str, int] = {}
    """Tasks of each category under way."""

    def use(self, resource: str) -> float:
        """The share of one of `COMPRESSIBLE` in use; what others took of the processors is not there to be used."""
        if resource == CPU:
            return min(1.0, (self.user + self.system) / max(0.05, 1.0 - self.steal))
        return self.disk if resource == DISK else self.network


class Figure(msgspec.Struct, frozen=True):
    """One figure over a period."""

    mean: float = 0.0
    mode: float = 0.0
    error: float = 0.0
    """How far the mean may be off: one standard error."""


class Endings(msgspec.Struct):
    """The tasks of a category that ended: enough to compare times without being led by a few long ones."""

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
        """Adds what is in the other, after giving what is here this weight."""
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
        """The standard deviation of the logarithms: how much times differ, relative to their size."""
        return math.sqrt(max(0.0, self.squares / self.count - self.log_mean**2)) if self.count else 0.0

    @property
    def log_error(self) -> float:
        """The standard error of the mean of the logarithms: a relative error of the geometric mean."""
        return math.hypot(self.log_spread, 0.01) / math.sqrt(self.count - 1) if self.count > 1 else 1.0


class Turnout(msgspec.Struct, frozen=True):
    """One category in one period."""

    target: int
    """How many were to run together."""
    running: float
    """How many did, in the mean."""
    endings: Endings
    """Of those that ended late enough to have run beside the target's number of others."""
    completed: int = 0
    """All that ended."""
    waiting: int = 0
    """Ready tasks at the end of the period that were not started."""
    limit: int | None = None
    """How many the contract admits together; None if that is not known."""

    @property
    def held(self) -> bool:
        """Whether the readings belong to the target; otherwise they say nothing about it."""
        return self.target > 0 and abs(self.running - self.target) <= max(0.5, TOGETHER * self.target)


class Period(msgspec.Struct, frozen=True):
    """What was sensed over one control period."""

    seconds: float
    samples: int
    use: Mapping[str, Figure]
    turnout: Mapping[str, Turnout]
    """Per category, in the order in which they were first heard of."""
    memory_pressure: float = 0.0
    run_queue: float = 0.0
    iowait: float = 0.0


def fullest_bin(values: Sequence[float]) -> float:
    """The mean of the values in the fullest of the bins; of equally full ones the higher. Zeros are left out."""
    bins: dict[int, list[float]] = {}
    for value in values:
        if value > UNUSED:
            bins.setdefault(min(BINS - 1, int(value * (BINS - 1))), []).append(value)
    if not bins:
        return 0.0
    best = max(bins.values(), key=lambda members: (len(members), sum(members)))
    return sum(best) / len(best)


def figure(values: Sequence[float]) -> Figure:
    """A series of samples as one figure."""
    count = len(values)
    if not count:
        return Figure()
    mean = sum(values) / count
    # Neighbouring samples of tasks that work in bursts are alike: blocks of two show how far the mean may be off.
    blocks = [sum(values[at : at + 2]) / 2 for at in range(0, count - 1, 2)]
    return Figure(mean, fullest_bin(values), max(_error(values), _error(blocks)))


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean of independent values."""
    count = len(values)
    mean = sum(values) / max(1, count)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, count - 1) / max(1, count))


class Meter:
    """Collects samples and endings, and gives them out per control period."""

    def __init__(self) -> None:
        self._samples: list[NodeSample] = []
        self._endings: dict[str, Endings] = {}
        self._completed: dict[str, int] = {}
        self._changed: dict[str, float] = {}
        """When each category's target changed last."""
        self._targets: dict[str, int] = {}
        self._typical: dict[str, float] = {}
        """A moving mean of each category's times."""
        self._begin: float | None = None

    def sample(self, now: float, sample: NodeSample) -> None:
        if self._begin is None:
            self._begin = now - SAMPLE_SECONDS
        self._samples.append(sample)

    def ended(self, now: float, category: str, seconds: float) -> None:
        """A task of the category has completed and took so long."""
        self._completed[category] = self._completed.get(category, 0) + 1
        typical = self._typical.get(category, seconds)
        self._typical[category] = typical = typical + 0.1 * (seconds - typical)
        if now - self._changed.get(category, 0.0) >= typical:
            self._endings.setdefault(category, Endings()).add(seconds)

    def aim(self, now: float, targets: Mapping[str, int]) -> None:
        """From now on these numbers are to run together."""
        for category, target in targets.items():
            if self._targets.get(category) != target:
                self._targets[category] = target
                self._changed[category] = now

    def due(self, now: float) -> bool:
        """Whether a control period is over."""
        return self._begin is not None and now - self._begin >= PERIOD_SECONDS - SAMPLE_SECONDS / 4

    def period(self, now: float, waiting: Mapping[str, int], limits: Mapping[str, int | None] | None = None) -> Period:
        """Closes the period. `waiting` has every category with tasks on the node, in the order they came."""
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
