"""What the tasks of a plan wait for, as records for the ledger, so that a run can be understood without its workflow.

Written once, before the run begins. Columns are copied as they stand in the graph, which costs a fraction of a
microsecond per task.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

from shoal.ledger.records import TasksLinked
from shoal.model.graph import Graph

_CHUNK = 100_000


def links_of(graph: Graph, tasks: Sequence[int]) -> Iterator[TasksLinked]:
    """The records for these tasks: once for what they read, once for what they come after without a file between."""
    for begin in range(0, len(tasks), _CHUNK):
        chunk = array("i", tasks[begin : begin + _CHUNK])
        files, counts = _rows(chunk, graph.input_start, graph.inputs)
        if files:
            producers = array("i", map(graph.producer.__getitem__, files))
            yield TasksLinked(_bytes(chunk), _bytes(counts), _bytes(producers))
        after, counts = _rows(chunk, graph.after_start, graph.after)
        if after:
            yield TasksLinked(_bytes(chunk), _bytes(counts), _bytes(after))


def _rows(tasks: array[int], start: array[int], values: array[int]) -> tuple[array[int], array[int]]:
    found = array("i")
    counts = array("i")
    if not values:
        return found, counts
    for task in tasks:
        begin, end = start[task], start[task + 1]
        counts.append(end - begin)
        if begin != end:
            found.extend(values[begin:end])
    return found, counts


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("i", column)
        column.byteswap()
    return column.tobytes()
