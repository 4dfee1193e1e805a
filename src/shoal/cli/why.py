"""`shoal why`: one short paragraph on why a task runs, waits, failed or need not run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.parser import CommandParser, add_workflow

if TYPE_CHECKING:
    from shoal.engine.session import View

SUMMARY = """Says why a task is where it is: done and when, running since, failed and how, waiting for what, up to date,
or to be run and for which reason. TASK is a task's name, a file it makes, or its number. Of a net it says which tokens
its transitions wait for; TASK is then a transition, and can be left out."""
USAGE = "[TASK] [FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal why results/summary.txt"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "the task, then the workflow file, targets and name=value parameters")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how a changed file is recognised")


def execute(arguments: argparse.Namespace) -> int:
    import time

    from shoal.cli.places import task_and_workflow
    from shoal.cli.reasons import after_the_run, during_the_run
    from shoal.engine.follow import Follower, Phase
    from shoal.engine.workspace import Workspace

    if _explained_net(arguments):
        return 0
    wanted, path, words = task_and_workflow(arguments.words, arguments.workflow, "why")
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    if not words and follower.state.start is not None:
        words = follower.state.start.targets
    view, task = find_task(wanted, path, words, by_content=arguments.check == "content")
    now = time.time()
    told = _on_cluster(view, task)
    if told is not None:
        print(f"{view.workflow.graph.names[task]}: {told}.")
        return 0
    if phase is Phase.RUNNING and follower.state.start is not None:
        print(during_the_run(view.workflow.graph, task, follower.state, view.history, now))
    else:
        print(after_the_run(view.plan, task, view.history, now))
    return 0


def _explained_net(arguments: argparse.Namespace) -> bool:
    """Whether the file is a net, and what its transitions wait for was told."""
    import os

    from shoal.cli.netstanding import why_nothing_runs
    from shoal.engine.follow import Follower
    from shoal.engine.rulesfile import NetFound
    from shoal.engine.session import enter, load
    from shoal.engine.workspace import Workspace

    words = [word for word in arguments.words if "=" not in word]
    files = [word for word in words[:2] if word.endswith(".py") and os.path.isfile(word)]
    path = arguments.workflow or (files[-1] if files else None)
    if path is None or not path.endswith(".py"):
        return False
    others = [word for word in words if word != path]
    if len(others) > 1:
        return False
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    if others and follower.state.net is None:
        return False
    start = follower.state.start
    parameters = [word for word in arguments.words if "=" in word]
    try:
        load(enter(path), parameters or (start.targets if start is not None else []))
    except NetFound as found:
        print("\n".join(why_nothing_runs(found.net.describe(), follower.state, phase, *others or [None])))
        return True
    return False


def _on_cluster(view: View, task: int) -> str | None:
    """What the cluster knows that the workflow is on; None if it is on none."""
    import os

    from shoal.plan.identity import place_of

    if not os.path.exists(os.path.join(view.workspace.directory, "brought")):
        return None
    from shoal.cli.extras import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.session import why_on_cluster

    return why_on_cluster(view.workspace, place_of(view.workflow.graph, task))


def find_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> tuple[View, int]:
    """The task in the graph that these words ask for, else in the one that the task itself asks for."""
    from shoal.engine.load import unknown_target
    from shoal.engine.session import look
    from shoal.model.graph import lookup_tasks

    view = look(path, words, None, by_content=by_content)
    task = lookup_tasks(view.workflow.graph)(wanted)
    if task is None and path.endswith(".py"):
        parameters = [word for word in words if "=" in word]
        view = look(path, [wanted, *parameters], None, by_content=by_content)
        task = lookup_tasks(view.workflow.graph)(wanted)
    if task is None:
        raise unknown_target(wanted, view.workflow.graph)
    return view, task
