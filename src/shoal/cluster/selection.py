"""The part of a plan that goes to a cluster: its tasks numbered anew, with their files where nodes share none. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from shoal.agent.about import Deed
from shoal.errors import InputError
from shoal.model.graph import NO_TASK, Graph
from shoal.model.rank import ranks
from shoal.model.resources import Resources
from shoal.model.task import Profile
from shoal.model.work import EVERYWHERE, Work, bytes_read
from shoal.plan.decide import Plan
from shoal.plan.identity import Versions


class Selection(msgspec.Struct):
    """The tasks of a plan that are to be run, numbered from 0; and their files, likewise."""

    tasks: list[int]
    work: Work
    files: list[int] = []
    """Only where nodes share no files."""
    sources: list[int] = []
    """Of the selection's files those that none of its tasks makes: they are brought."""

    def deeds(self, graph: Graph, versions: Versions) -> Iterator[Deed]:
        """What each of them does."""
        names, sizes = graph.file_names, versions.sizes
        for task in self.tasks:
            action = graph.actions[task]
            command = action if isinstance(action, str) else ""
            outputs = tuple(names[file] for file in graph.outputs_of(task))
            inputs = tuple(names[file] for file in dict.fromkeys(graph.inputs_of(task))) if self.files else ()
            yield Deed(command, outputs, inputs, any(sizes[file] >= 0 for file in graph.outputs_of(task)))


def select(plan: Plan, versions: Versions, *, managed: bool) -> Selection:
    """The work that is left of a plan. Groups and such ask for nothing, and nobody runs them."""
    graph = plan.graph
    wanted = plan.wanted()
    done = set(plan.up_to_date())
    tasks = [task for task in range(len(graph)) if wanted[task] and task not in done]
    number = array("i", [NO_TASK]) * len(graph)
    for at, task in enumerate(tasks):
        number[task] = at
        _refuse_calls(graph, task)
    work = _edges(graph, tasks, number)
    if not managed:
        return Selection(tasks, work)
    return _with_files(graph, versions, tasks, number, work)


def _refuse_calls(graph: Graph, task: int) -> None:
    if graph.actions[task] is not None and not isinstance(graph.actions[task], str):
        raise InputError(
            f"{graph.names[task]!r} is a Python function, which cannot run on a cluster yet",
            file=graph.source,
            line=graph.lines[task] or None,
            remedy="give it as a command, or run without --cluster",
        )


def _edges(graph: Graph, tasks: list[int], number: array[int]) -> Work:
    child_start, children = array("i", [0]), array("i")
    waits_for = array("i", bytes(4 * len(tasks)))
    for task in tasks:
        for child in graph.successors[graph.successor_start[task] : graph.successor_start[task + 1]]:
            if number[child] >= 0:
                children.append(number[child])
                waits_for[number[child]] += 1
        child_start.append(len(children))
    nothing = len(graph.profiles)
    order = ranks(graph)
    return Work(
        name=graph.source,
        seconds=array("d", bytes(8 * len(tasks))),
        category=array("i", [nothing if graph.actions[task] is None else graph.profile[task] for task in tasks]),
        profiles=[*graph.profiles, Profile("", Resources())],
        waits_for=waits_for,
        child_start=child_start,
        children=children,
        rank=array("i", [order[task] for task in tasks]),
    )


def _with_files(graph: Graph, versions: Versions, tasks: list[int], number: array[int], work: Work) -> Selection:
    at: dict[int, int] = {}
    input_start, inputs = array("i", [0]), array("i")
    output_start, outputs = array("i", [0]), array("i")
    for task in tasks:
        for file in dict.fromkeys(graph.inputs_of(task)):
            _refuse_elsewhere(graph, task, file)
            inputs.append(at.setdefault(file, len(at)))
        for file in graph.outputs_of(task):
            _refuse_elsewhere(graph, task, file)
            outputs.append(at.setdefault(file, len(at)))
        input_start.append(len(inputs))
        output_start.append(len(outputs))
    sizes = array("q", [max(0, versions.sizes[file]) for file in at])
    sources = [new for file, new in at.items() if graph.producer[file] == NO_TASK or number[graph.producer[file]] < 0]
    whole = msgspec.structs.replace(
        work,
        input_start=input_start,
        inputs=inputs,
        output_start=output_start,
        outputs=outputs,
        file_bytes=sizes,
        file_home=array("i", [EVERYWHERE]) * len(at),
        weight=bytes_read(len(tasks), input_start, inputs, sizes),
    )
    return Selection(tasks, whole, list(at), sources)


def _refuse_elsewhere(graph: Graph, task: int, file: int) -> None:
    """A file outside of the workflow's directory has no place in the folder of a task on another node."""
    name = graph.file_names[file]
    if name.startswith("/") or ".." in name.split("/"):
        raise InputError(
            f"{name!r} lies outside of the workflow's directory and cannot be brought to other nodes",
            file=graph.source,
            line=graph.lines[task] or None,
            remedy="copy it into the directory, or run with '--files shared' where all nodes see it",
        )


def returned(graph: Graph, selection: Selection, targets: Iterable[int], kept: Iterable[str]) -> set[int]:
    """Files of the graph that come back: what the run is for, and what nothing in it reads."""
    names = set(kept)
    found = {file for file in (selection.files[at] for at in selection.work.outputs) if graph.file_names[file] in names}
    for task in targets:
        found.update(graph.outputs_of(task))
        if graph.actions[task] is None:
            found.update(graph.inputs_of(task))
    read = set(selection.work.inputs)
    found.update(selection.files[at] for at in selection.work.outputs if at not in read)
    made = {selection.files[at] for at in selection.work.outputs}
    return found & made
