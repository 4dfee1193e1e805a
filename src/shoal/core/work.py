"""A workflow as columns (tasks, edges, files, durations), without names and commands: input of simulators and bounds.

Tasks and files are dense integers. A `Work` comes from a graph with known durations and file sizes (`from_graph`), or
from a workload generator. Task *t* reads `inputs[input_start[t]:input_start[t + 1]]` and makes
`outputs[output_start[t]:output_start[t + 1]]`; `children` has one entry per edge, as in the graph.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from shoal.core.graph import NO_TASK, Graph, ranks
from shoal.core.resources import Resources
from shoal.core.task import Profile

EVERYWHERE = -1
"""Home of a source file on the shared file system."""


class Work(msgspec.Struct):
    """Tasks, edges and files of one workflow; read-only once made."""

    name: str
    seconds: Sequence[float]
    """Computing time of each task on one core of a node with speed 1, without transfers."""
    category: Sequence[int]
    profiles: list[Profile]
    """One per category number: name, resource request, retries."""
    waits_for: Sequence[int]
    """Number of edges into each task."""
    child_start: Sequence[int]
    children: Sequence[int]
    input_start: Sequence[int] = ()
    """Empty: no task reads a file. The same holds for the outputs."""
    inputs: Sequence[int] = ()
    output_start: Sequence[int] = ()
    outputs: Sequence[int] = ()
    file_bytes: Sequence[int] = ()
    file_home: Sequence[int] = ()
    """For source files: the number of the node that has the file (modulo the number of nodes), or `EVERYWHERE`."""
    rank: Sequence[int] = ()
    weight: Sequence[int] = ()
    """Bytes that each task reads; empty if no task reads any."""
    upward_length: Sequence[float] = ()
    """Seconds from the start of each task to the end of the workflow; empty if not computed."""

    def __len__(self) -> int:
        return len(self.seconds)

    def inputs_of(self, task: int) -> Sequence[int]:
        return self.inputs[self.input_start[task] : self.input_start[task + 1]] if self.input_start else ()

    def outputs_of(self, task: int) -> Sequence[int]:
        return self.outputs[self.output_start[task] : self.output_start[task + 1]] if self.output_start else ()

    def children_of(self, task: int) -> Sequence[int]:
        return self.children[self.child_start[task] : self.child_start[task + 1]]


def bytes_read(
    tasks: int, input_start: Sequence[int], inputs: Sequence[int], file_bytes: Sequence[int]
) -> Sequence[int]:
    """Computes the column `weight`."""
    if not input_start:
        return ()
    return array("q", (sum(file_bytes[at] for at in inputs[input_start[t] : input_start[t + 1]]) for t in range(tasks)))


def ranks_of(waits_for: Sequence[int], child_start: Sequence[int], children: Sequence[int]) -> array[int]:
    """Computes the column `rank`: number of tasks on the longest path behind each task. Tasks may have any order."""
    order = _parents_first(waits_for, child_start, children)
    rank = array("i", bytes(4 * len(waits_for)))
    for task in reversed(order):
        behind = children[child_start[task] : child_start[task + 1]]
        if len(behind):
            rank[task] = 1 + max(rank[child] for child in behind)
    return rank


def upward_lengths(work: Work) -> array[float]:
    """Computes the column `upward_length`: computing time from the start of each task to the end of the workflow."""
    length = array("d", work.seconds)
    for task in reversed(_parents_first(work.waits_for, work.child_start, work.children)):
        length[task] += max((length[child] for child in work.children_of(task)), default=0.0)
    return length


def _parents_first(waits_for: Sequence[int], child_start: Sequence[int], children: Sequence[int]) -> list[int]:
    """All tasks in topological order."""
    order = [task for task, count in enumerate(waits_for) if not count]
    left = array("i", waits_for)
    for task in order:  # the list grows during the loop
        for child in children[child_start[task] : child_start[task + 1]]:
            left[child] -= 1
            if not left[child]:
                order.append(child)
    return order


def assemble(
    name: str,
    seconds: Sequence[float],
    reads: Iterable[Sequence[int]],
    makes: Iterable[Sequence[int]],
    file_bytes: Sequence[int],
    *,
    file_home: Sequence[int] = (),
    category: Sequence[int] = (),
    profiles: Sequence[Profile] = (),
) -> Work:
    """Builds a `Work` from the files that each task reads and makes; edges follow from them. For small workloads."""
    tasks = len(seconds)
    input_start, inputs = _rows(reads)
    output_start, outputs = _rows(makes)
    producer = array("i", [NO_TASK]) * len(file_bytes)
    for task in range(tasks):
        for file in outputs[output_start[task] : output_start[task + 1]]:
            producer[file] = task
    waits_for = array("i", bytes(4 * tasks))
    count = array("i", bytes(4 * (tasks + 1)))
    for task in range(tasks):
        for file in inputs[input_start[task] : input_start[task + 1]]:
            if producer[file] != NO_TASK:
                waits_for[task] += 1
                count[producer[file] + 1] += 1
    child_start = array("i", accumulate(count))
    children = array("i", bytes(4 * child_start[-1]))
    fill = array("i", child_start)
    for task in range(tasks):
        for file in inputs[input_start[task] : input_start[task + 1]]:
            if (made_by := producer[file]) != NO_TASK:
                children[fill[made_by]] = task
                fill[made_by] += 1
    return Work(
        name=name,
        seconds=seconds,
        category=category or bytes(tasks),
        profiles=list(profiles) or [Profile("task", Resources.parse({"cores": 1}))],
        waits_for=waits_for,
        child_start=child_start,
        children=children,
        input_start=input_start,
        inputs=inputs,
        output_start=output_start,
        outputs=outputs,
        file_bytes=file_bytes,
        file_home=file_home or array("i", [EVERYWHERE]) * len(file_bytes),
        rank=ranks_of(waits_for, child_start, children),
        weight=bytes_read(tasks, input_start, inputs, file_bytes),
    )


def _rows(rows: Iterable[Sequence[int]]) -> tuple[array[int], array[int]]:
    start, items = array("i", [0]), array("i")
    for row in rows:
        items.extend(row)
        start.append(len(items))
    return start, items


def from_graph(graph: Graph, seconds: Sequence[float], file_bytes: Sequence[int]) -> Work:
    """Builds a `Work` from a graph, durations and file sizes; a task without an action takes no time and no core."""
    nothing = len(graph.profiles)
    category = array("i", graph.profile)
    for task, action in enumerate(graph.actions):
        if action is None:
            category[task] = nothing
    return Work(
        name=graph.source,
        seconds=array("d", (0.0 if action is None else s for action, s in zip(graph.actions, seconds, strict=True))),
        category=category,
        profiles=[*graph.profiles, Profile("", Resources())],
        waits_for=graph.pending,
        child_start=graph.successor_start,
        children=graph.successors,
        input_start=graph.input_start,
        inputs=graph.inputs,
        output_start=graph.output_start,
        outputs=graph.outputs,
        file_bytes=file_bytes,
        file_home=array("i", [EVERYWHERE]) * len(graph.file_names),
        rank=ranks(graph),
        weight=bytes_read(len(graph), graph.input_start, graph.inputs, file_bytes),
    )
