"""A `Work` in numpy, by depth, and the walk from its first tasks to its last that both bounds are made of.

The depth of a task is the number of edges on the longest path that leads to it. Two edges between the same two tasks
count as one here. Wide graphs are walked level by level; in narrow ones, such as a chain of a million tasks, a level is
too little for numpy to pay, and they are walked task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.model.resources import FRACTION
from shoal.model.work import Work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NARROW = 32
"""Below so many tasks a level is walked task by task."""


class Join(Protocol):
    """When tasks are ready, given when their parents end."""

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        """For several tasks: their parents one behind the other, and where those of each begin; none has none."""
        ...

    def one(self, ends: list[float], parents: list[int]) -> float:
        """For a task with these parents."""
        ...


class Levels:
    """The tasks of a `Work` by depth, with the columns the bounds need."""

    def __init__(self, work: Work) -> None:
        self.seconds: Floats = floats(work.seconds)
        category = whole(work.category)
        cores = np.array([profile.resources.get("cores") / FRACTION for profile in work.profiles])
        asks = np.array([bool(profile.resources.amounts) for profile in work.profiles])
        self.cores: Floats = cores[category]
        self.runs: NDArray[np.bool_] = (self.seconds > 0) | asks[category]
        """False for what runs nothing: it groups other tasks, and stands in no queue."""
        self.depth = depths(work)
        self.order: Ints = np.argsort(self.depth, kind="stable")
        self.level_start: Ints = np.concatenate(([0], np.cumsum(np.bincount(self.depth))))
        self._parents, self._parent_start = self._edges(work)

    def __len__(self) -> int:
        return len(self.level_start) - 1

    def _edges(self, work: Work) -> tuple[Ints, Ints]:
        """The parents of all tasks, each once, in the order of `self.order`, and where those of each task begin."""
        tasks = len(self.seconds)
        place: Ints = np.empty(tasks, np.int64)
        place[self.order] = np.arange(tasks)
        made_by = np.repeat(np.arange(tasks), np.diff(whole(work.child_start)))
        keys = np.sort(place[whole(work.children)] * tasks + made_by)
        keys = keys[np.diff(keys, prepend=-1) != 0]  # `np.unique` takes twenty times as long for this
        counts = np.bincount(keys // max(tasks, 1), minlength=tasks)
        return keys % max(tasks, 1), np.concatenate(([0], np.cumsum(counts)))

    def walk(self, cost: Floats, join: Join) -> tuple[Floats, Floats]:
        """When each task is ready and when it ends, if it ends so long after it is ready."""
        if len(self.seconds) < NARROW * len(self):
            return self._task_by_task(cost, join)
        ready, ends = np.zeros(len(cost)), np.zeros(len(cost))
        for begin, end in zip(self.level_start[:-1], self.level_start[1:], strict=True):
            tasks = self.order[begin:end]
            starts = self._parent_start[begin : end + 1]
            if begin:  # those of depth 0 are ready at once
                parents = self._parents[starts[0] : starts[-1]]
                ready[tasks] = join.many(ends[parents], parents, starts[:-1] - starts[0])
            ends[tasks] = ready[tasks] + cost[tasks]
        return ready, ends

    def _task_by_task(self, cost: Floats, join: Join) -> tuple[Floats, Floats]:
        ready, ends = [0.0] * len(cost), cost.tolist()
        parents, start = self._parents.tolist(), self._parent_start.tolist()
        for place, task in enumerate(self.order.tolist()):
            waits_for = parents[start[place] : start[place + 1]]
            if waits_for:
                ready[task] = join.one([ends[parent] for parent in waits_for], waits_for)
                ends[task] += ready[task]
        return np.asarray(ready), np.asarray(ends)


def floats(values: Sequence[float]) -> Floats:
    """A column of a `Work` as numpy has it."""
    return np.asarray(values, dtype=np.float64)


def whole(values: Sequence[int]) -> Ints:
    """Likewise, for numbers of tasks, files and categories."""
    if isinstance(values, (bytes, bytearray)):
        return np.frombuffer(values, np.uint8).astype(np.int64)
    return np.asarray(values, dtype=np.int64)


def depths(work: Work) -> Ints:
    """The depth of each task, found front by front."""
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
    """Goes on from a narrow front, task by task, until one is wide or nothing is left; that front and its level."""
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
