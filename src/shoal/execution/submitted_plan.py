"""The plan of a run on a cluster, as it was submitted: its results are recorded under it."""

from __future__ import annotations

import os
import pickle

import msgspec

from shoal.core import file_names
from shoal.core.graph import Graph
from shoal.core.task import Action, Call
from shoal.execution.files.trees import remove_quietly
from shoal.execution.workflow_loader import Workflow
from shoal.ledger.cluster_notes import ARRIVING, SubmissionNote, damaged
from shoal.ledger.identity import Versions
from shoal.ledger.up_to_date import Plan
from shoal.ledger.workspace import Workspace, write_durably


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
    write_durably(workspace.brought, file_names.encode(note))


def read_plan(workspace: Workspace) -> SubmittedPlan:
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
        raise damaged(workspace.brought_plan) from None
    return SubmittedPlan(Workflow(path, graph, targets, target_names, kept=kept), plan, versions)


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
