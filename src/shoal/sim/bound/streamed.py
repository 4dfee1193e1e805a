"""Both bounds for the four regular graphs at any size, with the lengths of `sim.workloads.matrix` or with given ones.

They are the same numbers as `lower.lower_bound` and `paper.paper_bound` give for the same tasks.
"""

from __future__ import annotations

import numpy as np

from shoal.sim.bound.levels import Floats
from shoal.sim.bound.lower import Tally
from shoal.sim.bound.paper import DEFAULT_READING, Network, PaperBound, Waits
from shoal.sim.bound.regular import CHUNK, SHAPES, Source, Walk
from shoal.sim.workloads.draws import LENGTHS, SIZES, uniform
from shoal.sim.workloads.matrix import LARGEST, LONGEST


class Drawn:
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


class Given:
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
        self.tally = Tally()

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


def streamed_tally(shape: str, tasks: int, degree: int, source: Source, chunk: int = CHUNK) -> Tally:
    """What `Tally.bound` needs; also what the paper's programme needs to know of the whole."""
    rule = _Earliest()
    SHAPES[shape](Walk(tasks, degree, source, rule, chunk))
    return rule.tally


def streamed_paper_bound(
    shape: str,
    degree: int,
    source: Source,
    known: Tally,
    cores: int,
    reading: str = DEFAULT_READING,
    network: Network | None = None,
    chunk: int = CHUNK,
) -> PaperBound:
    """The paper's programme for the tasks whose tally is given."""
    tasks = sum(known.tasks)
    rule = _Paper(Waits(reading, cores, known.tasks, known.work), network or Network())
    SHAPES[shape](Walk(tasks, degree, source, rule, chunk))
    return PaperBound(reading, tasks, rule.makespan)
