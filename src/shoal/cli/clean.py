"""`shoal clean`: removes what a workflow made."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from shoal.cli.parser import CommandParser, add_workflow, split_words

if TYPE_CHECKING:
    from shoal.engine.clean import Cleaning
    from shoal.engine.workspace import Workspace

SUMMARY = """Removes the files that the tasks of a workflow made, the directories that were made for them if they are
empty, what attempts have half made, and the records of its runs. Source files stay, and so does every file that was
changed since it was made, that no task is on record for having made, or that a run has replaced."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal clean flow.py --dry-run"
_SHOWN = 20


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    parser.add_argument("-n", "--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("-f", "--force", action="store_true", help="remove outputs also if they were changed since")
    parser.add_argument("-v", "--verbose", action="store_true", help="name every file")


def execute(arguments: argparse.Namespace) -> int:
    import socket
    import time

    from shoal.engine.load import find_workflow
    from shoal.engine.session import enter
    from shoal.engine.workspace import Holder

    named, words = split_words(arguments.words, arguments.workflow)
    workspace = enter(find_workflow(named))
    if not os.path.isdir(workspace.directory):
        print(f"nothing to clean: {os.path.basename(workspace.workflow)} has not been run")
        return 0
    workspace.acquire(Holder(os.getpid(), socket.gethostname(), "", time.time()))
    try:
        return _clean(workspace, words, arguments)
    finally:
        workspace.release()


def _clean(workspace: Workspace, words: list[str], arguments: argparse.Namespace) -> int:
    from shoal.engine.clean import find_what_was_made, forget, remove
    from shoal.engine.history import read_history
    from shoal.engine.session import load, look_back

    history = read_history(workspace)
    if not words and history.last_run is not None:
        words = history.last_run.targets
    graph = load(workspace, words).graph
    if not arguments.dry_run:
        look_back(workspace, history, print)
    cleaning = find_what_was_made(graph, history, workspace, arguments.force)
    if arguments.dry_run:
        _say(cleaning, "would remove", arguments.verbose)
        return 0
    stuck = remove(cleaning)
    if stuck:
        for kept in stuck:
            print(f"could not remove {kept.name!r}: {kept.why}")
        return 1
    is_kept = forget(workspace)
    _say(cleaning, "removed", arguments.verbose)
    if is_kept:
        print(f"kept what runs have replaced, in {os.path.relpath(workspace.replaced)}")
    return 0


def _say(cleaning: Cleaning, verb: str, every: bool) -> None:
    from shoal.cli.cells import printable
    from shoal.cli.text import count
    from shoal.model.resources import show_bytes

    print(f"{verb} {count(len(cleaning.files), 'file')} ({show_bytes(cleaning.size)}) and the records of the runs")
    for name in cleaning.files[: None if every else _SHOWN]:
        print(f"  {printable(name)}")
    if not every and len(cleaning.files) > _SHOWN:
        print(f"  and {len(cleaning.files) - _SHOWN:,} more (--verbose names them)")
    for kept in cleaning.kept[: None if every else _SHOWN]:
        print(f"kept {kept.name!r}: it {kept.why}")
    if not every and len(cleaning.kept) > _SHOWN:
        print(f"kept {len(cleaning.kept) - _SHOWN:,} more (--verbose names them)")
    if any(kept.is_output for kept in cleaning.kept):
        print("--force removes outputs also if they are not as they were left")
    if cleaning.unknown:
        print(
            f"{count(cleaning.unknown, 'result')} of earlier runs came from tasks that are no longer in the workflow; "
            "the names of their files are not known, so these stay"
        )
