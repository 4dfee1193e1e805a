"""Which run of which workflow is meant: `FILE`, `FILE@2` for its second run, `FILE@-1` for the one before the last."""

from __future__ import annotations

import os
import re

from shoal.engine.workspace import Workspace
from shoal.errors import InputError
from shoal.ledger.records import RunStarted, decode
from shoal.report.reading import LedgerTail, read_into
from shoal.view.run import RunView

_NUMBERED = re.compile(r"(.+)@(-?[0-9]{1,9})")
_RUN = b"\xa3run"


def split_run(word: str) -> tuple[str, int | None]:
    """The workflow and the number of the run; a file that is there by the whole name is meant by it."""
    found = _NUMBERED.fullmatch(word)
    if found is None or os.path.exists(word):
        return word, None
    return found[1], int(found[2])


def open_run(path: str, number: int | None) -> tuple[Workspace, RunView]:
    """The run that is meant, or a sentence that it is not there."""
    workspace = Workspace(path)
    if not os.path.isfile(workspace.ledger):
        there = os.path.isfile(path)
        raise InputError(
            f"{path!r} {'has not been run yet' if there else 'does not exist'}",
            remedy="run it first" if there else "name the workflow's file",
        )
    view = RunView()
    read_into(view, LedgerTail(workspace.ledger), last=numbered_run(workspace, path, number))
    if view.start is None:
        raise InputError(f"there is no run in the ledger of {path!r}", remedy="run it first")
    return workspace, view


def numbered_run(workspace: Workspace, path: str, number: int | None) -> int | None:
    """The number of the run that is meant, counted from 1; None for the last."""
    if number is None:
        return None
    runs = count_runs(workspace.ledger)
    wanted = number if number > 0 else runs + number
    if not 1 <= wanted <= runs:
        there = "one run" if runs == 1 else f"{runs} runs"
        raise InputError(
            f"there is no run {number} of {path!r}",
            remedy=f"its ledger has {there}: the first is @1, the one before the last @-1",
        )
    return wanted


def count_runs(ledger: str) -> int:
    """How many runs have begun in a ledger."""
    runs = 0
    for payloads in LedgerTail(ledger).pieces():
        runs += sum(isinstance(decode(payload), RunStarted) for payload in payloads if _RUN in payload[:8])
    return runs
