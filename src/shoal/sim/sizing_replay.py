"""Replays a trace of task peaks and durations with different ways of sizing: throughput, waste and retries in virtual
time. Contains the sizing policies, the trace format and the generated trace families.

Nodes have one resource. A task is allocated what the policy says when it starts. If its peak is larger, it fails after
its full duration (the slow-peaks model: peaks come last), and is retried before tasks that have not started. A node is
kept free for the first retry that fits nowhere.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from shoal.core.policies.sizing.sizer import SIZER_MODES, Sizer, best_chain
from shoal.core.policies.sizing.work_queue import MODES, AttemptSummary, WorkQueueCategory
from shoal.errors import InputError

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


MOST_PASSED = 30
"""Maximum number of retries that do not fit and are skipped in search of one that does."""


class SizingTrace(msgspec.Struct):
    """Tasks in the order in which they become ready; all columns have the same length."""

    peaks: list[float]
    times: list[float]
    categories: list[str] = []
    """Empty if all tasks are of one category."""

    def category(self, task: int) -> str:
        return self.categories[task] if self.categories else ""


class SizingPolicy(Protocol):
    """A way of sizing: returns a size before every attempt, and learns from every result."""

    def ask(self, task: int, tried: Sequence[float]) -> float:
        """The size for the next attempt of a task, after attempts with these sizes were exhausted."""

    def completed(self, task: int, tried: Sequence[float]) -> None: ...
    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None: ...


class ReplayOutcome(msgspec.Struct):
    """Totals of one replay."""

    tasks: int
    makespan: float
    retries: int
    allocated: float
    """Size times duration, over all attempts."""
    used: float
    """Peak times duration, over all tasks."""

    @property
    def throughput(self) -> float:
        """Tasks per unit of time."""
        return self.tasks / self.makespan if self.makespan else 0.0

    @property
    def waste(self) -> float:
        """Fraction of the allocation that was not used."""
        return 1.0 - self.used / self.allocated if self.allocated else 0.0


def check(trace: SizingTrace, node: float) -> None:
    """Raises InputError if a task is larger than a node."""
    for number, peak in enumerate(trace.peaks, 1):
        if peak > node:
            raise InputError(
                f"task {number} peaks at {peak:g}, but a node has only {node:g}",
                remedy="give the size of a larger node with --node",
            )


def replay(trace: SizingTrace, policy: SizingPolicy, node: float, workers: int) -> ReplayOutcome:
    """Runs all tasks of the trace on identical nodes."""
    return _Replay(trace, policy, node, workers).run()


class _Replay:
    """The state of one replay."""

    def __init__(self, trace: SizingTrace, policy: SizingPolicy, node: float, workers: int) -> None:
        self.trace = trace
        self.policy = policy
        self.size = node
        self.slack = 1e-9 * node
        """Tolerance for rounding errors in sums."""
        self.free = [node] * workers
        self.kept: int | None = None
        """The node that is kept free for the first waiting retry."""
        self.fresh = 0
        self.again: deque[int] = deque()
        self.tried: dict[int, list[float]] = {}
        self.running: list[tuple[float, int, int, int, float]] = []
        """A heap of (end, serial, task, node, size)."""
        self.serial = 0
        self.now = 0.0
        self.outcome = ReplayOutcome(len(trace.peaks), 0.0, 0, 0.0, 0.0)

    def run(self) -> ReplayOutcome:
        self._start_what_fits()
        while self.running:
            self.now = self.running[0][0]
            while self.running and self.running[0][0] == self.now:
                _, _, task, node, size = heappop(self.running)
                self.free[node] += size
                self._end(task, size)
            self._start_what_fits()
        self.outcome.makespan = self.now
        return self.outcome

    def _end(self, task: int, size: float) -> None:
        peak, seconds = self.trace.peaks[task], self.trace.times[task]
        self.outcome.allocated += size * seconds
        if peak <= size:
            self.outcome.used += peak * seconds
            self.policy.completed(task, self.tried.pop(task, ()))
            return
        assert size < self.size, "a task is larger than the node"
        self.outcome.retries += 1
        tried = self.tried.setdefault(task, [])
        self.policy.exhausted(task, size, tried)
        tried.append(size)
        self.again.append(task)

    def _start_what_fits(self) -> None:
        passed: deque[int] = deque()
        while self.again and len(passed) < MOST_PASSED:
            task = self.again.popleft()
            if not self._start(task, self.tried[task], first=not passed):
                passed.append(task)
        if passed and self.kept is None:
            self.kept = max(range(len(self.free)), key=self.free.__getitem__)
        self.again.extendleft(reversed(passed))
        while self.fresh < len(self.trace.peaks) and self._start(self.fresh, ()):
            self.fresh += 1

    def _start(self, task: int, tried: Sequence[float], first: bool = False) -> bool:
        """Starts a task on a node with enough room, if there is one; only the first retry may use the kept node."""
        size = min(self.size, self.policy.ask(task, tried))
        for node, free in enumerate(self.free):
            if free >= size - self.slack and (first or node != self.kept):
                self.free[node] -= size
                self.serial += 1
                heappush(self.running, (self.now + self.trace.times[task], self.serial, task, node, size))
                if first:
                    self.kept = None
                return True
        return False


WORK_QUEUE_MODES = tuple(f"wq-{mode}" for mode in (*MODES, *BUCKETING_MODES))
HINDSIGHT_MODES = ("perfect", "best-chain", "best-single", "no-retry")
ALL_MODES = (*SIZER_MODES, *WORK_QUEUE_MODES, *HINDSIGHT_MODES)
MOST_TRIALS = 8
"""Number of single first sizes, the most promising ones, that are tried to find the best one in hindsight."""
MOST_CUTS = 100
"""Maximum number of times that bucketing recomputes its buckets in a replay; each time it reads all tasks."""


class ReplaySetting:
    """The common input of all replays of one trace."""

    def __init__(self, trace: SizingTrace, node: float, workers: int, bucket: float = 250.0, seed: int = 0) -> None:
        self.trace = trace
        self.node = node
        self.workers = workers
        self.bucket = bucket
        self.seed = seed
        self.unit = 1.0 if node >= 1000 else node / 10_000
        self.largest = max(trace.peaks)

    def run(self, mode: str) -> ReplayOutcome:
        """Replays with one mode; the best single size needs a replay for each candidate."""
        if mode == "best-single":
            trials = [self._replay(Steps(self, [size, self.share(self.largest)])) for size in self._single_sizes()]
            return max(trials, key=lambda outcome: outcome.throughput)
        return self._replay(POLICIES[mode](self))

    def share(self, size: float) -> float:
        """The size rounded up such that the same number of tasks shares a node equally."""
        return self.node / (self.node // size) if 0 < size <= self.node else self.node

    def _replay(self, policy: SizingPolicy) -> ReplayOutcome:
        return replay(self.trace, policy, self.node, self.workers)

    def _single_sizes(self) -> list[float]:
        """Candidate sizes with the least expected cost over the whole trace."""
        needs = self.needs()
        sizes, last = sorted(needs), self.share(self.largest)
        total = tail = sum(needs.values())
        costs = []
        for size in sizes:
            tail -= needs[size]
            costs.append((size * total + last * tail, size))
        return [size for _, size in sorted(costs)[:MOST_TRIALS]]

    def needs(self) -> dict[float, float]:
        """Total durations of tasks by the size that each needs, rounded as in `share`."""
        needs: dict[float, float] = {}
        for peak, seconds in zip(self.trace.peaks, self.trace.times, strict=True):
            size = self.share(max(peak, self.unit))
            needs[size] = needs.get(size, 0.0) + seconds
        return needs


class Learning:
    """Shoal's own sizing, with one sizer per category."""

    def __init__(self, setting: ReplaySetting, mode: str) -> None:
        self.setting = setting
        self.mode = mode
        self.sizers: dict[str, Sizer] = {}

    def _sizer(self, task: int) -> Sizer:
        name = self.setting.trace.category(task)
        if name not in self.sizers:
            self.sizers[name] = Sizer(self.setting.node, self.mode, unit=self.setting.unit)
        return self.sizers[name]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        return self._sizer(task).ask(tried)

    def completed(self, task: int, tried: Sequence[float]) -> None:
        trace = self.setting.trace
        self._sizer(task).observe(trace.peaks[task], trace.times[task], tried=tried)

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        self._sizer(task).observe(size, self.setting.trace.times[task], size, tried)


