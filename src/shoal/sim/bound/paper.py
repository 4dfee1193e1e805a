"""The dynamic programme of the MATRIX paper (its section 3), which it calls a sub-optimal bound of its own technique.

A task is ready either on a fresh node, after the outputs of all its parents have been moved there, or on the node of
one parent, after the task and the outputs of the other parents have been moved; the earlier of the two is taken. Then
it waits in a queue, then it runs:

    end(v) = min(fresh(v), joined(v)) + wait(v) + seconds(v)
    fresh(v) = max over parents u of arrival(u),  arrival(u) = end(u) + output(u) / bandwidth
    joined(v) = min over parents w of max(end(w), arrival of the others) + size of the task / bandwidth

As printed, `joined` does not wait for w itself, so that a task with one parent would ignore it: here it does. The best
w is always the parent whose output would arrive last, so one pass over the parents finds it instead of one per parent.

The printed wait can be read in several ways (`READINGS`); none of them gives the numbers the paper reports, and none is
a bound: the programme lets every core of a node be free at once, and charges for outputs that need not move. For bounds
see `lower`. Tasks that ask for several cores count as one task here, and speeds do not: the paper knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.errors import InputError
from shoal.model.work import Work
from shoal.sim.bound.levels import Floats, Ints, Levels, floats, whole

READINGS = {
    "position": "the j-th task of a depth waits for the j / cores before it on its core",
    "per-level": "every task waits (k - 1) / 2 mean lengths, k tasks per core of its depth",
    "literal": "every task waits (k - 1) / 2 mean lengths, k tasks per core of the whole workload",
    "no-wait": "no task waits for a core",
}
DEFAULT_READING = "position"
GIGABIT_BYTES = 125e6
TASK_BYTES = 100.0
"""The size of a task's description; the paper does not state it, its author's simulator has this."""
BANDWIDTH = 10 * GIGABIT_BYTES
"""Likewise, in bytes per second."""


class Network(msgspec.Struct, frozen=True):
    """What moving costs: bytes per second between any two nodes, and the bytes of a task's description."""

    bandwidth: float = BANDWIDTH
    task_bytes: float = TASK_BYTES


class PaperBound(msgspec.Struct, frozen=True):
    """What the paper's programme says: its makespan, under one reading of the wait."""

    reading: str
    tasks: int
    seconds: float

    @property
    def throughput(self) -> float:
        return self.tasks / self.seconds if self.seconds else 0.0


class Waits:
    """How long tasks wait in their queue, under one reading; made from the tasks and the seconds of each depth."""

    def __init__(self, reading: str, cores: int, tasks: Sequence[int], seconds: Sequence[float]) -> None:
        if reading not in READINGS:
            raise InputError(f"there is no reading {reading!r}", remedy=f"it is one of {', '.join(READINGS)}")
        self._reading = reading
        self._cores = cores
        counts, totals = floats(tasks), floats(seconds)
        self._means: Floats = totals / np.maximum(counts, 1)
        number = max(1.0, float(counts.sum()))
        self._of_all = _average(np.full(len(counts), number) / cores, totals.sum() / number)
        self._of_level = _average(counts / cores, self._means)

    def of(self, depth: int | Ints, places: Ints) -> Floats | float:
        """For tasks of this depth, or these depths, that stand at these places in the queue of their depth."""
        match self._reading:
            case "literal":
                return self._of_all[depth]
            case "per-level":
                return self._of_level[depth]
            case "position":
                return (places // self._cores) * self._means[depth]
            case _:
                return 0.0


def _average(per_core: Floats, mean: Floats | float) -> Floats:
    """Equation (1) of the paper; with less than one task per core nothing waits."""
    waits: Floats = np.maximum(per_core - 1, 0.0) * mean / 2
    return waits


class _Moved:
    """A task is ready on a fresh node, or on that of the parent whose output would arrive last."""

    def __init__(self, move_output: Floats, move_task: float) -> None:
        self._move_output = move_output
        self._move_task = move_task

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        arrivals = ends + self._move_output[parents]
        last = np.maximum.reduceat(arrivals, first)
        counts = np.diff(first, append=len(arrivals))
        is_last = np.flatnonzero(arrivals == np.repeat(last, counts))
        row = np.searchsorted(first, is_last, side="right")
        joined = is_last[np.flatnonzero(np.diff(row, prepend=0))]  # one parent of each task
        arrivals[joined] = -np.inf
        others = np.maximum.reduceat(arrivals, first)
        ready: Floats = np.minimum(last, np.maximum(ends[joined], others) + self._move_task)
        return ready

    def one(self, ends: list[float], parents: list[int]) -> float:
        last = joined = other = -np.inf
        for end, parent in zip(ends, parents, strict=True):
            arrival = end + float(self._move_output[parent])
            if arrival > last:
                last, joined, other = arrival, end, last
            elif arrival > other:
                other = arrival
        return min(last, max(joined, other) + self._move_task)


def paper_bound(work: Work, cores: int, reading: str = DEFAULT_READING, network: Network | None = None) -> PaperBound:
    """The paper's programme for any work; tasks that run nothing stand in no queue."""
    network = network or Network()
    levels = Levels(work)
    depth, runs, order = levels.depth, levels.runs, levels.order
    counts = np.bincount(depth[runs], minlength=len(levels))
    seconds = np.bincount(depth, levels.seconds, minlength=len(levels))
    queued = order[runs[order]]
    places = np.arange(len(queued)) - np.repeat(np.cumsum(counts) - counts, counts)
    cost = levels.seconds.copy()
    cost[queued] += Waits(reading, cores, counts.tolist(), seconds.tolist()).of(depth[queued], places)
    moved = _Moved(output_bytes(work) / network.bandwidth, network.task_bytes / network.bandwidth)
    _, ends = levels.walk(cost, moved)
    return PaperBound(reading, len(queued), float(ends[runs].max(initial=0.0)))


def output_bytes(work: Work) -> Floats:
    """How much each task makes."""
    if not len(work.output_start):
        return np.zeros(len(work))
    made = floats(work.file_bytes)[whole(work.outputs)]
    before = np.concatenate(([0.0], np.cumsum(made)))
    return np.diff(before[whole(work.output_start)])
