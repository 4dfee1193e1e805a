"""Bounds for the MATRIX benchmark: the dynamic programme of the MATRIX paper, and streamed bounds for its four graph
shapes, which never hold a whole graph in memory.

In the paper's programme a task is ready either on a new node, after the outputs of all its parents have been
transferred there, or on the node of one parent, after the task and the outputs of the other parents have been
transferred. The earlier alternative counts. Then the task waits in a queue and runs:

    end(v) = min(fresh(v), joined(v)) + wait(v) + seconds(v)
    fresh(v) = max over parents u of arrival(u),  arrival(u) = end(u) + output(u) / bandwidth
    joined(v) = min over parents w of max(end(w), arrival of the others) + size of the task / bandwidth

In the paper, `joined` does not wait for w itself, so a task with one parent would ignore that parent; here it waits.
The best w is always the parent whose output would arrive last, so one pass over the parents finds it.

The paper's formula for the wait is ambiguous (`READINGS`). No reading reproduces the published numbers, and none is a
lower bound: the programme lets every core of a node be free at the same time, and charges for outputs that need no
transfer. `shoal.sim.lower_bound` has valid bounds. Tasks that request several cores count as one task here, and node
speeds are ignored, because the paper has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from shoal.core.work import Work
from shoal.errors import InputError
from shoal.sim.lower_bound import DepthTally, Floats, Ints, WorkLevels, floats, whole
from shoal.sim.workloads.matrix import LARGEST, LENGTHS, LONGEST, SIZES, uniform

READINGS = {
    "position": "the j-th task of a depth waits for the j / cores tasks before it on its core",
    "per-level": "every task waits (k - 1) / 2 mean durations, k tasks per core of its depth",
    "literal": "every task waits (k - 1) / 2 mean durations, k tasks per core of the whole workload",
    "no-wait": "no task waits for a core",
}
DEFAULT_READING = "position"
GIGABIT_BYTES = 125e6
TASK_BYTES = 100.0
"""Size of a task's description in bytes. The paper does not state it; this is the value of the authors' simulator."""
BANDWIDTH = 10 * GIGABIT_BYTES
"""In bytes per second, also from the authors' simulator."""


class Network(msgspec.Struct, frozen=True):
    """Transfer costs: bandwidth between any two nodes in bytes per second, and size of a task's description in
    bytes."""

    bandwidth: float = BANDWIDTH
    task_bytes: float = TASK_BYTES


class PaperBound(msgspec.Struct, frozen=True):
    """Makespan by the paper's programme, with one reading of the wait."""

    reading: str
    tasks: int
    seconds: float

    @property
    def throughput(self) -> float:
        return self.tasks / self.seconds if self.seconds else 0.0


class Waits:
    """Queue waiting times of tasks with one reading, from the number of tasks and their total seconds per depth."""

    def __init__(self, reading: str, cores: int, tasks: Sequence[int], seconds: Sequence[float]) -> None:
        if reading not in READINGS:
            raise InputError(f"unknown reading {reading!r}", remedy=f"use one of {', '.join(READINGS)}")
        self._reading = reading
        self._cores = cores
        counts, totals = floats(tasks), floats(seconds)
        self._means: Floats = totals / np.maximum(counts, 1)
        number = max(1.0, float(counts.sum()))
        self._of_all = _average(np.full(len(counts), number) / cores, totals.sum() / number)
        self._of_level = _average(counts / cores, self._means)

    def of(self, depth: int | Ints, places: Ints) -> Floats | float:
        """Waiting times of tasks of this depth, or these depths, by their positions in the queue of their depth."""
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
    """A task is ready on a new node, or on the node of the parent whose output would arrive last."""

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
    """Runs the paper's programme for any work; groups are not queued."""
    network = network or Network()
    levels = WorkLevels(work)
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
    """Output bytes of each task."""
    if not len(work.output_start):
        return np.zeros(len(work))
    made = floats(work.file_bytes)[whole(work.outputs)]
    before = np.concatenate(([0.0], np.cumsum(made)))
    return np.diff(before[whole(work.output_start)])


CHUNK = 4_000_000


class TaskColumnsSource(Protocol):
    """Durations and output sizes of tasks, by task number."""

    def seconds(self, first: int, count: int) -> Floats: ...

    def sizes(self, first: int, count: int) -> Floats: ...