class WorkQueueLabels:
    """The automatic labels of Work Queue; the trace's resource takes the role of memory."""

    def __init__(self, setting: ReplaySetting, mode: str) -> None:
        self.setting = setting
        self.mode = mode
        self.worker = {"memory": setting.node}
        self.categories: dict[str, WorkQueueCategory] = {}

    def _category(self, task: int) -> WorkQueueCategory:
        name = self.setting.trace.category(task)
        if name not in self.categories:
            widths = {"cores": 1.0, "gpus": 1.0, "memory": self.setting.bucket, "disk": self.setting.bucket}
            self.categories[name] = WorkQueueCategory(self.mode, widths=widths, automatic=("memory",))
        return self.categories[name]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        size = self._category(task).ask(first_attempt=not tried).get("memory")
        if size is None or (tried and (len(tried) > 1 or size <= tried[-1])):
            return self.setting.node
        return self.setting.share(size)

    def completed(self, task: int, tried: Sequence[float]) -> None:
        trace = self.setting.trace
        self._category(task).accumulate(AttemptSummary({"memory": trace.peaks[task]}, trace.times[task]), self.worker)

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        # The measured peak of a task that was killed at its limit is slightly above the limit.
        summary = AttemptSummary({"memory": size + self.setting.unit}, self.setting.trace.times[task], normal=False)
        self._category(task).accumulate(summary, self.worker)


