"""`shoal why`: explains in a short paragraph the state of a task (running, waiting, failed, up to date) or of a run."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow

if TYPE_CHECKING:
    from shoal.execution.session import SessionView
    from shoal.petri.net import Net
    from shoal.ui.cli.why_run import Explained

SUMMARY = """Explains the state of a task: done and when, running since when, failed and how, or waiting for what (the
tasks it depends on, down to one that runs; the scarce resource, which tasks hold it and when it should be free; the
throttle; its place in the queue; a node or a store in trouble) with its expected start time; up to date, or to be run
and for which reason. TASK is a task's name, a file it makes, or its number. Without TASK it explains the state of the
whole run: why nothing runs, or what it waits for. For a net it lists the tokens that its transitions wait for; TASK is
then a transition."""
USAGE = "[TASK] [FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal why results/summary.txt"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "the task, then the workflow file, targets and name=value parameters")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how changed files are detected")
    parser.add_argument("--json", action="store_true", help="print the answer as one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.ui.cli.why_run import explain_task, explain_whole
    from shoal.ui.cli.workflow_places import task_and_workflow, whole_workflow

    if _explained_net(arguments):
        return 0
    whole = whole_workflow(arguments.words, arguments.workflow)
    if whole is not None:
        _print(explain_whole(whole, [word for word in arguments.words if "=" in word]), as_json=arguments.json)
        return 0
    wanted, path, words = task_and_workflow(arguments.words, arguments.workflow, "why")
    _print(explain_task(wanted, path, words, by_content=arguments.check == "content"), as_json=arguments.json)
    return 0


def _print(explained: Explained, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        from shoal.ledger.records import decodable_parts

        print(msgspec.json.encode(decodable_parts(explained.data)).decode(), flush=True)
    else:
        from shoal.ui.cli.text import printable

        print("\n".join(map(printable, explained.text.splitlines())), flush=True)


def _explained_net(arguments: argparse.Namespace) -> bool:
    """If the file defines a net, explains what its transitions wait for. Returns whether it does."""
    import os

    from shoal.ledger.status import Follower
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.nets import why_nothing_runs
    from shoal.ui.cli.why_run import Explained, with_damage

    words = [word for word in arguments.words if "=" not in word]
    path = _file_among(words, arguments.workflow)
    if path is None or not path.endswith(".py") or not os.path.isfile(path):
        return False
    others = [word for word in words if word != path]
    if len(others) > 1:
        return False
    follower = Follower(Workspace(path))
    phase = follower.refresh()
    start = follower.state.start
    if start is not None and follower.state.net is None:
        return False
    parameters = [word for word in arguments.words if "=" in word]
    net = _net_in(path, parameters or (start.targets if start is not None else []))
    if net is None:
        return False
    text = "\n".join(why_nothing_runs(net.describe(), follower.state, phase, *others or [None]))
    data: dict[str, Any] = {"about": "net", "time": time.time(), "text": text}
    _print(with_damage(Explained(text, data), follower), as_json=arguments.json)
    return True


def _file_among(words: list[str], named: str | None) -> str | None:
    """Returns the workflow file if it is named or unambiguous, else None."""
    import os

    from shoal.ui.cli.workflow_places import choose_workflow

    if named is not None:
        return named
    files = [word for word in words[:2] if word.endswith(".py") and os.path.isfile(word)]
    try:
        return files[-1] if files else choose_workflow(None)
    except InputError:
        return None


def _net_in(path: str, words: list[str]) -> Net | None:
    """Returns the net that a file defines; None if it defines tasks or cannot be read (the next read reports that)."""
    import os

    from shoal.execution.rules_loader import NetFoundError
    from shoal.execution.session import enter, load

    here = os.getcwd()
    try:
        load(enter(path), words)
    except NetFoundError as found:
        return found.net
    except InputError:
        pass
    finally:
        os.chdir(here)
    return None


def find_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> tuple[SessionView, int]:
    """Finds the task in the graph of the requested targets, else in the graph that has the task itself as target."""
    view, task, _ = seek_task(wanted, path, words, by_content=by_content)
    return view, task


def seek_task(wanted: str, path: str, words: list[str], *, by_content: bool) -> tuple[SessionView, int, bool]:
    """Like `find_task`, and returns also whether the requested targets need the task."""
    from shoal.core.graph import lookup_tasks
    from shoal.execution.files.files import relative_here
    from shoal.execution.session import look
    from shoal.execution.workflow_loader import unknown_target

    view = task = None
    is_asked_for = True
    try:
        view = look(path, words, None, by_content=by_content)
    except InputError:  # rules without a default target; any other error occurs again below
        if not path.endswith(".py"):
            raise
    if view is not None:
        task = lookup_tasks(view.workflow.graph, relative_here())(wanted)
    if task is None and path.endswith(".py"):
        is_asked_for = view is None
        parameters = [word for word in words if "=" in word]
        view = look(path, [wanted, *parameters], None, by_content=by_content)
        task = lookup_tasks(view.workflow.graph, relative_here())(wanted)
    assert view is not None
    if task is None:
        raise unknown_target(wanted, view.workflow.graph)
    return view, task, is_asked_for
