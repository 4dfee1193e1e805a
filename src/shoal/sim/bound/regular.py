"""Walks through four regular graphs of any size in pieces, holding only what later tasks still need.

The graphs are those of `sim.workloads.matrix`, with the same numbers for the same tasks. What happens at a task and
between tasks is a `Rule`; lengths and sizes come from a `Source` that can be asked for any stretch, more than once.

A fan-out keeps one number per task that has children, a fan-in one per family, so 131 million tasks need a few hundred
megabytes. Fan-in is walked by the numbers of its mirror image, from the leaves to the root: there the parents of one
task lie side by side. Levels of the mirrored tree are not depths: where the deepest level is not full, tasks without
parents are found one level higher, and so on up to the root. Those on the longest paths come first in each level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from shoal.sim.bound.levels import Floats

CHUNK = 4_000_000


class Source(Protocol):
    """Lengths and sizes of the outputs of tasks, by number."""

    def seconds(self, first: int, count: int) -> Floats: ...

    def sizes(self, first: int, count: int) -> Floats: ...


class Rule(Protocol):
    """What is computed; ends may be earliest ends, or what the paper takes for them."""

    needs_sizes: bool

    def end(self, ready: Floats, seconds: Floats, depth: int, positions: range) -> Floats:
        """When tasks of one depth end that are ready at these times; `positions` are theirs in that depth's order."""
        ...

    def join(self, ends: list[Floats], sizes: list[Floats]) -> Floats:
        """When tasks are ready: `ends[0]` are their first parents, and so on; the last task may have fewer."""
        ...


class Walk:
    """One walk over one graph."""

    def __init__(self, tasks: int, degree: int, source: Source, rule: Rule, chunk: int = CHUNK) -> None:
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


def bag(walk: Walk) -> None:
    """Independent tasks."""
    for first, count in walk.pieces(0, walk.tasks):
        walk.rule.end(np.zeros(count), walk.source.seconds(first, count), 0, range(first, first + count))


def pipeline(walk: Walk) -> None:
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


def fan_out(walk: Walk) -> None:
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


def fan_in(walk: Walk) -> None:
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


SHAPES: dict[str, Callable[[Walk], None]] = {
    "bag": bag,
    "pipeline": pipeline,
    "fan-out": fan_out,
    "fan-in": fan_in,
}
