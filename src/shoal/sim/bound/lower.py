"""A lower bound on the makespan that holds for every schedule, policy and placement.

It is the largest of three terms, none of which charges for moving data, because a lucky schedule need not move any:

- the work over all cores,
- the critical path on the fastest core,
- for each depth L: no task that is so deep can start before the earliest such task could with all cores to itself;
  from then on the work of all of them is still to be done.

A task that asks for several cores, or for a part of one, holds so many for as long as it runs. With nodes of several
speeds the cores count with their speeds, and paths go at the fastest. What nodes cannot do (two tasks of three cores on
a node of four) is left out: that makes the bound lower, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from shoal.model.work import Work
from shoal.sim.bound.levels import Floats, Ints, Levels

TERMS = ("work", "path", "depth")


class Capacity(msgspec.Struct, frozen=True):
    """What a cluster can do: the sum over its cores of their speeds, and the fastest of these."""

    cores: float
    fastest: float = 1.0

    @classmethod
    def of(cls, nodes: Iterable[tuple[float, float]]) -> Capacity:
        """From the cores and the speed of each node."""
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
    """The largest of the terms per depth, from depth 1 on; 0 if there is no such depth."""
    depth: int
    """The depth that gives it."""

    @property
    def seconds(self) -> float:
        return max(self.over_cores, self.path, self.below)

    @property
    def decides(self) -> str:
        """The term that is the bound, one of `TERMS`; the simpler one if two are equal."""
        terms = (self.over_cores, self.path, self.below)
        return TERMS[terms.index(self.seconds)]

    @property
    def throughput(self) -> float:
        """No run makes more tasks per second."""
        return self.tasks / self.seconds if self.seconds else 0.0


class Tally:
    """What the bound needs to know of each depth."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.work: list[float] = []
        self.earliest: list[float] = []
        """When the first task that is any work could start."""
        self.path = 0.0

    def add(self, depth: int, ready: Floats, ends: Floats, seconds: Floats) -> None:
        """Some tasks of one depth that ask for one core each: when they could start and end at best, and lengths."""
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
    """A task is ready when the last of its parents has ended."""

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        ready: Floats = np.maximum.reduceat(ends, first)
        return ready

    def one(self, ends: list[float], parents: list[int]) -> float:
        return max(ends)


def lower_bound(work: Work, capacity: Capacity) -> LowerBound:
    """The bound for any work; tasks that run nothing are not counted."""
    levels = Levels(work)
    depth, depths = levels.depth, len(levels)
    ready, ends = levels.walk(levels.seconds, _Latest())
    core_seconds = levels.seconds * levels.cores
    earliest: Floats = np.full(depths, np.inf)
    works = core_seconds > 0  # what is no work does not hold the bound down
    np.minimum.at(earliest, depth[works], ready[works])
    known = Tally()
    known.tasks = np.bincount(depth[levels.runs], minlength=depths).tolist()
    known.work = np.bincount(depth, core_seconds, minlength=depths).tolist()
    known.earliest = earliest.tolist()
    known.path = float(ends.max(initial=0.0))
    return known.bound(capacity)
