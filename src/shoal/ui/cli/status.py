"""`shoal status`: prints the state of a run from its ledger, live or finished, from any terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser

if TYPE_CHECKING:
    from shoal.cluster.session import SubmittedRun
    from shoal.ledger.status import Follower, RunPhase
    from shoal.ledger.workspace import Workspace

SUMMARY = """Shows the state of the latest run of a workflow, live from any terminal or afterwards. Without FILE it
shows the workflow that was run in this directory, or lists the workflows if there are several."""
USAGE = "[FILE] [OPTION...]"
EXAMPLE = "shoal status --watch"
_WATCH_SECONDS = 1.0


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="the workflow file")
    parser.add_argument("--watch", action="store_true", help="refresh every second until the run ends")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument("--categories", action="store_true", help="table of categories: requested and used resources")
    tables.add_argument("--tasks", action="store_true", help="table of all tasks: state and used resources")
    tables.add_argument("--nodes", action="store_true", help="table of machines")
    tables.add_argument("--throttle", action="store_true", help="table of how many tasks ran together, over time")
    parser.add_argument(
        "--plot",
        metavar="FILE.svg",
        help="with --categories: draw the allocated and used memory of attempts; with --throttle: how many tasks "
        "ran together, their resource use and rate",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list every running and failed task")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.execution.workflow_loader import missing_workflow
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import recorded_workflows

    if arguments.plot is not None and not (arguments.categories or arguments.throttle):
        raise InputError("--plot needs --categories or --throttle", remedy="add one of them")
    if arguments.file is not None:
        workspace = Workspace(arguments.file)
        if not os.path.isdir(workspace.directory):
            workspace = _of_last_run(arguments.file) or workspace
        if not os.path.isdir(workspace.directory):
            if not os.path.isfile(arguments.file):
                raise missing_workflow(arguments.file)
            raise InputError(f"{arguments.file!r} has not been run yet", remedy="run it first")
        return _show(workspace, arguments)
    names = recorded_workflows()
    if not names:
        raise InputError("no workflow has been run in this directory", remedy="name the workflow's file")
    if len(names) == 1:
        return _show(Workspace(names[0]), arguments)
    if arguments.plot is not None:
        raise InputError("several workflows were run in this directory", remedy="name the file of one of them")
    return _list(names, arguments.json)


def _of_last_run(word: str) -> Workspace | None:
    """Accepts `FILE@N` as the other commands do, if N is the latest run."""
    from shoal.execution.run_selection import count_runs, numbered_run, split_run
    from shoal.ledger.workspace import Workspace

    path, number = split_run(word)
    workspace = Workspace(path)
    if number is None or not os.path.isfile(workspace.ledger):
        return None
    wanted = numbered_run(workspace, path, number)
    if wanted != count_runs(workspace.ledger):
        raise InputError(
            f"status shows the latest run only, and {word!r} is an earlier one",
            remedy=f"'shoal top {word}', 'shoal web {word}' and 'shoal report {word}' show it",
        )
    return workspace


def _list(names: list[str], as_json: bool) -> int:
    """Prints one line for each of several workflows."""
    import json

    from shoal.ledger.status import Follower
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.nets import net_as_data, net_headline
    from shoal.ui.cli.status_tables import headline, state_as_data
    from shoal.ui.cli.text import printable

    now = time.time()
    found = []
    for name in names:
        follower = Follower(Workspace(name), skip_idle=True)
        found.append((name, follower, follower.refresh()))
    if as_json:
        rows = [
            net_as_data(follower, phase) if follower.state.net else state_as_data(follower, phase, now)
            for _, follower, phase in found
        ]
        print(json.dumps(rows))
        return 0
    for name, follower, phase in found:
        print(printable((net_headline if follower.state.net else headline)(name, follower, phase, now)))
    print("'shoal status FILE' shows more of one of them")
    return 0


def _show(workspace: Workspace, arguments: argparse.Namespace) -> int:
    import json

    from shoal.ledger.status import Follower, RunPhase
    from shoal.ui.cli.screen import Screen
    from shoal.ui.cli.text import printable

    if arguments.plot is not None:
        _check_plot(workspace, arguments.plot)
    follower = Follower(workspace, keeps_all=arguments.tasks, skip_idle=True)
    screen = Screen(sys.stdout)
    while True:
        phase = follower.refresh()
        now = time.time()
        again = arguments.watch and phase in (RunPhase.RUNNING, RunPhase.AWAY)
        if arguments.json:
            print(json.dumps(_data(follower, phase, now, arguments)), flush=True)
        else:
            lines = [printable(line) for line in _lines(follower, phase, now, arguments)]
            if again and screen.live:
                screen.draw_fitting(lines)
            else:
                screen.erase()
                print("\n".join(lines), flush=True)
        if not again:
            break
        time.sleep(_WATCH_SECONDS)
    if arguments.plot is not None:
        _plot(follower, arguments)
    return 0


def _check_plot(workspace: Workspace, path: str) -> None:
    from shoal.ui.cli.workflow_places import STANDARD_OUTPUT, check_destination

    if path == STANDARD_OUTPUT:
        raise InputError("--plot - would mix the plot with the table", remedy="name a file")
    check_destination(path, "--plot", workspace)


def _plot(follower: Follower, arguments: argparse.Namespace) -> None:
    from shoal.ui.cli.status_plots import draw, draw_throttle, read_attempts
    from shoal.ui.cli.workflow_places import write_to

    title, path = os.path.basename(follower.workspace.workflow), arguments.plot
    if arguments.throttle:
        drawing = draw_throttle(follower.state.throttle.decisions, title)
    else:
        drawing = draw(read_attempts(follower.workspace), title)
    write_to(path, drawing.encode(), f"the plot {path!r} cannot be written")


def _lines(follower: Follower, phase: RunPhase, now: float, arguments: argparse.Namespace) -> list[str]:
    from shoal.ui.cli.status_tables import category_table, describe, node_table, task_table, throttle_table

    if arguments.categories:
        return category_table(follower, phase)
    if arguments.tasks:
        return task_table(follower, phase)
    if arguments.nodes:
        return node_table(follower, phase)
    if arguments.throttle:
        return throttle_table(follower.state)
    if follower.state.net is not None:
        from shoal.ui.cli.nets import describe_net

        return describe_net(follower, phase, now, every=arguments.verbose)
    predicted, brought = _predicted(follower, phase), _on_cluster(follower, phase)
    return describe(follower, phase, now, every=arguments.verbose, predicted=predicted, brought=brought)


def _data(follower: Follower, phase: RunPhase, now: float, arguments: argparse.Namespace) -> object:
    from shoal.ui.cli.status_tables import (
        categories_as_data,
        nodes_as_data,
        state_as_data,
        tasks_as_data,
        throttle_history,
    )

    if arguments.categories:
        return categories_as_data(follower, phase)
    if arguments.tasks:
        return tasks_as_data(follower, phase)
    if arguments.nodes:
        return nodes_as_data(follower, phase)
    if arguments.throttle:
        return throttle_history(follower.state)
    if follower.state.net is not None:
        from shoal.ui.cli.nets import net_as_data

        return net_as_data(follower, phase)
    predicted, brought = _predicted(follower, phase), _on_cluster(follower, phase)
    return state_as_data(follower, phase, now, predicted=predicted, brought=brought)


def _on_cluster(follower: Follower, phase: RunPhase) -> SubmittedRun | None:
    """What the cluster reports about a run that no local process follows."""
    from shoal.ledger.status import RunPhase

    if phase is not RunPhase.AWAY:
        return None
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.session import query_submitted

    return query_submitted(follower.workspace)


def _predicted(follower: Follower, phase: RunPhase) -> float | None:
    """Predicted duration of a finished run, from what was known before it."""
    from shoal.ledger.status import RunPhase

    if phase is not RunPhase.ENDED:
        return None
    from shoal.sim.forecast import expected_makespan

    return expected_makespan(follower.workspace, follower.state)
