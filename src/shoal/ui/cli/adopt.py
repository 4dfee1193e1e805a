"""`shoal adopt`: records existing outputs as made by their tasks, so that these need not run."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from shoal.ui.cli.parser import CommandParser, add_workflow, split_words

if TYPE_CHECKING:
    from shoal.execution.adoption import Adoption
    from shoal.ledger.workspace import Workspace

SUMMARY = """Records existing outputs as made by their tasks, although the ledger has no record of it: every task of the
targets whose inputs and outputs all exist counts as done with its files, inputs and command as they are now. Runs
nothing and changes no file. Reports which tasks it cannot adopt and why; the exit status is then 2."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal adopt flow.py results/table.txt"
_SHOWN = 20
NOT_ALL = 2


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be adopted and exit")
    parser.add_argument("--check", choices=("time", "content"), default="time", help="how changed files are detected")
    parser.add_argument("-v", "--verbose", action="store_true", help="list every task")


def execute(arguments: argparse.Namespace) -> int:
    import time

    from shoal.execution.session import enter
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.workspace import LockHolder

    named, words = split_words(arguments.words, arguments.workflow)
    workspace = enter(find_workflow(named))
    workspace.make()
    workspace.acquire(LockHolder(os.getpid(), os.uname().nodename, "", time.time()))
    try:
        return _adopt(workspace, words, arguments)
    finally:
        workspace.release()


def _adopt(workspace: Workspace, words: list[str], arguments: argparse.Namespace) -> int:
    from shoal.execution.adoption import Adoption, record
    from shoal.execution.session import load, recover
    from shoal.ledger.history import read_history

    workflow = load(workspace, words)
    history = read_history(workspace)
    if not arguments.dry_run:
        recover(workspace, history, print)
    adoption = Adoption(workflow, history, workspace, by_content=arguments.check == "content")
    if adoption.records and not arguments.dry_run:
        record(adoption, workspace)
    _say(adoption, "would take" if arguments.dry_run else "took", every=arguments.verbose)
    return NOT_ALL if adoption.refused else 0


def _say(adoption: Adoption, verb: str, *, every: bool) -> None:
    import sys

    from shoal.core.quantities import count
    from shoal.ui.cli.text import printable

    graph = adoption.graph
    already = f"; {count(adoption.up_to_date, 'task')} done already" if adoption.up_to_date else ""
    print(f"{verb} {count(len(adoption.taken), 'task')} as done{already}")
    for task in adoption.taken[: None if every else _SHOWN]:
        print(f"  {printable(graph.names[task])}")
    if not every and len(adoption.taken) > _SHOWN:
        print(f"  and {len(adoption.taken) - _SHOWN:,} more (--verbose lists them)")
    sys.stdout.flush()
    refused = adoption.refused
    for each in refused[: None if every else _SHOWN]:
        line = f":{graph.lines[each.task]}" if graph.lines[each.task] else ""
        sentence = f"{graph.source}{line}: cannot adopt {graph.names[each.task]!r}: {each.why}"
        print(printable(sentence), file=sys.stderr)
    if not every and len(refused) > _SHOWN:
        print(f"and {len(refused) - _SHOWN:,} more (--verbose lists them)", file=sys.stderr)
