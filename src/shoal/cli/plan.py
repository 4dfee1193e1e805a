"""`shoal plan`: what would run and why, and with `--nodes` how long a whole run would take; runs nothing."""

from __future__ import annotations

import argparse

from shoal.cli.modelled import add_cluster, given_for_clusters
from shoal.cli.parser import CommandParser, add_workflow, split_words
from shoal.cli.run import add_machine, node_for
from shoal.errors import InputError

SUMMARY = """Shows what 'shoal run' would run and for which reasons, without running or writing anything. With --nodes
it predicts a whole run on clusters of several sizes, as 'shoal simulate' does, and says which to take; that also works
for a workload in place of FILE."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal plan flow.py all --nodes 1..64 --policy flds,mlb --plot scaling.svg"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    add_machine(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every task with its reason")
    parser.add_argument("-f", "--force", action="store_true", help="as if everything had to run")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how a changed file is recognised")
    parser.add_argument(
        "--nodes", metavar="RANGE", help="sizes of a cluster: 1..64 (doubling), 1..64:4x, 10..50:10 or 1,2,4"
    )
    parser.add_argument("--plot", metavar="FILE", help="with --nodes: draw makespan and cost into an SVG file")
    add_cluster(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.nodes is not None:
        from shoal.cli.scaling import show_scaling

        return show_scaling(arguments)
    for option, value in (("--plot", arguments.plot), ("--order", arguments.order), ("--like", arguments.like)):
        if value is not None:
            raise InputError(f"{option} goes with --nodes only", remedy="say for how many, such as --nodes 1..64")
    for option in given_for_clusters(arguments):
        raise InputError(f"{option} goes with --nodes only", remedy="say for how many, such as --nodes 1..64")
    return show_plan(arguments, force=arguments.force, by_content=arguments.check == "content")


def show_plan(arguments: argparse.Namespace, *, force: bool, by_content: bool, overwrite: bool = False) -> int:
    """Prints the plan for the words of a command line, of `shoal plan` or of `shoal run --dry-run`."""
    import json
    import sys

    from shoal.cli.cells import printable_lines
    from shoal.cli.planned import describe_plan, plan_as_data
    from shoal.engine.load import find_workflow
    from shoal.engine.session import look

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
