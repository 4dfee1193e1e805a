"""`shoal cancel`: stops a run, or some of its tasks, from another terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.ui.cli.parser import CommandParser, add_workflow, split_words

if TYPE_CHECKING:
    from shoal.ledger.workspace import Workspace

SUMMARY = """Asks the process that runs a workflow to stop: running tasks are killed, finished tasks are kept, and the
next 'shoal run' continues. With TASKs, only these and the tasks that depend on them are cancelled; the run goes on."""
USAGE = "[FILE] [TASK...] [OPTION...]"
EXAMPLE = "shoal cancel flow.py big/7.dat big/8.dat"
MAKES_THE_REST = "'shoal run' makes what was not recorded"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "the workflow file, then tasks: names, files they make, or numbers")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="give up a run on a cluster that is lost for good; results that were not fetched are lost",
    )


def execute(arguments: argparse.Namespace) -> int:
    import os

    from shoal.core.quantities import count
    from shoal.execution.requests import ask_to_cancel
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import choose_workflow

    named, tasks = split_words(arguments.words, arguments.workflow)
    path = os.path.abspath(choose_workflow(named))
    workspace = Workspace(path)
    if os.path.exists(workspace.net_note) and workspace.holder() is None:
        return _end_net(workspace, tasks, forget=arguments.forget)
    if arguments.forget:
        return _forget(workspace, tasks)
    if workspace.holder() is None and os.path.exists(workspace.submission_note):
        return _cancel_on_cluster(workspace, path, tasks)
    if tasks and workspace.holder() is not None:
        tasks = names_in_run(workspace, path, tasks)
    pid = ask_to_cancel(workspace, tasks)
    what = f"cancel {count(len(tasks), 'task')}" if tasks else "stop"
    print(f"asked process {pid} to {what}; 'shoal status' shows the progress")
    return 0


def _cancel_on_cluster(workspace: Workspace, path: str, tasks: list[str]) -> int:
    """Asks the cluster itself, because no local process follows the run."""
    from shoal.core.quantities import count
    from shoal.ledger.identity import place_of
    from shoal.ui.cli.parser import need_cluster_libraries
    from shoal.ui.cli.why import find_task

    need_cluster_libraries()
    from shoal.cluster.session import cancel_submitted
    from shoal.ledger.cluster_notes import read_note

    note = read_note(workspace)
    places = []
    for name in tasks:
        view, task = find_task(name, path, note.words if note else [], by_content=False)
        places.append(place_of(view.workflow.graph, task))
    cluster, is_there = cancel_submitted(workspace, places)
    if not is_there:
        print(f"the cluster {cluster} does not have this run, so it is given up; {MAKES_THE_REST}")
        return 0
    what = f"cancel {count(len(tasks), 'task')}" if tasks else "stop it"
    print(f"asked the cluster {cluster} to {what}; 'shoal attach' shows the progress")
    return 0


def _end_net(workspace: Workspace, tasks: list[str], *, forget: bool) -> int:
    """Ends a net whose client is gone, because nodes may still run its tasks."""
    from shoal.cluster.call_client import end_by_command
    from shoal.errors import InputError

    if tasks:
        raise InputError(
            "the net has no client any more, and its tasks can only be stopped together", remedy="leave out the tasks"
        )
    cluster = end_by_command(workspace, forget=forget)
    what = f"its tasks on the cluster {cluster} are stopped" if cluster else "the run on the cluster is given up"
    print(f"{what}; 'shoal run' continues the net")
    return 0


def _forget(workspace: Workspace, tasks: list[str]) -> int:
    from shoal.errors import InputError
    from shoal.ui.cli.parser import need_cluster_libraries

    if tasks:
        raise InputError("--forget gives up the whole run", remedy="leave out the tasks")
    need_cluster_libraries()
    from shoal.cluster.session import give_up_submitted

    cluster = give_up_submitted(workspace)
    print(f"the run on the cluster {cluster} is given up; {MAKES_THE_REST}")
    return 0


def names_in_run(workspace: Workspace, path: str, tasks: list[str]) -> list[str]:
    """The names that the run uses for these tasks. Misspelt names are rejected here."""
    from shoal.ledger.status import Follower
    from shoal.ui.cli.why import find_task

    follower = Follower(workspace)
    follower.refresh()
    state = follower.state
    known = dict.fromkeys(state.names.values())
    words = state.start.targets if state.start else []
    found = []
    for name in tasks:
        if name not in known:
            view, task = find_task(name, path, words, by_content=False)
            name = view.workflow.graph.names[task]
        found.append(name)
    return found
