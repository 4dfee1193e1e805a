"""The part of a plan that goes to a cluster: its tasks numbered anew, with their files where nodes share none. Pure."""

from __future__ import annotations

import os
import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from shoal.cluster.agent.run_description import TaskSpec
from shoal.core import file_names
from shoal.core.graph import NO_TASK, Graph, files_for, files_read, ranks
from shoal.core.resources import Resources
from shoal.core.task import Action, Call, Profile
from shoal.core.work import EVERYWHERE, Work, bytes_read
from shoal.errors import InputError
from shoal.execution.files.trees import remove_quietly
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.cluster_notes import ARRIVING, SubmissionNote, damaged
from shoal.ledger.identity import Versions
from shoal.ledger.up_to_date import Plan
from shoal.ledger.workspace import Workspace, write_durably


class CallFiles(Protocol):
    """Where the files of Python calls are that are no files of the workflow, by names relative to its directory."""

    def call_of(self, task: int) -> str:
        """What tells everything about a call."""

    def value_of(self, task: int) -> str:
        """The result of a call."""


class Selection(msgspec.Struct):
    """The tasks of a plan that are to be run, numbered from 0; and their files, likewise."""

    tasks: list[int]
    work: Work
    files: list[str] = []
    """Only where nodes share no files."""
    sources: list[int] = []
    """Of the selection's files those that none of its tasks makes: they are brought."""

    def deeds(self, graph: Graph, calls: CallFiles, before: Callable[[int], bytes]) -> Iterator[TaskSpec]:
        """What each of them does; `before` says what stood where a task makes directories."""
        for number, task in enumerate(self.tasks):
            action = graph.actions[task]
            outputs = tuple(made_by(graph, task, calls))
            inputs = tuple(self.files[file] for file in self.work.inputs_of(number)) if self.files else ()
            if isinstance(action, Call):
                yield TaskSpec(calls.call_of(task), outputs, inputs, calls.value_of(task), before(task))
            else:
                yield TaskSpec(action or "", outputs, inputs, before=before(task))


def made_by(graph: Graph, task: int, calls: CallFiles) -> list[str]:
    """Names of what a task makes; of a call also its result."""
    names = graph.output_names(task)
    return [*names, calls.value_of(task)] if isinstance(graph.actions[task], Call) else names


def read_by(graph: Graph, task: int, grouped: Sequence[int], calls: CallFiles) -> list[str]:
    """Names of what a task reads, `grouped` files among that; of a call also what tells about it, and the results of
    those that it comes after."""
    found = [graph.file_names[file] for file in (*graph.inputs_of(task), *grouped)]
    if isinstance(graph.actions[task], Call):
        found += [calls.call_of(task), *values_read(graph, task, calls).values()]
    return list(dict.fromkeys(found))


def values_read(graph: Graph, task: int, calls: CallFiles) -> dict[str, str]:
    """By need of a call that has a value: where that is."""
    found: dict[str, str] = {}
    for file in graph.inputs_of(task):
        maker = graph.producer[file]
        if maker != NO_TASK and isinstance(graph.actions[maker], Call):
            found[graph.file_names[file]] = calls.value_of(maker)
    for other in graph.after_of(task):
        if isinstance(graph.actions[other], Call):
            found[graph.names[other]] = calls.value_of(other)
    return found


def select(plan: Plan, versions: Versions, calls: CallFiles, *, managed: bool) -> Selection:
    """The work that is left of a plan. Groups and such ask for nothing, and nobody runs them."""
    graph = plan.graph
    wanted = plan.wanted()
    done = set(plan.up_to_date())
    tasks = [task for task in range(len(graph)) if wanted[task] and task not in done]
    number = array("i", [NO_TASK]) * len(graph)
    for at, task in enumerate(tasks):
        number[task] = at
    if not managed:
        return Selection(tasks, _edges(graph, tasks, number, {}))
    grouped = _grouped(graph, tasks)
    work = _edges(graph, tasks, number, _readers(graph, grouped))
    return _with_files(graph, versions, tasks, work, grouped, calls)


def _grouped(graph: Graph, tasks: list[int]) -> dict[int, list[int]]:
    """By task the files that it reads because it comes after groups, and not otherwise."""
    found: dict[int, list[int]] = {}
    of_group: dict[int, list[int]] = {}
    for task in tasks:
        if graph.actions[task] is None:
            continue
        files: dict[int, None] = {}
        for other in graph.after_of(task):
            if graph.actions[other] is None:
                if other not in of_group:  # many tasks may come after the same large group
                    of_group[other] = list(files_read(graph, other))
                files.update(dict.fromkeys(of_group[other]))
        for file in graph.inputs_of(task):
            files.pop(file, None)
        if files:
            found[task] = list(files)
    return found


