"""Ranks: how much work hangs behind a task.

The rank of a task is the longest path from it to a sink, counted in tasks that run something (Pwrake's rank, computed
after the whole graph is known and without recursion). `upward_lengths` is the same with durations.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from shoal.model.graph import Graph, topological_order


def ranks(graph: Graph) -> array[int]:
    """0 for a sink; otherwise the highest successor's rank, plus one if the task itself runs something."""
    rank = array("i", bytes(4 * len(graph)))
    start, successors, actions = graph.successor_start, graph.successors, graph.actions
    for task in reversed(topological_order(graph)):
        begin, end = start[task], start[task + 1]
        if begin != end:
            highest = max([rank[child] for child in successors[begin:end]])
            rank[task] = highest + (actions[task] is not None)
    return rank


def upward_lengths(graph: Graph, durations: Sequence[float]) -> array[float]:
    """Length of the longest path from the start of each task to the end of the workflow."""
    length = array("d", durations)
    start, successors = graph.successor_start, graph.successors
    for task in reversed(topological_order(graph)):
        begin, end = start[task], start[task + 1]
        if begin != end:
            length[task] += max([length[child] for child in successors[begin:end]])
    return length
