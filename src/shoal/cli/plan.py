"""`shoal plan`: what would run and why; touches nothing."""

from __future__ import annotations

import argparse

from shoal.cli.parser import CommandParser, add_workflow, split_words
from shoal.cli.run import add_machine, node_for

SUMMARY = """Shows what 'shoal run' would run and for which reasons, without running or writing anything."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal plan flow.py all --verbose"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    add_machine(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every task with its reason")
    parser.add_argument("-f", "--force", action="store_true", help="as if everything had to run")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how a changed file is recognised")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def execute(arguments: argparse.Namespace) -> int:
    return show_plan(arguments, force=arguments.force, by_content=arguments.check == "content")


def show_plan(arguments: argparse.Namespace, *, force: bool, by_content: bool) -> int:
    """Prints the plan for the words of a command line, of `shoal plan` or of `shoal run --dry-run`."""
    import json

    from shoal.cli.planned import describe_plan, plan_as_data
    from shoal.engine.load import find_workflow
    from shoal.engine.session import look

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    view = look(path, words, node_for(arguments, path), force=force, by_content=by_content)
    if arguments.json:
        print(json.dumps(plan_as_data(view.plan)))
    else:
        print(describe_plan(view.plan, getattr(arguments, "verbose", False) or getattr(arguments, "explain", False)))
    return 0