def _readers(graph: Graph, grouped: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """By maker the tasks that read its files because they come after groups, once per file.

    A group is over once its files were made. If they are lost with a node after that, their readers must wait for
    them, as they would for files that they need themselves.
    """
    found: dict[int, list[int]] = {}
    for task, files in grouped.items():
        for file in files:
            if graph.producer[file] != NO_TASK:
                found.setdefault(graph.producer[file], []).append(task)
    return found


def _edges(graph: Graph, tasks: list[int], number: array[int], readers: Mapping[int, list[int]]) -> Work:
    child_start, children = array("i", [0]), array("i")
    waits_for = array("i", bytes(4 * len(tasks)))
    for task in tasks:
        for child in (*graph.successors_of(task), *readers.get(task, ())):
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


def _with_files(
    graph: Graph,
    versions: Versions,
    tasks: list[int],
    work: Work,
    grouped: Mapping[int, list[int]],
    calls: CallFiles,
) -> Selection:
    at: dict[str, int] = {}
    input_start, inputs = array("i", [0]), array("i")
    output_start, outputs = array("i", [0]), array("i")
    for task in tasks:
        for name in read_by(graph, task, grouped.get(task, ()), calls):
            _refuse_elsewhere(graph, task, name)
            inputs.append(at.setdefault(name, len(at)))
        for name in made_by(graph, task, calls):
            _refuse_elsewhere(graph, task, name)
            outputs.append(at.setdefault(name, len(at)))
        input_start.append(len(inputs))
        output_start.append(len(outputs))
    known = {name: max(0, versions.sizes[file]) for file, name in enumerate(graph.file_names) if name in at}
    sizes = array("q", [known.get(name, 0) for name in at])
    made = set(outputs)
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
    return Selection(tasks, whole, list(at), [number for number in at.values() if number not in made])


def _refuse_elsewhere(graph: Graph, task: int, name: str) -> None:
    """A file outside of the workflow's directory has no place in the folder of a task on another node."""
    if name.startswith("/") or ".." in name.split("/"):
        raise InputError(
            f"{name!r} lies outside of the workflow's directory and cannot be brought to other nodes",
            file=graph.source,
            line=graph.lines[task] or None,
            remedy="copy it into the directory, or run with '--files shared' where all nodes see it",
        )


def returned(
    graph: Graph, selection: Selection, targets: Iterable[int], kept: Iterable[str], calls: CallFiles
) -> set[str]:
    """Files that come back: what the run is for, what nothing in it reads, and all results of calls."""
    found = set(kept)
    found.update(graph.file_names[file] for file in files_for(graph, targets))
    read = set(selection.work.inputs)
    found.update(selection.files[at] for at in selection.work.outputs if at not in read)
    found.update(calls.value_of(task) for task in selection.tasks if isinstance(graph.actions[task], Call))
    return found & {selection.files[at] for at in selection.work.outputs}


class SubmittedPlan(msgspec.Struct):
    """A plan, with all that is needed to record its results."""

    workflow: Workflow
    plan: Plan
    versions: Versions


def write_brought(workspace: Workspace, note: SubmissionNote, brought: SubmittedPlan) -> None:
    """Writes the plan, then the note: whoever finds the note finds the plan, whenever we are ended."""
    graph, workflow = brought.plan.graph, brought.workflow
    columns = {name: column for name, column in vars(graph).items() if name != "actions"}
    actions = [_without_code(action) for action in graph.actions]
    versions = brought.versions
    write_durably(
        workspace.submitted_plan,
        pickle.dumps(
            {
                "graph": columns,
                "actions": actions,
                "reasons": brought.plan.reasons,
                "detail": brought.plan.detail,
                "inherited": brought.plan.inherited,
                "versions": (versions.check, versions.sizes, versions.times, versions.folders, versions.done),
                "workflow": (workflow.path, workflow.targets, workflow.target_names, workflow.kept),
            },
            pickle.HIGHEST_PROTOCOL,
        ),
    )
    write_durably(workspace.submission_note, file_names.encode(note))


def read_plan(workspace: Workspace) -> SubmittedPlan:
    """The plan as it was brought."""
    try:
        with open(workspace.submitted_plan, "rb") as file:
            told = pickle.load(file)
        path, targets, target_names, kept = told["workflow"]
        graph = Graph(path)
        vars(graph).update(told["graph"])
        graph.actions = told["actions"]
        plan = Plan(graph)
        plan.reasons, plan.detail, plan.inherited = told["reasons"], told["detail"], told["inherited"]
        versions = Versions(graph, told["versions"][0])
        versions.sizes, versions.times, versions.folders, versions.done = told["versions"][1:]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, pickle.PickleError):
        raise damaged(workspace.submitted_plan) from None
    return SubmittedPlan(Workflow(path, graph, targets, target_names, kept=kept), plan, versions)


def forget_note(workspace: Workspace) -> None:
    """Nothing of the workflow is on a cluster any more, so nothing is on its way back."""
    remove_quietly(os.path.join(workspace.directory, ARRIVING))
    for path in (workspace.submission_note, workspace.submitted_plan):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _without_code(action: Action) -> Action:
    """What the identity of a task needs: functions themselves cannot always be written, and are not called again."""
    if not isinstance(action, Call):
        return action
    return msgspec.structs.replace(action, function=_is_not_here, arguments=(), keywords=())


def _is_not_here() -> None:
    """Stands for the function of a call that was brought to a cluster."""
