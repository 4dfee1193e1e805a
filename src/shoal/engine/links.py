"""What the tasks of a plan wait for and ask for, as records for the ledger, so that a run can be understood without its
workflow.

Written once, before the run begins. Columns are copied as they stand in the graph, which costs a fraction of a
microsecond per task.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

from shoal.ledger.records import NONE_ASKED, CategoriesDeclared, CoresAsked, OutputsNamed, TasksLinked
from shoal.model.graph import Graph
from shoal.model.resources import is_label
from shoal.plan.identity import place_of

_CHUNK = 100_000
_MOST = (1 << 31) - 1


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


def names_of_outputs(graph: Graph, tasks: Sequence[int]) -> OutputsNamed | None:
    """The record for those of these tasks that do not go by the name of their one output; None if there are none."""
    start, outputs, files, names = graph.output_start, graph.outputs, graph.file_names, graph.names
    others = [
        task
        for task in tasks
        if start[task] != start[task + 1]
        and (start[task] + 1 != start[task + 1] or files[outputs[start[task]]] != names[task])
    ]
    if not others:
        return None
    return OutputsNamed([place_of(graph, task) for task in others], [graph.output_names(task) for task in others])


def categories_of(graph: Graph) -> CategoriesDeclared:
    """The largest request of each category that has anything to run; groups have not."""
    declared: dict[str, dict[str, int]] = {}
    used = {number for number, action in zip(graph.profile, graph.actions, strict=True) if action is not None}
    for number in sorted(used):
        profile = graph.profiles[number]
        amounts = declared.setdefault(profile.category, {})
        for name, amount in (*profile.resources.without("cores").amounts, ("cores", profile.resources.get("cores"))):
            if profile.declares(name) and not is_label(name):
                amounts[name] = max(amount, amounts.get(name, 0))
    return CategoriesDeclared(list(declared), [sorted(amounts.items()) for amounts in declared.values()])


def cores_of(graph: Graph, tasks: Sequence[int], categories: CategoriesDeclared) -> Iterator[CoresAsked]:
    """The records for those of these tasks that ask for other cores than their category; mostly there is none. All of
    these tasks run something."""
    usual = {
        name: dict(amounts).get("cores", NONE_ASKED)
        for name, amounts in zip(categories.names, categories.resources, strict=True)
    }
    other: dict[int, int] = {}
    for number, profile in enumerate(graph.profiles):
        asked = profile.resources.get("cores") if profile.declares("cores") else NONE_ASKED
        if asked != usual.get(profile.category, asked):
            other[number] = min(asked, _MOST)
    if not other:
        return
    apart = [task for task in tasks if graph.profile[task] in other]
    for begin in range(0, len(apart), _CHUNK):
        chunk = array("i", apart[begin : begin + _CHUNK])
        yield CoresAsked(_bytes(chunk), _bytes(array("i", [other[graph.profile[task]] for task in chunk])))


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
