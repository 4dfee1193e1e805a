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

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from shoal.core.work import Work
from shoal.errors import InputError
from shoal.sim.lower_bound import DepthTally, Floats, Ints, WorkLevels, floats, whole
from shoal.sim.workloads.matrix import LARGEST, LENGTHS, LONGEST, SIZES, uniform

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
    """How much each task makes."""
    if not len(work.output_start):
        return np.zeros(len(work))
    made = floats(work.file_bytes)[whole(work.outputs)]
    before = np.concatenate(([0.0], np.cumsum(made)))
    return np.diff(before[whole(work.output_start)])


CHUNK = 4_000_000


class TaskColumnsSource(Protocol):
    """Lengths and sizes of the outputs of tasks, by number."""

    def seconds(self, first: int, count: int) -> Floats: ...

    def sizes(self, first: int, count: int) -> Floats: ...


class WalkRule(Protocol):
    """What is computed; ends may be earliest ends, or what the paper takes for them."""

    needs_sizes: bool

    def end(self, ready: Floats, seconds: Floats, depth: int, positions: range) -> Floats:
        """When tasks of one depth end that are ready at these times; `positions` are theirs in that depth's order."""
        ...

    def join(self, ends: list[Floats], sizes: list[Floats]) -> Floats:
        """When tasks are ready: `ends[0]` are their first parents, and so on; the last task may have fewer."""
        ...


class GraphWalk:
    """One walk over one graph."""

    def __init__(self, tasks: int, degree: int, source: TaskColumnsSource, rule: WalkRule, chunk: int = CHUNK) -> None:
        self.tasks = tasks
        self.degree = degree
        self.source = source
        self.rule = rule
        self.chunk = max(1, chunk // degree) * degree  # so that no family lies in two pieces

    def sizes(self, first: int, count: int) -> Floats:
        return self.source.sizes(first, count) if self.rule.needs_sizes else np.zeros(0)

    def pieces(self, begin: int, count: int) -> Iterator[tuple[int, int]]:
        for at in range(begin, begin + count, self.chunk):
            yield at, min(self.chunk, begin + count - at)


def bag(walk: GraphWalk) -> None:
    """Independent tasks."""
    for first, count in walk.pieces(0, walk.tasks):
        walk.rule.end(np.zeros(count), walk.source.seconds(first, count), 0, range(first, first + count))


def pipeline(walk: GraphWalk) -> None:
    """Chains of `degree` tasks, of which the last may be shorter."""
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
    """A tree from its root on: `ready` has one entry per family of the level."""
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
    """The mirrored tree from its leaves on: `ready` has one entry per task of the level that has parents."""
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
            cut = max(0, min(count, full - at))  # from there on paths are one shorter
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
    """First number and width of each level of the tree."""
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
    """Uniform lengths and sizes, drawn again whenever they are asked for."""

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
    """Lengths and sizes from two columns."""

    def __init__(self, seconds: Floats, sizes: Floats) -> None:
        self._seconds = seconds
        self._sizes = sizes

    def seconds(self, first: int, count: int) -> Floats:
        return self._seconds[first : first + count]

    def sizes(self, first: int, count: int) -> Floats:
        return self._sizes[first : first + count]


class _Earliest:
    """Tasks with as many cores as they can use; one core each."""

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
    """The paper's programme; see `paper`."""

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
        """Of all parents the two last arrivals matter; see `paper`."""
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
    """What `DepthTally.bound` needs; also what the paper's programme needs to know of the whole."""
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
    """The paper's programme for the tasks whose tally is given."""
    tasks = sum(known.tasks)
    rule = _Paper(Waits(reading, cores, known.tasks, known.work), network or Network())
    SHAPES[shape](GraphWalk(tasks, degree, source, rule, chunk))
    return PaperBound(reading, tasks, rule.makespan)
