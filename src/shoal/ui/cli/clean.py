"""`shoal clean`: removes the files that a workflow made, and the records of its runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, split_words

if TYPE_CHECKING:
    from shoal.execution.recovery import Recovery
    from shoal.execution.removal import Removal
    from shoal.execution.workflow_loader import Workflow
    from shoal.ledger.history import History
    from shoal.ledger.workspace import Workspace

SUMMARY = """Removes the files that the tasks of a workflow made, the directories created for them if they are empty,
partial outputs of attempts, and the records of its runs. Source files stay, and so does every file that was changed
since it was made, that no task is recorded to have made, or that a run has replaced. After a kill, a file under the
name of an output may be yours: it is moved aside and kept.
With targets, removes only the outputs of their own tasks (for a group, of its members), and neither their inputs, nor
partial outputs, nor records."""
USAGE = "[FILE] [TARGET... NAME=VALUE...] [OPTION...]"
EXAMPLE = "shoal clean flow.py --dry-run"
_SHOWN = 20


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be removed and exit")
    parser.add_argument("-f", "--force", action="store_true", help="remove outputs even if they were changed since")
    parser.add_argument("-v", "--verbose", action="store_true", help="list every file")


def execute(arguments: argparse.Namespace) -> int:
    import socket
    import time

    from shoal.execution.session import enter
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.workspace import LockHolder

    named, words = split_words(arguments.words, arguments.workflow)
    workspace = enter(find_workflow(named))
    if not os.path.isdir(workspace.directory):
        print(f"nothing to clean: {os.path.basename(workspace.workflow)} has not been run")
        return 0
    workspace.acquire(LockHolder(os.getpid(), socket.gethostname(), "", time.time()))
    try:
        return _clean(workspace, words, arguments)
    finally:
        workspace.release()


def _clean(workspace: Workspace, words: list[str], arguments: argparse.Namespace) -> int:
    from shoal.execution.recovery import Recovery, predict_recovery
    from shoal.execution.removal import find_what_was_made, forget, remove
    from shoal.execution.session import recover
    from shoal.ledger.history import read_history

    history = read_history(workspace)
    workflow, only = _load(workspace, words, history)
    messages = _Messages(dry=arguments.dry_run, every=arguments.verbose)
    if arguments.dry_run:
        ahead = predict_recovery(workspace, history)
        messages.recovery(ahead)
        moved = ahead.moved
    else:
        ahead = Recovery()
        moved = recover(workspace, history, print)
    cleaning = find_what_was_made(workflow.graph, history, workspace, arguments.force, only=only, ahead=ahead)
    stuck = [] if arguments.dry_run else remove(cleaning, frozenset(moved.values()))
    if stuck:
        for kept in stuck:
            print(f"could not remove {kept.name!r}: {kept.why}")
        return 1
    is_kept = ahead.replaced or _is_filled(workspace.replaced)
    if only is None and not arguments.dry_run:
        is_kept = forget(workspace, moved.values())
    messages.cleaning(cleaning, records=only is None)
    messages.moved(moved)
    if is_kept and only is None:
        print(f"{messages.kept} files that runs replaced, in {os.path.relpath(workspace.replaced)}")
    return 0


def _load(workspace: Workspace, words: list[str], history: History) -> tuple[Workflow, list[int] | None]:
    """Returns the workflow, and the tasks whose outputs are to be removed (None: all).

    Without words it is loaded as for the latest run, because tasks of pattern rules are known only with its targets.
    """
    from shoal.core.graph import lookup_tasks
    from shoal.execution.removal import tasks_that_make
    from shoal.execution.session import load
    from shoal.execution.workflow_loader import targets_among

    name = os.path.basename(workspace.workflow)
    if not words and history.last_run is not None:
        before = history.last_run.targets
        try:
            return load(workspace, before), None
        except InputError:
            targets = targets_among(name, before)
            if not targets:
                raise
            # These tasks may have been removed from the workflow; the names of their outputs are recorded.
            return load(workspace, [word for word in before if word not in targets]), None
    workflow = load(workspace, words)
    targets = targets_among(name, words)
    if not targets:
        return workflow, None
    find = lookup_tasks(workflow.graph)
    for target in targets:
        if len(workflow.targets) < len(targets) and find(target) is None:
            raise InputError(f"no task makes {target!r}", file=name, remedy="'shoal plan' lists the tasks")
    return workflow, tasks_that_make(workflow.graph, workflow.targets)


def _is_filled(directory: str) -> bool:
    try:
        return bool(os.listdir(directory))
    except OSError:
        return False


class _Messages:
    """The messages about a clean-up, done or planned."""

    def __init__(self, *, dry: bool, every: bool) -> None:
        self.every = every
        self.removed = "would remove" if dry else "removed"
        self.kept = "would keep" if dry else "kept"

    def recovery(self, ahead: Recovery) -> None:
        from shoal.core.quantities import count

        if ahead.back:
            print(f"a run was killed: would restore {count(len(ahead.back), 'output')}")

    def cleaning(self, cleaning: Removal, *, records: bool) -> None:
        from shoal.core.quantities import count, show_bytes
        from shoal.ui.cli.text import printable

        files = f"{count(len(cleaning.files), 'file')} ({show_bytes(cleaning.size)})"
        print(f"{self.removed} {files} and the records of the runs" if records else f"{self.removed} {files}")
        self._list([f"  {printable(name)}" for name in cleaning.files], "  and {} more (--verbose lists them)")
        self._list([f"kept {kept.name!r}: it {kept.why}" for kept in cleaning.kept])
        if any(kept.is_output for kept in cleaning.kept):
            print("--force removes outputs even if they were changed")
        if cleaning.unknown:
            print(
                f"{count(cleaning.unknown, 'result')} of earlier runs came from tasks that are no longer in the "
                "workflow; the names of their files are not known, so these stay"
            )

    def moved(self, moved: Mapping[str, str]) -> None:
        """Reports moved files that may belong to the user: nothing records who wrote them."""
        lines = [
            f"{self.kept} the file at {name!r} after a run was killed, as {place!r}" for name, place in moved.items()
        ]
        self._list(lines)

    def _list(self, lines: list[str], more: str = "kept {} more (--verbose lists them)") -> None:
        shown = lines if self.every else lines[:_SHOWN]
        for line in shown:
            print(line)
        if len(shown) < len(lines):
            print(more.format(f"{len(lines) - len(shown):,}"))
