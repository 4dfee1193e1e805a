"""The ways of sizing that a trace can be replayed under: ours, Work Queue's, and what hindsight would have chosen.

Work Queue's are replayed as it would run them: whole workers until a category is steady, an integer number of equal
tasks on a worker, a retry with the largest seen and then with a whole worker. Hindsight knows all peaks beforehand;
`perfect` even which task has which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from shoal.policy.sizing.buckets import BUCKETING_MODES, BucketState
from shoal.policy.sizing.chain import best_chain
from shoal.policy.sizing.sizer import SIZER_MODES, Sizer
from shoal.policy.sizing.workqueue import MODES, Category, Summary
from shoal.sim.sizing import Outcome, Policy, Trace, replay

WORK_QUEUE_MODES = tuple(f"wq-{mode}" for mode in (*MODES, *BUCKETING_MODES))
HINDSIGHT_MODES = ("perfect", "best-chain", "best-single", "no-retry")
ALL_MODES = (*SIZER_MODES, *WORK_QUEUE_MODES, *HINDSIGHT_MODES)
MOST_TRIALS = 8
"""So many single first sizes, those that promise most, are tried for the best one in hindsight."""
MOST_CUTS = 100
"""So often at most bucketing cuts its buckets anew in a replay; each time it looks at all tasks."""


class Setting:
    """What all replays of one trace share."""

    def __init__(self, trace: Trace, node: float, workers: int, bucket: float = 250.0, seed: int = 0) -> None:
        self.trace = trace
        self.node = node
        self.workers = workers
        self.bucket = bucket
        self.seed = seed
        self.unit = 1.0 if node >= 1000 else node / 10_000
        self.largest = max(trace.peaks)

    def run(self, mode: str) -> Outcome:
        """The outcome of one mode; the best single size takes as many replays as there are sizes to try."""
        if mode == "best-single":
            trials = [self._replay(Steps(self, [size, self.share(self.largest)])) for size in self._single_sizes()]
            return max(trials, key=lambda outcome: outcome.throughput)
        return self._replay(POLICIES[mode](self))

    def share(self, size: float) -> float:
        """The share of a node that as many equal tasks of this size get as fit there."""
        return self.node / (self.node // size) if 0 < size <= self.node else self.node

    def _replay(self, policy: Policy) -> Outcome:
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

    def __init__(self, setting: Setting, mode: str) -> None:
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


class Labels:
    """Work Queue's automatic labels; the resource of the trace stands in the place of memory."""

    def __init__(self, setting: Setting, mode: str) -> None:
        self.setting = setting
        self.mode = mode
        self.worker = {"memory": setting.node}
        self.categories: dict[str, Category] = {}

    def _category(self, task: int) -> Category:
        name = self.setting.trace.category(task)
        if name not in self.categories:
            widths = {"cores": 1.0, "gpus": 1.0, "memory": self.setting.bucket, "disk": self.setting.bucket}
            self.categories[name] = Category(self.mode, widths=widths, automatic=("memory",))
        return self.categories[name]

    def ask(self, task: int, tried: Sequence[float]) -> float:
        size = self._category(task).ask(first_attempt=not tried).get("memory")
        if size is None or (tried and (len(tried) > 1 or size <= tried[-1])):
            return self.setting.node
        return self.setting.share(size)

    def completed(self, task: int, tried: Sequence[float]) -> None:
        trace = self.setting.trace
        self._category(task).accumulate(Summary({"memory": trace.peaks[task]}, trace.times[task]), self.worker)

    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None:
        # What is measured of a task that is ended over its limit lies a little above it.
        summary = Summary({"memory": size + self.setting.unit}, self.setting.trace.times[task], normal=False)
        self._category(task).accumulate(summary, self.worker)


class Bucketing:
    """Work Queue's bucketing modes."""

    def __init__(self, setting: Setting, mode: str) -> None:
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

    def __init__(self, setting: Setting, sizes: Sequence[float]) -> None:
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

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, [])
        self.peaks = setting.trace.peaks

    def ask(self, task: int, tried: Sequence[float]) -> float:
        return self.peaks[task]


def chain_in_hindsight(setting: Setting) -> Steps:
    """The steps with the least expected cost over the whole trace."""
    needs = setting.needs()
    sizes = sorted(needs)
    return Steps(setting, [sizes[at] for at in best_chain(sizes, [needs[size] for size in sizes])])


def _ours(mode: str) -> Callable[[Setting], Policy]:
    return lambda setting: Learning(setting, mode)


def _labels(mode: str) -> Callable[[Setting], Policy]:
    return lambda setting: Labels(setting, mode)


def _bucketing(mode: str) -> Callable[[Setting], Policy]:
    return lambda setting: Bucketing(setting, mode)


POLICIES: dict[str, Callable[[Setting], Policy]] = {
    **{mode: _ours(mode) for mode in SIZER_MODES},
    **{f"wq-{mode}": _labels(mode) for mode in MODES},
    **{f"wq-{mode}": _bucketing(mode) for mode in BUCKETING_MODES},
    "perfect": Perfect,
    "best-chain": chain_in_hindsight,
    "no-retry": lambda setting: Steps(setting, [setting.share(setting.largest)]),
}
