"""`shoal report`: writes a report of a run, or of two runs side by side, as an HTML page or as data."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser
from shoal.ui.cli.text import printable

if TYPE_CHECKING:
    from shoal.ledger.workspace import Workspace

SUMMARY = """Writes a report of a run: one self-contained HTML file with cores and memory over time, a task timeline,
the critical path, what-if estimates and recommendations. RUN is a workflow file: its last run that executed tasks is
reported; FILE@2 is its second run, FILE@-1 the one before the last."""
USAGE = "[RUN] [OPTION...]"
EXAMPLE = "shoal report flow.py -o report.html"
_DEFAULT = "report.html"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"the output file; - is standard output ({_DEFAULT}, of --json -)"
    )
    parser.add_argument("--compare", nargs=2, metavar="RUN", help="compare two runs side by side")
    parser.add_argument(
        "--json",
        action="store_true",
        help="write the report's data instead of a page, to standard output unless -o names a file",
    )


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.execution.run_selection import split_run
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.workflow_places import STANDARD_OUTPUT, check_destination, write_to

    if arguments.compare and arguments.run is not None:
        raise InputError("--compare takes both runs as its values", remedy="leave out the third one")
    words = arguments.compare or [_named(arguments.run)]
    path = arguments.output
    if path is None:
        path = STANDARD_OUTPUT if arguments.json else _DEFAULT
    for word in words:
        check_destination(path, "-o", Workspace(split_run(word)[0]))
    runs = [data_of(word) for word in words]
    for path_of_run in dict.fromkeys(split_run(word)[0] for word in words):
        _warn_of_damage(Workspace(path_of_run))
    if arguments.json:
        text = json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}, allow_nan=False) + "\n"
    else:
        text = _page(runs)
    write_to(path, text.encode(), f"the report {path!r} cannot be written")
    if path == STANDARD_OUTPUT:
        return 0
    if len(runs) == 1:
        print(printable(f"wrote {path}: {runs[0]['summary'][0]}{_unfinished(runs[0])}"))
        return 0
    print(printable(f"wrote {path}"))
    for word, run in zip(words, runs, strict=True):
        print(printable(f"  {word}: {run['summary'][0]}{_unfinished(run)}"))
    return 0


def _warn_of_damage(workspace: Workspace) -> None:
    """Warns on standard error: the report of a damaged ledger is incomplete."""
    from shoal.execution.run_selection import count_records
    from shoal.ledger.status import Follower
    from shoal.ui.cli.status_tables import damage_line

    if count_records(workspace.ledger)[1]:  # a quick check; a follower would decode every record
        follower = Follower(workspace)
        follower.refresh()
        for line in damage_line(follower):
            print(f"shoal: {line}", file=sys.stderr)


def _page(runs: list[dict[str, Any]]) -> str:
    from shoal.ui.report.page import page

    names = [run["run"]["workflow"] for run in runs]
    title = f"{' and '.join(dict.fromkeys(names))}: {'a comparison of runs' if len(runs) > 1 else 'report of a run'}"
    return page(title, {"runs": runs})


def _unfinished(run: dict[str, Any]) -> str:
    """A warning for an unfinished run, whose duration means nothing."""
    outcome = run["run"]["outcome"]
    if outcome == "on a cluster":
        return " It is on a cluster and no process follows it."
    return "" if outcome in ("ok", "running") else f" It did not finish ({outcome})."


def _named(word: str | None) -> str:
    from shoal.ui.cli.workflow_places import choose_workflow

    return word if word is not None else choose_workflow(None)


def data_of(word: str) -> dict[str, Any]:
    """Returns all data shown about the run that a word names."""
    import time

    from shoal.execution.run_selection import open_run, split_run
    from shoal.ledger.cluster_notes import is_submitted
    from shoal.ledger.status import Follower, RunPhase, listen
    from shoal.ui.report.data import run_data

    path, number = split_run(word)
    workspace, view = open_run(path, number)
    assert view.start is not None
    holder = workspace.holder()
    is_live = holder is not None and holder.run == view.start.run and view.end is None
    listen(view, workspace, is_live)
    predicted = None
    if number is None and view.end is not None and len(view.attempts) <= _MOST_FORESEEN:
        from shoal.sim.forecast import expected_makespan as predict

        follower = Follower(workspace, skip_idle=True)
        ended = follower.refresh() is RunPhase.ENDED
        if ended and follower.state.start is not None and follower.state.start.run == view.start.run:
            predicted = predict(workspace, follower.state)
    now = time.time() if is_live else None
    found = run_data(view, workflow=printable(os.path.basename(workspace.workflow)), now=now, predicted=predicted)
    if number is None and not is_live and view.may_continue_on_cluster() and is_submitted(workspace):
        found["run"]["outcome"] = RunPhase.AWAY.value
    return found


_MOST_FORESEEN = 20_000
"""Larger runs get no prediction from earlier runs, because the simulation would take too long."""