class Bucketing:
    """The bucketing modes of Work Queue."""

    def __init__(self, setting: ReplaySetting, mode: str) -> None:
        self.setting = setting
        self.mode = mode
        self.random = Random(setting.seed)
        self.states: dict[str, BucketState] = {}
        self.drawn: dict[tuple[int, int], float] = {}
        """Predicted sizes by task and attempt: a waiting task keeps its prediction."""

    def _state(self, task: int) -> BucketState:
        name = self.setting.trace.category(task)
        if name not in self.states:
            epoch = 1 + len(self.setting.trace.peaks) // MOST_CUTS
            self.states[name] = BucketState(self.mode, 4 * self.setting.bucket, epoch=epoch)
        return self.states[name]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        attempt = (task, len(tried))
        if attempt not in self.drawn:
            self.drawn[attempt] = self._state(task).predict(tried[-1] if tried else None, self.random.random())
        return self.setting.share(self.drawn[attempt])

    def completed(self, task: int, tried: Sequence[float]) -> None:
        unit = self.setting.unit
        self._state(task).add(math.ceil(self.setting.trace.peaks[task] / unit) * unit)
        for attempt in range(len(tried) + 1):
            self.drawn.pop((task, attempt), None)

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        """Does nothing: `ask` predicts a retry from the exhausted size in `tried`."""


class Steps:
    """The same sequence of sizes for all tasks, ending with a whole node."""

    def __init__(self, setting: ReplaySetting, sizes: Sequence[float]) -> None:
        self.sizes = [*sizes, setting.node]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        largest = tried[-1] if tried else 0.0
        return next(size for size in self.sizes if size > largest)

    def completed(self, task: int, tried: Sequence[float]) -> None:
        """Does nothing."""

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        """Does nothing."""


class Perfect(Steps):
    """Each task is allocated exactly its peak."""

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting, [])
        self.peaks = setting.trace.peaks

    def ask(self, task: int, tried: Sequence[float]) -> float:
        return self.peaks[task]


def chain_in_hindsight(setting: ReplaySetting) -> Steps:
    """The sequence of sizes with the least expected cost over the whole trace."""
    needs = setting.needs()
    sizes = sorted(needs)
    return Steps(setting, [sizes[at] for at in best_chain(sizes, [needs[size] for size in sizes])])


def _ours(mode: str) -> Callable[[ReplaySetting], SizingPolicy]:
    return lambda setting: Learning(setting, mode)


def _labels(mode: str) -> Callable[[ReplaySetting], SizingPolicy]:
    return lambda setting: WorkQueueLabels(setting, mode)


def _bucketing(mode: str) -> Callable[[ReplaySetting], SizingPolicy]:
    return lambda setting: Bucketing(setting, mode)


