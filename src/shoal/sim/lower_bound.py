"""A lower bound on the makespan that holds for every schedule, policy and placement.

It is the largest of three terms. None includes data transfers, because some schedule may need none:

- the total work divided by the number of cores,
- the critical path on the fastest core,
- for each depth L: no task of depth L or more can start before the earliest of them could if every task started at
  once when ready; after that, the work of all of them remains to be done.

A task that requests several cores, or a part of one, occupies them during its whole duration. With nodes of different
speeds, cores count with their speed, and paths use the fastest. Fragmentation (two tasks of three cores on a node of
four) is ignored: that makes the bound lower, but never invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.core.resources import FRACTION
from shoal.core.work import Work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NARROW = 32
"""Levels with fewer tasks are processed task by task, because numpy would be slower."""


class LevelJoin(Protocol):
    """Computes when tasks are ready, from the ends of their parents."""

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        """For several tasks: `parents` is the concatenation of their parents, `first` where those of each task begin.
        Every task has at least one parent."""
        ...

    def one(self, ends: list[float], parents: list[int]) -> float:
        """For one task with these parents."""
        ...


class WorkLevels:
    """The tasks of a `Work` by depth, with the columns that the bounds need."""

    def __init__(self, work: Work) -> None:
        self.seconds: Floats = floats(work.seconds)
        category = whole(work.category)
        cores = np.array([profile.resources.get("cores") / FRACTION for profile in work.profiles])
        asks = np.array([bool(profile.resources.amounts) for profile in work.profiles])
        self.cores: Floats = cores[category]
        self.runs: NDArray[np.bool_] = (self.seconds > 0) | asks[category]
        """False for groups: they have no action and are never queued."""
        self.depth = depths(work)
        self.order: Ints = np.argsort(self.depth, kind="stable")
        self.level_start: Ints = np.concatenate(([0], np.cumsum(np.bincount(self.depth))))
        self._parents, self._parent_start = self._edges(work)

    def __len__(self) -> int:
        return len(self.level_start) - 1

    def _edges(self, work: Work) -> tuple[Ints, Ints]:
        """The distinct parents of all tasks, in the order of `self.order`, and where those of each task begin."""
        tasks = len(self.seconds)
        place: Ints = np.empty(tasks, np.int64)
        place[self.order] = np.arange(tasks)
        made_by = np.repeat(np.arange(tasks), np.diff(whole(work.child_start)))
        keys = np.sort(place[whole(work.children)] * tasks + made_by)
        keys = keys[np.diff(keys, prepend=-1) != 0]  # 20 times as fast as np.unique
        counts = np.bincount(keys // max(tasks, 1), minlength=tasks)
        return keys % max(tasks, 1), np.concatenate(([0], np.cumsum(counts)))

    def walk(self, cost: Floats, join: LevelJoin) -> tuple[Floats, Floats]:
        """Ready and end times of each task, if it ends `cost` after it is ready."""
        if len(self.seconds) < NARROW * len(self):
            return self._task_by_task(cost, join)
        ready, ends = np.zeros(len(cost)), np.zeros(len(cost))
        for begin, end in zip(self.level_start[:-1], self.level_start[1:], strict=True):
            tasks = self.order[begin:end]
            starts = self._parent_start[begin : end + 1]
            if begin:  # tasks of depth 0 are ready at time 0
                parents = self._parents[starts[0] : starts[-1]]
                ready[tasks] = join.many(ends[parents], parents, starts[:-1] - starts[0])
            ends[tasks] = ready[tasks] + cost[tasks]
        return ready, ends

    def _task_by_task(self, cost: Floats, join: LevelJoin) -> tuple[Floats, Floats]:
        ready, ends = [0.0] * len(cost), cost.tolist()
        parents, start = self._parents.tolist(), self._parent_start.tolist()
        for place, task in enumerate(self.order.tolist()):
            waits_for = parents[start[place] : start[place + 1]]
            if waits_for:
                ready[task] = join.one([ends[parent] for parent in waits_for], waits_for)
                ends[task] += ready[task]
        return np.asarray(ready), np.asarray(ends)


def floats(values: Sequence[float]) -> Floats:
    """Converts a column of a `Work` to numpy floats."""
    return np.asarray(values, dtype=np.float64)


def whole(values: Sequence[int]) -> Ints:
    """Converts a column of task, file or category numbers to numpy integers."""
    if isinstance(values, (bytes, bytearray)):
        return np.frombuffer(values, np.uint8).astype(np.int64)
    return np.asarray(values, dtype=np.int64)


def depths(work: Work) -> Ints:
    """The depth of each task, computed front by front."""
    left = whole(work.waits_for).copy()
    child_start, children = whole(work.child_start), whole(work.children)
    depth = np.zeros(len(left), np.int64)
    front = np.flatnonzero(left == 0)
    level = 0
    while len(front):
        depth[front] = level
        level += 1
        if len(front) < NARROW:
            front, level = _narrow_fronts(work, front, left, depth, level)
            continue
        begin = child_start[front]
        counts = child_start[front + 1] - begin
        before = np.cumsum(counts) - counts
        reached = children[np.repeat(begin - before, counts) + np.arange(counts.sum())]
        np.subtract.at(left, reached, 1)
        front = np.unique(reached[left[reached] == 0])
    return depth


def _narrow_fronts(work: Work, front: Ints, left: Ints, depth: Ints, level: int) -> tuple[Ints, int]:
    """Continues from a narrow front task by task, until a front is wide or empty; returns that front and its level."""
    tasks: list[int] = front.tolist()
    while True:
        reached = []
        for task in tasks:
            for child in work.children_of(task):
                left[child] -= 1
                if not left[child]:
                    reached.append(child)
        tasks = reached
        if not 0 < len(tasks) < NARROW:
            return np.array(tasks, np.int64), level
        for task in tasks:
            depth[task] = level
        level += 1


TERMS = ("work", "path", "depth")


class Capacity(msgspec.Struct, frozen=True):
    """Compute capacity of a cluster: the sum of its core speeds, and the maximum."""

    cores: float
    fastest: float = 1.0

    @classmethod
    def of(cls, nodes: Iterable[tuple[float, float]]) -> Capacity:
        """Computes it from the cores and speed of each node."""
        known = list(nodes)
        return cls(sum(cores * speed for cores, speed in known), max(speed for _, speed in known))


class LowerBound(msgspec.Struct, frozen=True):
    """The bound and its three terms, in seconds."""

    tasks: int
    work: float
    """Core seconds at speed 1."""
    over_cores: float
    path: float
    below: float
    """Maximum of the terms per depth, from depth 1 on; 0 if there is no such depth."""
    depth: int
    """The depth with that maximum."""

    @property
    def seconds(self) -> float:
        return max(self.over_cores, self.path, self.below)

    @property
    def decides(self) -> str:
        """The term that is the bound, one of `TERMS`; the first one if several are equal."""
        terms = (self.over_cores, self.path, self.below)
        return TERMS[terms.index(self.seconds)]

    @property
    def throughput(self) -> float:
        """Upper bound on the throughput of any run."""
        return self.tasks / self.seconds if self.seconds else 0.0


class DepthTally:
    """Sums and minima per depth that the bound needs."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.work: list[float] = []
        self.earliest: list[float] = []
        """Earliest start of a task with work."""
        self.path = 0.0

    def add(self, depth: int, ready: Floats, ends: Floats, seconds: Floats) -> None:
        """Adds one-core tasks of one depth: their earliest start and end times, and their durations."""
        while len(self.tasks) <= depth:
            self.tasks.append(0)
            self.work.append(0.0)
            self.earliest.append(np.inf)
        self.tasks[depth] += len(seconds)
        self.work[depth] += float(seconds.sum())
        self.path = max(self.path, float(ends.max()))
        starts = ready if seconds.all() else ready[seconds > 0]
        self.earliest[depth] = min(self.earliest[depth], float(starts.min(initial=np.inf)))

    def bound(self, capacity: Capacity) -> LowerBound:
        work = sum(self.work)
        below, at_depth = 0.0, 0
        behind, head = 0.0, float("inf")
        for depth in range(len(self.work) - 1, 0, -1):
            behind += self.work[depth]
            head = min(head, self.earliest[depth])
            term = head / capacity.fastest + behind / capacity.cores
            if behind > 0 and term > below:
                below, at_depth = term, depth
        return LowerBound(sum(self.tasks), work, work / capacity.cores, self.path / capacity.fastest, below, at_depth)


class _Latest:
    """A task is ready when its last parent has ended."""

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        ready: Floats = np.maximum.reduceat(ends, first)
        return ready

    def one(self, ends: list[float], parents: list[int]) -> float:
        return max(ends)


def lower_bound(work: Work, capacity: Capacity) -> LowerBound:
    """Computes the bound for any work; groups do not count as tasks."""
    levels = WorkLevels(work)
    depth, depths = levels.depth, len(levels)
    ready, ends = levels.walk(levels.seconds, _Latest())
    core_seconds = levels.seconds * levels.cores
    earliest: Floats = np.full(depths, np.inf)
    works = core_seconds > 0  # tasks without work must not lower the earliest start
    np.minimum.at(earliest, depth[works], ready[works])
    known = DepthTally()
    known.tasks = np.bincount(depth[levels.runs], minlength=depths).tolist()
    known.work = np.bincount(depth, core_seconds, minlength=depths).tolist()
    known.earliest = earliest.tolist()
    known.path = float(ends.max(initial=0.0))
    return known.bound(capacity)
