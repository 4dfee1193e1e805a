"""`shoal report`: a run, or two side by side, as one page to look at, or as data."""

from __future__ import annotations

import argparse
import os
from typing import Any

from shoal.cli.parser import CommandParser
from shoal.errors import InputError

SUMMARY = """Writes a report of a run: one HTML file that needs nothing else, with what happened over time, what became
of cores and memory, the critical path, what would have been if, and what to change next time. RUN is a workflow file,
whose last run is meant; FILE@2 is its second run, FILE@-1 the one before the last."""
USAGE = "[RUN] [OPTION...]"
EXAMPLE = "shoal report flow.py -o report.html"
_DEFAULT = "report.html"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")
    parser.add_argument("-o", "--output", metavar="FILE", help=f"where the report goes ({_DEFAULT})")
    parser.add_argument("--compare", nargs=2, metavar="RUN", help="two runs, side by side")
    parser.add_argument("--json", action="store_true", help="print the data of the report instead of writing a page")


def execute(arguments: argparse.Namespace) -> int:
    import json

    from shoal.report.page import page

    if arguments.compare and arguments.run is not None:
        raise InputError("--compare names both runs itself", remedy="leave the other one out")
    words = arguments.compare or [_named(arguments.run)]
    runs = [_data(word) for word in words]
    if arguments.json:
        print(json.dumps(runs[0] if len(runs) == 1 else {"runs": runs}, allow_nan=False))
        return 0
    names = [run["run"]["workflow"] for run in runs]
    title = f"{' and '.join(dict.fromkeys(names))}: {'a comparison of runs' if len(runs) > 1 else 'report of a run'}"
    path = arguments.output or _DEFAULT
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(title, {"runs": runs}))
    except OSError as error:
        raise InputError(f"the report {path!r} cannot be written: {error.strerror}") from None
    print(f"wrote {path}: {runs[0]['summary'][0]}")
    return 0


def _named(word: str | None) -> str:
    from shoal.cli.places import choose_workflow

    return word if word is not None else choose_workflow(None)


def _data(word: str) -> dict[str, Any]:
    """Everything that is shown of the run that a word names."""
    import time

    from shoal.engine.follow import Follower, Phase
    from shoal.report.choose import open_run, split_run
    from shoal.view.data import run_data

    path, number = split_run(word)
    workspace, view = open_run(path, number)
    assert view.start is not None
    holder = workspace.holder()
    is_live = holder is not None and holder.run == view.start.run and view.end is None
    foreseen = None
    if number is None and view.end is not None and len(view.attempts) <= _MOST_FORESEEN:
        from shoal.engine.foresight import foreseen as foresee

        follower = Follower(workspace)
        if follower.refresh() is Phase.ENDED:
            foreseen = foresee(workspace, follower.state)
    now = time.time() if is_live else None
    return run_data(view, workflow=os.path.basename(workspace.workflow), now=now, foreseen=foreseen)


_MOST_FORESEEN = 20_000
"""Of larger runs nothing is predicted from earlier ones, see `shoal.engine.foresight`."""
