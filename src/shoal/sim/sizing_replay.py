"""Replay of a trace of peaks and times under a way of sizing: throughput, waste and retries in virtual time.

Nodes hold one resource. A task gets what the policy says when it starts; if its peak is larger it runs for nothing,
for its full time (the slow-peaks model: peaks come last), and is tried again ahead of the tasks not yet started. The
first of those that fit nowhere has a node kept free for it. Where traces come from is left to `sizing_traces`, the ways
of sizing to `sizing_modes`.
"""

from __future__ import annotations

import csv
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import msgspec

from shoal.core.policies.sizing.sizer import SIZER_MODES, Sizer, best_chain
from shoal.core.policies.sizing.work_queue import BUCKETING_MODES, MODES, AttemptSummary, BucketState, WorkQueueCategory
from shoal.errors import InputError

MOST_PASSED = 30
"""So many retries that do not fit are passed over in search of one that does."""


class SizingTrace(msgspec.Struct):
    """Tasks in the order in which they become ready; the columns are equally long."""

    peaks: list[float]
    times: list[float]
    categories: list[str] = []
    """Empty if all tasks are of one category."""

    def category(self, task: int) -> str:
        return self.categories[task] if self.categories else ""


class SizingPolicy(Protocol):
    """A way of sizing: told of every attempt, asked before every attempt."""

    def ask(self, task: int, tried: Sequence[float]) -> float:
        """The size for the next attempt of a task, after attempts of these sizes were exhausted."""

    def completed(self, task: int, tried: Sequence[float]) -> None: ...
    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None: ...


class ReplayOutcome(msgspec.Struct):
    """What one replay came to."""

    tasks: int
    makespan: float
    retries: int
    allocated: float
    """Size times time, over all attempts."""
    used: float
    """Peak times time, over all tasks."""

    @property
    def throughput(self) -> float:
        """Tasks per unit of time."""
        return self.tasks / self.makespan if self.makespan else 0.0

    @property
    def waste(self) -> float:
        """The share of what was allocated that was of no use."""
        return 1.0 - self.used / self.allocated if self.allocated else 0.0


def check(trace: SizingTrace, node: float) -> None:
    """Refuses a task that no node can hold."""
    for number, peak in enumerate(trace.peaks, 1):
        if peak > node:
            raise InputError(
                f"task {number} peaks at {peak:g}, but a node has only {node:g}",
                remedy="give the size of a larger node with --node",
            )


def replay(trace: SizingTrace, policy: SizingPolicy, node: float, workers: int) -> ReplayOutcome:
    """Runs all tasks of the trace on equal nodes and says how it went."""
    return _Replay(trace, policy, node, workers).run()


class _Replay:
    """The state of one replay."""

    def __init__(self, trace: SizingTrace, policy: SizingPolicy, node: float, workers: int) -> None:
        self.trace = trace
        self.policy = policy
        self.size = node
        self.slack = 1e-9 * node
        """Sums of fractions are not exact."""
        self.free = [node] * workers
        self.kept: int | None = None
        """The node on which nothing new starts until the first of the waiting retries fits there."""
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
        assert size < self.size, "a task larger than the node was let in"
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
        """Starts a task where there is room for it, if anywhere; the kept node is for the first of the retries."""
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
"""So many single first sizes, those that promise most, are tried for the best one in hindsight."""
MOST_CUTS = 100
"""So often at most bucketing cuts its buckets anew in a replay; each time it looks at all tasks."""