POLICIES: dict[str, Callable[[ReplaySetting], SizingPolicy]] = {
    **{mode: _ours(mode) for mode in SIZER_MODES},
    **{f"wq-{mode}": _labels(mode) for mode in MODES},
    **{f"wq-{mode}": _bucketing(mode) for mode in BUCKETING_MODES},
    "perfect": Perfect,
    "best-chain": chain_in_hindsight,
    "no-retry": lambda setting: Steps(setting, [setting.share(setting.largest)]),
}


FAMILY_NODE = 8192.0
_SMALLEST, _LARGEST = 20.0, 8000.0
_COLUMNS = ("peak", "time", "category", "resource")


def read_trace(lines: Iterable[str], file: str) -> dict[str, SizingTrace]:
    """Reads CSV; returns traces by resource, in order of appearance. Without a resource column there is one, named
    ''."""
    rows = csv.reader(lines)
    header = next(rows, None)
    if header is None:
        raise InputError("the trace is empty", file=file, remedy="name the columns peak and time in line 1")
    names = [name.strip().lower() for name in header]
    for name in ("peak", "time"):
        if name not in names:
            raise InputError(
                f"the trace has no column {name!r}", file=file, line=1, remedy="name the columns in line 1"
            )
    places = {name: names.index(name) for name in _COLUMNS if name in names}
    traces: dict[str, SizingTrace] = {}
    for row in rows:
        if not row:
            continue
        if len(row) < len(names):
            raise InputError(f"the row has {len(row)} values for {len(names)} columns", file=file, line=rows.line_num)
        peak = _number(row[places["peak"]], "peak", file, rows.line_num)
        seconds = _number(row[places["time"]], "time", file, rows.line_num)
        resource = row[places["resource"]].strip() if "resource" in places else ""
        trace = traces.setdefault(resource, SizingTrace([], []))
        trace.peaks.append(peak)
        trace.times.append(seconds)
        if "category" in places:
            trace.categories.append(row[places["category"]].strip())
    if not traces:
        raise InputError("the trace has no tasks", file=file)
    return traces


def _number(text: str, what: str, file: str, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{what} must be a number, not {text.strip()!r}", file=file, line=line) from None
    if not 0 <= number < 1e18:
        raise InputError(f"{what} must be a positive number, not {text.strip()!r}", file=file, line=line)
    return number


def generate(family: str, tasks: int, seed: int) -> SizingTrace:
    """Generates a trace of a family; the same seed gives the same trace."""
    random = Random(f"{family} {seed}")
    draw = FAMILIES[family]
    peaks = [min(max(draw(random, task / tasks), _SMALLEST), _LARGEST) for task in range(tasks)]
    return SizingTrace(peaks, [random.lognormvariate(4.0, 0.4) for _ in range(tasks)])


def as_csv(trace: SizingTrace) -> list[str]:
    """Formats a trace as lines that `read_trace` accepts."""
    rows = zip(trace.peaks, trace.times, strict=True)
    return ["peak,time", *(f"{peak:.1f},{seconds:.2f}" for peak, seconds in rows)]


def _normal(random: Random, done: float) -> float:
    return random.gauss(1000, 150)


def _bimodal(random: Random, done: float) -> float:
    return random.gauss(500, 50) if random.random() < 0.75 else random.gauss(2000, 150)


def _exponential(random: Random, done: float) -> float:
    return 100 + random.expovariate(1 / 500)


def _heavy_tail(random: Random, done: float) -> float:
    return 200 * random.paretovariate(1.5)


def _trending(random: Random, done: float) -> float:
    return (400 + 1600 * done) * random.lognormvariate(0, 0.08)


def _phase_change(random: Random, done: float) -> float:
    phases: Sequence[float] = (600, 1800, 300)
    return random.gauss(phases[int(done * len(phases))], 60)


def _cms(random: Random, done: float) -> float:
    """Resembles peak memory in an analysis of the CMS experiment: most tasks in a narrow peak, few in a long tail."""
    return random.gauss(900, 120) if random.random() < 0.9 else 1000 + random.expovariate(1 / 700)


FAMILIES: dict[str, Callable[[Random, float], float]] = {
    "normal": _normal,
    "bimodal": _bimodal,
    "exponential": _exponential,
    "heavy-tail": _heavy_tail,
    "trending": _trending,
    "phase-change": _phase_change,
    "cms": _cms,
}
