"""`shoal output`: prints the standard output and error of a task, also while it runs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from shoal.ui.cli.parser import CommandParser, add_workflow, whole_number

if TYPE_CHECKING:
    from shoal.ledger.history import TaskAttempts
    from shoal.ledger.records import TaskEnded, TaskStarted
    from shoal.ledger.workspace import Workspace

SUMMARY = """Prints the output of the last attempt of a task, unchanged; for a running task, its output so far. TASK
is a task's name, a file it makes, or its number."""
USAGE = "TASK [FILE] [OPTION...]"
EXAMPLE = "shoal output results/summary.txt --attempt 1"
_PIECE = 1 << 20


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser, "the task, then the workflow file")
    parser.add_argument(
        "--attempt", type=whole_number(1, "--attempt"), metavar="N", help="print the output of this attempt"
    )
    parser.add_argument("--all", action="store_true", help="print the output of every attempt, in all runs")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.ledger.history import find_attempts
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import task_and_workflow

    wanted, path, words = task_and_workflow(arguments.words, arguments.workflow, "output")
    if any("=" not in word for word in words):
        from shoal.ui.cli.why_run import check_words

        check_words(path, words)
    workspace = Workspace(path)
    found = find_attempts(workspace, [wanted])
    if not found.ended and found.running is None:
        found = find_attempts(workspace, _other_names(wanted, path, words))
    if not found.ended and found.running is None:
        return _none(f"no attempt of {wanted!r} is recorded")
    if arguments.all:
        for record in found.ended:
            print(_heading(record), flush=True)
            _copy(workspace.output, record.output_at, record.output_size)
        return 0
    if found.running is not None and arguments.attempt in (None, found.running.attempt):
        return _print_running(workspace, wanted, found.running)
    return _print_ended(workspace, wanted, found, arguments.attempt)


def _other_names(wanted: str, path: str, words: list[str]) -> list[str]:
    """Other names of the task according to the workflow; raises an error if there is no such task."""
    from shoal.ui.cli.why import find_task

    view, task = find_task(wanted, path, words, by_content=False)
    graph = view.workflow.graph
    return [graph.names[task], "\0".join(graph.output_names(task))]


def _print_ended(workspace: Workspace, wanted: str, found: TaskAttempts, attempt: int | None) -> int:
    records = [record for record in found.of_last_run() if attempt in (None, record.attempt)]
    if not records:
        return _none(f"attempt {attempt} of {wanted!r} is not recorded; {_recorded(found)}")
    record = records[-1]
    if not record.output_size:
        print(f"shoal: {wanted!r} wrote nothing ({_heading(record)})", file=sys.stderr)
    return _copy(workspace.output, record.output_at, record.output_size)


def _recorded(found: TaskAttempts) -> str:
    """`there is only attempt 2`, `there are attempts 1, 2 and 4`; on a cluster, numbers of attempts may be missing."""
    numbers = {record.attempt for record in found.of_last_run()}
    if found.running is not None:
        numbers.add(found.running.attempt)
    *others, last = map(str, sorted(numbers))
    return f"there are attempts {', '.join(others)} and {last}" if others else f"there is only attempt {last}"


def _print_running(workspace: Workspace, wanted: str, started: TaskStarted) -> int:
    if started.node:
        return _none(f"{wanted!r} is running on another node; its output is fetched when it ends")
    if started.slot < 0:
        return _none(f"{wanted!r} is running as a Python call; its output is recorded when it ends")
    path = os.path.join(workspace.running, str(started.slot))
    try:
        return _copy(path, 0, os.stat(path).st_size)
    except FileNotFoundError:
        return _none(f"{wanted!r} has just ended; try again")


def _heading(record: TaskEnded) -> str:
    from shoal.core.quantities import show_seconds
    from shoal.ui.cli.text import printable

    how = record.message or "exit status 0"
    return printable(f"attempt {record.attempt}, {show_seconds(record.ended - record.started)}, {how}")


def _none(sentence: str) -> int:
    print(f"shoal: {sentence}", file=sys.stderr)
    return 1


def _copy(path: str, begin: int, size: int) -> int:
    """Copies a byte range of a file to standard output."""
    if not size:
        return 0
    sys.stdout.flush()
    out = sys.stdout.buffer
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            while size > 0 and (piece := file.read(min(_PIECE, size))):
                out.write(piece)
                size -= len(piece)
    except FileNotFoundError:
        return _none("the file with the output of tasks has been removed")
    out.flush()
    return 0