class ReplaySetting:
    """What all replays of one trace share."""

    def __init__(self, trace: SizingTrace, node: float, workers: int, bucket: float = 250.0, seed: int = 0) -> None:
        self.trace = trace
        self.node = node
        self.workers = workers
        self.bucket = bucket
        self.seed = seed
        self.unit = 1.0 if node >= 1000 else node / 10_000
        self.largest = max(trace.peaks)

    def run(self, mode: str) -> ReplayOutcome:
        """The outcome of one mode; the best single size takes as many replays as there are sizes to try."""
        if mode == "best-single":
            trials = [self._replay(Steps(self, [size, self.share(self.largest)])) for size in self._single_sizes()]
            return max(trials, key=lambda outcome: outcome.throughput)
        return self._replay(POLICIES[mode](self))

    def share(self, size: float) -> float:
        """The share of a node that as many equal tasks of this size get as fit there."""
        return self.node / (self.node // size) if 0 < size <= self.node else self.node

    def _replay(self, policy: SizingPolicy) -> ReplayOutcome:
        return replay(self.trace, policy, self.node, self.workers)

    def _single_sizes(self) -> list[float]:
        """Shares of a node, those with the least expected cost over the whole trace."""
        needs = self.needs()
        sizes, last = sorted(needs), self.share(self.largest)
        total = tail = sum(needs.values())
        costs = []
        for size in sizes:
            tail -= needs[size]
            costs.append((size * total + last * tail, size))
        return [size for _, size in sorted(costs)[:MOST_TRIALS]]

    def needs(self) -> dict[float, float]:
        """Total durations of the tasks by the share of a node that each needs."""
        needs: dict[float, float] = {}
        for peak, seconds in zip(self.trace.peaks, self.trace.times, strict=True):
            size = self.share(max(peak, self.unit))
            needs[size] = needs.get(size, 0.0) + seconds
        return needs


class Learning:
    """Our own sizing, one sizer per category."""

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
    """Work Queue's automatic labels; the resource of the trace stands in the place of memory."""

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
        # What is measured of a task that is ended over its limit lies a little above it.
        summary = AttemptSummary({"memory": size + self.setting.unit}, self.setting.trace.times[task], normal=False)
        self._category(task).accumulate(summary, self.worker)


class Bucketing:
    """Work Queue's bucketing modes."""

    def __init__(self, setting: ReplaySetting, mode: str) -> None:
        self.setting = setting
        self.mode = mode
        self.random = Random(setting.seed)
        self.states: dict[str, BucketState] = {}
        self.drawn: dict[tuple[int, int], float] = {}
        """Sizes by task and attempt: a task that waits keeps what was predicted for it."""

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
        """A retry is predicted from the size that was exhausted, which it is told of when it asks."""


class Steps:
    """The same sizes for all tasks, one after the other, then a whole node."""

    def __init__(self, setting: ReplaySetting, sizes: Sequence[float]) -> None:
        self.sizes = [*sizes, setting.node]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        largest = tried[-1] if tried else 0.0
        return next(size for size in self.sizes if size > largest)

    def completed(self, task: int, tried: Sequence[float]) -> None:
        """Nothing is learned."""

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        """Nothing is learned."""


class Perfect(Steps):
    """Each task gets its own peak."""

    def __init__(self, setting: ReplaySetting) -> None:
        super().__init__(setting, [])
        self.peaks = setting.trace.peaks

    def ask(self, task: int, tried: Sequence[float]) -> float:
        return self.peaks[task]


def chain_in_hindsight(setting: ReplaySetting) -> Steps:
    """The steps with the least expected cost over the whole trace."""
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
    """Traces by resource, in the order in which resources appear; without that column there is one, named ''."""
    rows = csv.reader(lines)
    header = next(rows, None)
    if header is None:
        raise InputError("the trace is empty", file=file, remedy="its first line names the columns peak and time")
    names = [name.strip().lower() for name in header]
    for name in ("peak", "time"):
        if name not in names:
            raise InputError(f"the trace has no column {name!r}", file=file, line=1, remedy="name columns in line 1")
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
    """A trace of a family; the same seed gives the same trace."""
    random = Random(f"{family} {seed}")
    draw = FAMILIES[family]
    peaks = [min(max(draw(random, task / tasks), _SMALLEST), _LARGEST) for task in range(tasks)]
    return SizingTrace(peaks, [random.lognormvariate(4.0, 0.4) for _ in range(tasks)])


def as_csv(trace: SizingTrace) -> list[str]:
    """The lines of a file that `read_trace` reads."""
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
    """Like peak memory in an analysis of the CMS experiment: most tasks in a narrow hump, few in a long tail."""
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
