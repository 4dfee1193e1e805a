"""`shoal plan`: shows what would run and why, and with `--nodes` predicts the run time; runs nothing."""

from __future__ import annotations

import argparse

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, split_words
from shoal.ui.cli.plan_text import describe_plan, plan_as_data
from shoal.ui.cli.predictions import add_cluster, given_for_clusters
from shoal.ui.cli.run import add_machine, node_for

SUMMARY = """Shows what 'shoal run' would run and for which reasons, without running or writing anything. With --nodes
it predicts the whole run on clusters of several sizes, as 'shoal simulate' does, and recommends one; that also works
for a synthetic workload instead of FILE."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal plan flow.py all --nodes 1..64 --policy flds,mlb --plot scaling.svg"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    add_machine(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every task with its reason")
    parser.add_argument("-f", "--force", action="store_true", help="as if every task had to run")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how changed files are detected")
    parser.add_argument(
        "--nodes", metavar="RANGE", help="cluster sizes: 1..64 (doubling), 1..64:4x, 10..50:10 or 1,2,4"
    )
    parser.add_argument("--plot", metavar="FILE", help="with --nodes: draw makespan and cost as an SVG file")
    add_cluster(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.nodes is not None:
        from shoal.ui.cli.scaling import show_scaling

        return show_scaling(arguments)
    for option, value in (("--plot", arguments.plot), ("--order", arguments.order), ("--like", arguments.like)):
        if value is not None:
            raise InputError(f"{option} needs --nodes", remedy="add for example --nodes 1..64")
    for option in given_for_clusters(arguments):
        raise InputError(f"{option} needs --nodes", remedy="add for example --nodes 1..64")
    return show_plan(arguments, force=arguments.force, by_content=arguments.check == "content")


def show_plan(arguments: argparse.Namespace, *, force: bool, by_content: bool, overwrite: bool = False) -> int:
    """Prints the plan for the words of a command line of `shoal plan` or `shoal run --dry-run`."""
    import json
    import sys

    from shoal.execution.session import look
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ui.cli.text import printable_lines

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    view = look(path, words, node_for(arguments, path), force=force, by_content=by_content)
    if overwrite:
        view.plan.unknown.clear()
    if arguments.json:
        print(json.dumps(plan_as_data(view.plan)))
    else:
        every_task = getattr(arguments, "verbose", False) or getattr(arguments, "explain", False)
        print(printable_lines(describe_plan(view.plan, every_task)))
        for note in view.workflow.notes:
            print(printable_lines(f"shoal: {note}"), file=sys.stderr)
    return 0