class WalkRule(Protocol):
    """The computation at each task: earliest end times, or those of the paper's programme."""

    needs_sizes: bool

    def end(self, ready: Floats, seconds: Floats, depth: int, positions: range) -> Floats:
        """End times of tasks of one depth that are ready at these times; `positions` are their positions within that
        depth."""
        ...

    def join(self, ends: list[Floats], sizes: list[Floats]) -> Floats:
        """Ready times of tasks from the end times of their parents: `ends[0]` has their first parents, and so on; the
        last task may have fewer."""
        ...


class GraphWalk:
    """The state of one traversal of a graph, in pieces of limited size."""

    def __init__(self, tasks: int, degree: int, source: TaskColumnsSource, rule: WalkRule, chunk: int = CHUNK) -> None:
        self.tasks = tasks
        self.degree = degree
        self.source = source
        self.rule = rule
        self.chunk = max(1, chunk // degree) * degree  # a multiple, so that no piece splits a family

    def sizes(self, first: int, count: int) -> Floats:
        return self.source.sizes(first, count) if self.rule.needs_sizes else np.zeros(0)

    def pieces(self, begin: int, count: int) -> Iterator[tuple[int, int]]:
        for at in range(begin, begin + count, self.chunk):
            yield at, min(self.chunk, begin + count - at)


def bag(walk: GraphWalk) -> None:
    """Traverses independent tasks."""
    for first, count in walk.pieces(0, walk.tasks):
        walk.rule.end(np.zeros(count), walk.source.seconds(first, count), 0, range(first, first + count))


def pipeline(walk: GraphWalk) -> None:
    """Traverses chains of `degree` tasks; the last chain may be shorter."""
    degree = walk.degree
    for first, count in walk.pieces(0, walk.tasks):
        seconds, sizes = walk.source.seconds(first, count), walk.sizes(first, count)
        ready = np.zeros(-(-count // degree))
        for depth in range(min(degree, count)):
            column = seconds[depth::degree]
            pipe = first // degree
            ends = walk.rule.end(ready[: len(column)], column, depth, range(pipe, pipe + len(column)))
            ready = walk.rule.join([ends], [sizes[depth::degree]])


def fan_out(walk: GraphWalk) -> None:
    """Traverses a tree from its root: `ready` has one entry per family of the level."""
    degree, rule = walk.degree, walk.rule
    with_children = (walk.tasks - 2) // degree + 1 if walk.tasks > 1 else 0
    ready = np.zeros(1)
    for depth, (begin, width) in enumerate(tree_levels(walk.tasks, degree)):
        following = np.empty(max(0, min(width, with_children - begin)))
        for first, count in walk.pieces(begin, width):
            at = first - begin
            families = ready[at // degree : -(-(at + count) // degree)]
            own = np.repeat(families, degree)[:count]
            ends = rule.end(own, walk.source.seconds(first, count), depth, range(at, at + count))
            parents = min(count, len(following) - at)
            if parents > 0:
                following[at : at + parents] = rule.join([ends[:parents]], [walk.sizes(first, parents)])
        ready = following


def fan_in(walk: GraphWalk) -> None:
    """Traverses the mirrored tree from its leaves: `ready` has one entry per task of the level that has parents."""
    degree, rule = walk.degree, walk.rule
    levels = tree_levels(walk.tasks, degree)
    deepest = len(levels) - 1
    ready, full, queue_end = np.zeros(0), levels[-1][1], 0
    for level in range(deepest, -1, -1):
        begin, width = levels[level]
        following = np.empty(-(-width // degree))
        for first, count in walk.pieces(begin, width):
            at = first - begin
            known = ready[at : at + count]
            own = np.concatenate((known, np.zeros(count - len(known))))
            mirrored = walk.tasks - first - count
            seconds = walk.source.seconds(mirrored, count)[::-1]
            ends = np.empty(count)
            cut = max(0, min(count, full - at))  # from here on paths are shorter by one
            if cut:
                places = range(full - 1 - at, full - 1 - at - cut, -1)
                ends[:cut] = rule.end(own[:cut], seconds[:cut], deepest - level, places)
            if cut < count:
                last = queue_end - 1 - first - cut
                places = range(last, last - (count - cut), -1)
                ends[cut:] = rule.end(own[cut:], seconds[cut:], deepest - level - 1, places)
            if level:
                sizes = walk.sizes(mirrored, count)[::-1]
                columns = [ends[i::degree] for i in range(min(degree, count))]
                joined = rule.join(columns, [sizes[i::degree] for i in range(len(columns))])
                following[at // degree : at // degree + len(joined)] = joined
        queue_end, full, ready = begin + full, -(-full // degree), following


def tree_levels(tasks: int, degree: int) -> list[tuple[int, int]]:
    """First task number and width of each level of the tree."""
    levels = []
    begin, width = 0, 1
    while begin < tasks:
        levels.append((begin, min(width, tasks - begin)))
        begin, width = begin + width, width * degree
    return levels


SHAPES: dict[str, Callable[[GraphWalk], None]] = {
    "bag": bag,
    "pipeline": pipeline,
    "fan-out": fan_out,
    "fan-in": fan_in,
}


class DrawnColumns:
    """Uniform random durations and sizes, computed on demand from the seed."""

    def __init__(self, seed: int, longest: float = LONGEST, largest: int = LARGEST) -> None:
        self._seed = seed
        self._longest = longest
        self._largest = largest

    def seconds(self, first: int, count: int) -> Floats:
        drawn = uniform(self._seed, LENGTHS, count, first)
        drawn *= self._longest
        return drawn

    def sizes(self, first: int, count: int) -> Floats:
        drawn = uniform(self._seed, SIZES, count, first)
        drawn *= self._largest + 1
        return np.floor(drawn, out=drawn)


class GivenColumns:
    """Durations and sizes from two arrays."""

    def __init__(self, seconds: Floats, sizes: Floats) -> None:
        self._seconds = seconds
        self._sizes = sizes

    def seconds(self, first: int, count: int) -> Floats:
        return self._seconds[first : first + count]

    def sizes(self, first: int, count: int) -> Floats:
        return self._sizes[first : first + count]


class _Earliest:
    """Earliest times with an unlimited number of cores; each task has one core."""

    needs_sizes = False

    def __init__(self) -> None:
        self.tally = DepthTally()

    def end(self, ready: Floats, seconds: Floats, depth: int, positions: range) -> Floats:
        ends = ready + seconds
        self.tally.add(depth, ready, ends, seconds)
        return ends

    def join(self, ends: list[Floats], sizes: list[Floats]) -> Floats:
        ready = ends[0].copy()
        for column in ends[1:]:
            known = ready[: len(column)]
            np.maximum(known, column, out=known)
        return ready


class _Paper:
    """The rule of the paper's programme; see `paper_bound`."""

    needs_sizes = True

    def __init__(self, waits: Waits, network: Network) -> None:
        self._waits = waits
        self._bandwidth = network.bandwidth
        self._move_task = network.task_bytes / network.bandwidth
        self.makespan = 0.0

    def end(self, ready: Floats, seconds: Floats, depth: int, positions: range) -> Floats:
        places = np.arange(positions.start, positions.stop, positions.step)
        ends = ready + self._waits.of(depth, places)
        ends += seconds
        self.makespan = max(self.makespan, float(ends.max()))
        return ends

    def join(self, ends: list[Floats], sizes: list[Floats]) -> Floats:
        """Only the two last arrivals of all parents matter; see the module's docstring."""
        last: Floats = np.full(len(ends[0]), -np.inf)
        other = last.copy()
        joined = np.zeros(len(last))
        for end, size in zip(ends, sizes, strict=True):
            count = len(end)
            arrival = size / self._bandwidth
            arrival += end
            np.maximum(other[:count], np.minimum(arrival, last[:count]), out=other[:count])
            np.copyto(joined[:count], end, where=arrival > last[:count])
            np.maximum(last[:count], arrival, out=last[:count])
        np.maximum(joined, other, out=joined)
        joined += self._move_task
        return np.minimum(last, joined, out=last)


def streamed_tally(shape: str, tasks: int, degree: int, source: TaskColumnsSource, chunk: int = CHUNK) -> DepthTally:
    """Computes the tally for `DepthTally.bound`, which the paper's programme needs, too."""
    rule = _Earliest()
    SHAPES[shape](GraphWalk(tasks, degree, source, rule, chunk))
    return rule.tally


def streamed_paper_bound(
    shape: str,
    degree: int,
    source: TaskColumnsSource,
    known: DepthTally,
    cores: int,
    reading: str = DEFAULT_READING,
    network: Network | None = None,
    chunk: int = CHUNK,
) -> PaperBound:
    """Runs the paper's programme for the tasks of this tally."""
    tasks = sum(known.tasks)
    rule = _Paper(Waits(reading, cores, known.tasks, known.work), network or Network())
    SHAPES[shape](GraphWalk(tasks, degree, source, rule, chunk))
    return PaperBound(reading, tasks, rule.makespan)
