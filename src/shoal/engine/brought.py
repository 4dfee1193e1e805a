"""A run that was brought to a cluster: the note of it beside the ledger, and its plan as it was brought.

Both stand there from before the first task can run until this machine knows how every task ended. As long as the note
stands, nothing else may run or remove what these tasks make. Results are recorded under the plan: with the commands and
the versions of files at that moment. So an edit that comes later is noticed by the next run.
"""

from __future__ import annotations

import os
import pickle

import msgspec

from shoal.engine.load import Workflow
from shoal.engine.removal import remove_quietly
from shoal.engine.workspace import Workspace, write_durably
from shoal.errors import InputError
from shoal.model import texts
from shoal.model.graph import Graph
from shoal.model.task import Action, Call
from shoal.plan.decide import Plan
from shoal.plan.identity import Versions

ARRIVING = "arriving"
"""The folder in a workflow's own directory through which files come back."""
GIVE_UP = "if that cluster is gone for good, 'shoal cancel --forget' gives the run up"


class Note(msgspec.Struct):
    """What was brought where."""

    cluster: str
    """Name, or path of the access file."""
    run: str
    places: list[bytes]
    words: list[str]
    """Targets and values, as they were given."""
    managed: bool = False
    files: list[str] = []
    returned: list[str] = []
    """Where nodes share no files: those of the run, and those that come back."""
    began: float = 0.0
    tasks: list[int] = []
    """Numbers of what was brought in the plan, in the order of `places`."""
    by_content: bool = False


_decode_note = texts.Decoder(Note).decode


class BroughtPlan(msgspec.Struct):
    """A plan, with all that is needed to record its results."""

    workflow: Workflow
    plan: Plan
    versions: Versions


def is_brought(workspace: Workspace) -> bool:
    """Whether a run is on a cluster and not all of it is known here."""
    return os.path.exists(workspace.brought)


def read_note(workspace: Workspace) -> Note | None:
    """What was brought and is not wholly known yet."""
    try:
        with open(workspace.brought, "rb") as file:
            return _decode_note(file.read())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        raise _damaged(workspace.brought) from None


def refusal(workspace: Workspace) -> InputError:
    """Says that a workflow is on a cluster: it is not run a second time, and nothing of it is removed."""
    try:
        note = read_note(workspace)
    except InputError as error:
        return error
    return InputError(
        f"{os.path.basename(workspace.workflow)} is being run on the cluster {note.cluster if note else ''!r}",
        remedy=f"follow it with 'shoal attach', or end it with 'shoal cancel' and attach then; {GIVE_UP}",
    )


def write_brought(workspace: Workspace, note: Note, brought: BroughtPlan) -> None:
    """Writes the plan, then the note: whoever finds the note finds the plan, whenever we are ended."""
    graph, workflow = brought.plan.graph, brought.workflow
    columns = {name: column for name, column in vars(graph).items() if name != "actions"}
    actions = [_without_code(action) for action in graph.actions]
    versions = brought.versions
    write_durably(
        workspace.brought_plan,
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
    write_durably(workspace.brought, texts.encode(note))


def read_plan(workspace: Workspace) -> BroughtPlan:
    """The plan as it was brought."""
    try:
        with open(workspace.brought_plan, "rb") as file:
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
        raise _damaged(workspace.brought_plan) from None
    return BroughtPlan(Workflow(path, graph, targets, target_names, kept=kept), plan, versions)


def forget_note(workspace: Workspace) -> None:
    """Nothing of the workflow is on a cluster any more, so nothing is on its way back."""
    remove_quietly(os.path.join(workspace.directory, ARRIVING))
    for path in (workspace.brought, workspace.brought_plan):
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


def _damaged(path: str) -> InputError:
    return InputError(
        f"the note of the run on a cluster, {path!r}, is damaged",
        remedy="end the run with 'shoal cluster stop', then give it up with 'shoal cancel --forget'",
    )
