"""`shoal graph`: the tasks of a workflow and what they need, for graphviz, browsers or programs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from shoal.cli.parser import CommandParser, add_workflow, split_words
from shoal.errors import InputError, RunError

if TYPE_CHECKING:
    from shoal.flow.net import Net

SUMMARY = """Draws the tasks that the targets need. The formats are dot (for graphviz), svg (through graphviz's 'dot')
and json. Large graphs are better drawn with --by category: one box for all tasks of a kind. A net is drawn with its
places and transitions."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal graph flow.py all --format svg --output flow.svg"
LARGE = 2000


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    parser.add_argument("--format", choices=("dot", "svg", "json"), default="dot", help="what to write (default: dot)")
    parser.add_argument("--by", choices=("task", "category"), default="task", help="one box per task, or per category")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: standard output)")


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.cli.destination import STANDARD_OUTPUT, check_destination, write_to
    from shoal.cli.drawing import as_data, by_category, by_task, to_dot
    from shoal.engine.load import find_workflow
    from shoal.engine.rulesfile import NetFound
    from shoal.engine.session import enter, load
    from shoal.engine.workspace import Workspace
    from shoal.model.graph import ancestors

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    target = STANDARD_OUTPUT if arguments.output is None else arguments.output
    check_destination(target, "-o", Workspace(path))
    if target != STANDARD_OUTPUT:
        target = os.path.abspath(target)
    try:
        workflow = load(enter(path), words)
    except NetFound as found:
        write_to(target, _drawn_net(found.net, arguments), f"cannot write {arguments.output!r}")
        return 0
    graph = workflow.graph
    marks = ancestors(graph, workflow.targets)
    wanted = [task for task in range(len(graph)) if marks[task]]
    if len(wanted) > LARGE and arguments.by == "task" and arguments.format != "json":
        print(f"shoal: {len(wanted):,} tasks make a large drawing; try --by category", file=sys.stderr)
    drawing = by_category(graph, wanted) if arguments.by == "category" else by_task(graph, wanted)
    if arguments.format == "json":
        data = json.dumps(as_data(drawing)).encode() + b"\n"
    else:
        data = to_dot(drawing).encode("utf-8", "replace")
        if arguments.format == "svg":
            data = _render(data)
    write_to(target, data, f"cannot write {arguments.output!r}")
    return 0


def _drawn_net(net: Net, arguments: argparse.Namespace) -> bytes:
    """Places and transitions, with the tokens of the beginning."""
    import msgspec

    if arguments.by == "category":
        raise InputError(f"the net {net.name!r} is drawn with its places and transitions", remedy="leave out --by")
    if arguments.format == "json":
        return msgspec.json.encode(net.describe()) + b"\n"
    drawn = net.dot().encode("utf-8", "replace")
    return _render(drawn) if arguments.format == "svg" else drawn


def _render(dot: bytes) -> bytes:
    import subprocess

    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, check=False)
    except FileNotFoundError:
        raise InputError(
            "svg needs the program 'dot' of graphviz, which is not installed",
            remedy="install graphviz, or use --format dot",
        ) from None
    if done.returncode:
        complaint = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise RunError(f"graphviz could not draw the graph: {complaint}")
    return done.stdout
