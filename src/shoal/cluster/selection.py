"""Selects the tasks of a plan to submit to a cluster, numbers them and their files anew, and stores the plan. Pure.

Pure except for the end of the module, which writes and reads the submitted plan beside the ledger.
"""

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
    """Names of the files of Python calls that are not files of the workflow, relative to its directory."""

    def call_of(self, task: int) -> str:
        """Returns the file that describes a call."""

    def value_of(self, task: int) -> str:
        """Returns the file with the result of a call."""


class Selection(msgspec.Struct):
    """The tasks of a plan that are to be run, numbered from 0, and their files, likewise."""

    tasks: list[int]
    work: Work
    files: list[str] = []
    """Only for nodes without a shared file system."""
    sources: list[int] = []
    """Numbers of the files that no task of the selection makes: the client uploads them."""

    def task_specs(self, graph: Graph, calls: CallFiles, before: Callable[[int], bytes]) -> Iterator[TaskSpec]:
        """Yields the specification of each task; `before` returns what remains where a task makes directories."""
        for number, task in enumerate(self.tasks):
            action = graph.actions[task]
            outputs = tuple(made_by(graph, task, calls))
            inputs = tuple(self.files[file] for file in self.work.inputs_of(number)) if self.files else ()
            if isinstance(action, Call):
                yield TaskSpec(calls.call_of(task), outputs, inputs, calls.value_of(task), before(task))
            else:
                yield TaskSpec(action or "", outputs, inputs, before=before(task))


def made_by(graph: Graph, task: int, calls: CallFiles) -> list[str]:
    """Names of the files that a task makes; of a call also its result."""
    names = graph.output_names(task)
    return [*names, calls.value_of(task)] if isinstance(graph.actions[task], Call) else names


def read_by(graph: Graph, task: int, grouped: Sequence[int], calls: CallFiles) -> list[str]:
    """Names of the files that a task reads, including `grouped` files; of a call also its description and the results
    of its predecessors."""
    found = [graph.file_names[file] for file in (*graph.inputs_of(task), *grouped)]
    if isinstance(graph.actions[task], Call):
        found += [calls.call_of(task), *values_read(graph, task, calls).values()]
    return list(dict.fromkeys(found))


def values_read(graph: Graph, task: int, calls: CallFiles) -> dict[str, str]:
    """Returns, by argument of a call that has a value, the file of that value."""
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
    """Selects the remaining work of a plan. Groups need no resources and are not run."""
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
    """By task, the files that it reads only because it depends on groups."""
    found: dict[int, list[int]] = {}
    of_group: dict[int, list[int]] = {}
    for task in tasks:
        if graph.actions[task] is None:
            continue
        files: dict[int, None] = {}
        for other in graph.after_of(task):
            if graph.actions[other] is None:
                if other not in of_group:  # many tasks may depend on the same large group
                    of_group[other] = list(files_read(graph, other))
                files.update(dict.fromkeys(of_group[other]))
        for file in graph.inputs_of(task):
            files.pop(file, None)
        if files:
            found[task] = list(files)
    return found


def _readers(graph: Graph, grouped: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """By maker, the tasks that read its files because they depend on groups, once per file.

    A group is complete once its files exist. If they are lost with a node later, readers must wait for them as they
    would for files that they name themselves.
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
    """Rejects a file outside the workflow's directory: it has no place in a task's directory on another node."""
    if name.startswith("/") or ".." in name.split("/"):
        raise InputError(
            f"{name!r} is outside the workflow's directory and cannot be sent to other nodes",
            file=graph.source,
            line=graph.lines[task] or None,
            remedy="copy it into the directory, or use '--files shared' if all nodes see it",
        )


def returned(
    graph: Graph, selection: Selection, targets: Iterable[int], kept: Iterable[str], calls: CallFiles
) -> set[str]:
    """Returns the files that are downloaded: targets, files that no task reads, and all results of calls."""
    found = set(kept)
    found.update(graph.file_names[file] for file in files_for(graph, targets))
    read = set(selection.work.inputs)
    found.update(selection.files[at] for at in selection.work.outputs if at not in read)
    found.update(calls.value_of(task) for task in selection.tasks if isinstance(graph.actions[task], Call))
    return found & {selection.files[at] for at in selection.work.outputs}


class SubmittedPlan(msgspec.Struct):
    """A plan with everything that is needed to record its results."""

    workflow: Workflow
    plan: Plan
    versions: Versions


def write_submitted(workspace: Workspace, note: SubmissionNote, brought: SubmittedPlan) -> None:
    """Writes the plan, then the note. In this order, a note always has a plan, even if the process is killed in
    between."""
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
    """Reads the submitted plan."""
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
    """Removes the note: nothing of the workflow is on a cluster any more."""
    remove_quietly(os.path.join(workspace.directory, ARRIVING))
    for path in (workspace.submission_note, workspace.submitted_plan):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def _without_code(action: Action) -> Action:
    """Keeps what the identity of a task needs. Functions cannot always be pickled, and are not called again."""
    if not isinstance(action, Call):
        return action
    return msgspec.structs.replace(action, function=_is_not_here, arguments=(), keywords=())


def _is_not_here() -> None:
    """Replaces the function of a call that was submitted to a cluster."""
