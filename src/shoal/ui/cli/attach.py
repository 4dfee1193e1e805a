"""`shoal attach`: follows a run on a cluster that was detached or whose terminal has been closed."""

from __future__ import annotations

import argparse

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, add_workflow, need_cluster_libraries, split_words

SUMMARY = """Follows a run that was submitted to a cluster with 'shoal run --cluster' and whose terminal was closed, or
that was detached with '--detach'. First it writes what has happened meanwhile to the ledger. Ctrl-C ends the run; a
second Ctrl-C detaches from it."""
USAGE = "[FILE] [OPTION...]"
EXAMPLE = "shoal attach flow.py"


def add_arguments(parser: CommandParser) -> None:
    add_workflow(parser)
    shown = parser.add_argument_group("output")
    shown.add_argument("-q", "--quiet", action="store_true", help="show only failures and errors")
    shown.add_argument("--plain", action="store_true", help="print plain lines, as without a terminal")
    shown.add_argument("--json", action="store_true", help="write one JSON object per line to standard output")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries()
    from shoal.cluster.selection import forget_note, read_plan
    from shoal.cluster.session import ClusterSession, SubmissionOptions, call, is_there, reach
    from shoal.execution.run_options import RunOptions, this_node
    from shoal.execution.session import enter, load
    from shoal.execution.workflow_loader import find_workflow
    from shoal.ledger.cluster_notes import read_note
    from shoal.ui.cli.display import choose_display
    from shoal.ui.cli.run import exit_status, print_summary

    named, words = split_words(arguments.words, arguments.workflow)
    path = find_workflow(named)
    display = choose_display(arguments)
    workspace = enter(path)
    note = read_note(workspace)
    if note is None:
        raise InputError(
            "this workflow is not on a cluster", file=path, remedy="submit it with 'shoal run --cluster NAME'"
        )
    if words and words != note.words:
        raise InputError(
            "a run on a cluster cannot be attached with other targets or parameters",
            remedy=f"leave out {words[0]!r}",
        )
    with reach(note.cluster) as caller:
        there = is_there(caller, note)
    caller = call(note.cluster)
    if not there:
        forget_note(workspace)
        display.note("the cluster does not have this run; its remaining tasks are submitted again")
    session = ClusterSession(
        workspace,
        lambda: read_plan(workspace).workflow if there else load(workspace, note.words),
        RunOptions(this_node(workspace.base), by_content=note.by_content),
        display,
        note.cluster,
        caller,
        SubmissionOptions(words=note.words, managed=note.managed, attach=note if there else None),
    )
    session.report_all = display.report_all
    display.begin(session)
    run = session.execute()
    status = exit_status(run)
    display.end(session, run, status)
    if not (arguments.quiet or arguments.json):
        options = ["--cluster", note.cluster, *(["--files", "managed"] if note.managed else [])]
        print_summary(session, run, [named] if named else [], [*note.words, *options], display.shown_failures())
    return status
