"""The four benchmark graphs of the MATRIX paper with the parameters of its Table 3: bag, fan-out, fan-in and pipeline.

Durations are uniform up to 100 ms and outputs uniform up to 10 MB. The degree of the fans and the length of a pipeline
are 10, and there are 1,000 tasks per core (weak scaling). A task makes one file with the task's number, which its
children read; the tasks of a bag have no files. MB is 10**6 bytes here, since the paper does not define it.

Task numbers are those of the paper's own generators. Fan-out: the children of *i* are *d·i + 1* to *d·i + d*, as far as
these tasks exist. Fan-in is its mirror image: its task *i* corresponds to *n - 1 - i*. Pipeline: *i* is followed by *i
+ 1* unless *i + 1* is a multiple of *d*. Edges, ranks and weights are computed without a graph traversal: a million
tasks of any shape take a fraction of a second.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.core.task import Profile
from shoal.core.work import EVERYWHERE, Work

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]

LENGTHS = 0
"""Random stream of the task durations."""
SIZES = 1
"""Random stream of the output sizes."""

_STRETCH = 1 << 20
"""Number of values per counter of the generator; requests may begin anywhere."""
_WORD = (1 << 64) - 1


def uniform(seed: int, stream: int, count: int, first: int = 0) -> Floats:
    """Returns values `first` to `first + count` of a random stream, uniform in [0, 1)."""
    drawn = np.empty(count, dtype=np.float64)
    key = np.array([seed & _WORD, stream & _WORD], dtype=np.uint64)
    at = first
    while at < first + count:
        stretch, skipped = divmod(at, _STRETCH)
        taken = min(_STRETCH - skipped, first + count - at)
        counter = np.array([0, stretch, 0, 0], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
        drawn[at - first : at - first + taken] = generator.random(skipped + taken)[skipped:]
        at += taken
    return drawn


def floats(column: Floats) -> array[float]:
    """Converts the column to an array with Python floats as elements."""
    plain = array("d")
    plain.frombytes(column.tobytes())
    return plain


def numbers(column: Whole) -> array[int]:
    """Converts the column to an array of 32-bit integers: for tasks, files and counts."""
    plain = array("i")
    plain.frombytes(column.astype(np.int32).tobytes())
    return plain


def sizes(column: Whole) -> array[int]:
    """Converts the column to an array of 64-bit integers: for bytes."""
    plain = array("q")
    plain.frombytes(column.astype(np.int64).tobytes())
    return plain


def sums(start: Whole, values: Whole) -> Whole:
    """The sum of each row `values[start[i]:start[i + 1]]`; 0 for an empty row."""
    running = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)))
    return running[start[1:]] - running[start[:-1]]


LONGEST = 0.1
"""Maximum duration in seconds."""
LARGEST = 10_000_000
"""Maximum output in bytes."""
DEGREE = 10


def bag(seed: int, tasks: int, longest: float = LONGEST) -> Work:
    """Independent tasks without files."""
    return Work(
        name="bag",
        seconds=floats(uniform(seed, LENGTHS, tasks) * longest),
        category=bytes(tasks),
        profiles=[Profile("bag")],
        waits_for=array("i", bytes(4 * tasks)),
        child_start=array("i", bytes(4 * (tasks + 1))),
        children=array("i"),
        rank=array("i", bytes(4 * tasks)),
    )


def fan_out(seed: int, tasks: int, degree: int = DEGREE, longest: float = LONGEST, largest: int = LARGEST) -> Work:
    """A tree from one task to many: `degree` tasks read the output of each task."""
    edges = tasks - 1
    number = np.arange(tasks + 1, dtype=np.int64)
    return _work(
        "fan-out",
        (seed, longest, largest),
        child_start=np.minimum(number * degree, edges),
        children=number[1:tasks],
        input_start=np.maximum(number - 1, 0),
        inputs=number[:edges] // degree,
        rank=_tree_height(tasks, degree),
    )


def fan_in(seed: int, tasks: int, degree: int = DEGREE, longest: float = LONGEST, largest: int = LARGEST) -> Work:
    """The mirrored tree, from many tasks to one: each task reads the outputs of `degree` others."""
    edges = tasks - 1
    number = np.arange(tasks + 1, dtype=np.int64)
    return _work(
        "fan-in",
        (seed, longest, largest),
        child_start=np.minimum(number, edges),
        children=edges - (number[:edges][::-1] // degree),
        input_start=edges - np.minimum((tasks - number) * degree, edges),
        inputs=number[:edges],
        rank=_tree_depth(tasks, degree)[::-1],
    )


def pipeline(seed: int, tasks: int, degree: int = DEGREE, longest: float = LONGEST, largest: int = LARGEST) -> Work:
    """Parallel chains of `degree` tasks; the last chain may be shorter."""
    number = np.arange(tasks, dtype=np.int64)
    behind = np.minimum(number - number % degree + degree, tasks) - 1 - number
    followed = behind > 0
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(followed)))
    return _work(
        "pipeline",
        (seed, longest, largest),
        child_start=before,
        children=number[followed] + 1,
        input_start=np.concatenate((np.zeros(1, dtype=np.int64), before[:-1])),
        inputs=number[followed],
        rank=behind,
    )


def _work(
    name: str,
    drawn: tuple[int, float, int],
    *,
    child_start: Whole,
    children: Whole,
    input_start: Whole,
    inputs: Whole,
    rank: Whole,
) -> Work:
    """Builds the work from its columns, with random durations and sizes."""
    seed, longest, largest = drawn
    tasks = len(rank)
    file_bytes = (uniform(seed, SIZES, tasks) * (largest + 1)).astype(np.int64)
    return Work(
        name=name,
        seconds=floats(uniform(seed, LENGTHS, tasks) * longest),
        category=bytes(tasks),
        profiles=[Profile(name)],
        waits_for=numbers(np.diff(input_start)),
        child_start=numbers(child_start),
        children=numbers(children),
        input_start=numbers(input_start),
        inputs=numbers(inputs),
        output_start=array("i", range(tasks + 1)),
        outputs=array("i", range(tasks)),
        file_bytes=sizes(file_bytes),
        file_home=array("i", [EVERYWHERE]) * tasks,
        rank=numbers(rank),
        weight=sizes(sums(input_start, file_bytes[inputs])),
    )


def _tree_depth(tasks: int, degree: int) -> Whole:
    """Number of edges between each task of the tree and its root; levels are contiguous."""
    depth = np.zeros(tasks, dtype=np.int64)
    level, begin, width = 0, 0, 1
    while begin < tasks:
        depth[begin : begin + width] = level
        level, begin, width = level + 1, begin + width, width * degree
    return depth


def _tree_height(tasks: int, degree: int) -> Whole:
    """Number of edges on the longest path below each task; the leftmost path is one of the longest."""
    height = np.zeros(tasks, dtype=np.int64)
    with_children = tasks
    while with_children > 1:
        # Tasks whose first child, d·i + 1, has a child itself in the previous iteration.
        with_children = (with_children - 2) // degree + 1
        height[:with_children] += 1
    return height
