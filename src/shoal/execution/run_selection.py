"""Selects a run of a workflow: `FILE` (latest), `FILE@2` (second run), `FILE@-1` (the one before the last)."""

from __future__ import annotations

import os
import re

import numpy as np

from shoal.errors import InputError
from shoal.execution.workflow_loader import missing_workflow
from shoal.ledger.bulk_reader import LedgerTail, read_into
from shoal.ledger.records import HEADER_BYTES, RunStarted, decode
from shoal.ledger.views.run import RunView
from shoal.ledger.workspace import Workspace

_NUMBERED = re.compile(r"(.+)@(-?[0-9]{1,9})")
_MARKED = re.compile(r"(.+)@([^@/]*)")
_RUN = b"\xa3run"


def split_run(word: str) -> tuple[str, int | None]:
    """Returns the workflow and the number of the run. A file that exists under the whole name takes precedence."""
    found = _NUMBERED.fullmatch(word)
    if os.path.exists(word):
        return word, None
    if found is None:
        _refuse_no_number(word)
        return word, None
    return found[1], int(found[2])


def _refuse_no_number(word: str) -> None:
    """Raises an error for `FILE@x` with an invalid run number if FILE exists."""
    marked = _MARKED.fullmatch(word)
    if marked is not None and os.path.isfile(marked[1]):
        raise InputError(
            f"{marked[2]!r} in {word!r} is not a run number",
            remedy="the first run is @1, the latest needs no number",
        )


def open_run(path: str, number: int | None) -> tuple[Workspace, RunView]:
    """Opens a run, or raises `InputError` if it does not exist. Without a number: the latest run that had something to
    do."""
    workspace = Workspace(path)
    if not os.path.isfile(workspace.ledger):
        if not os.path.isfile(path):
            raise missing_workflow(path)
        raise InputError(f"{path!r} has not been run yet", remedy="run it first")
    view = RunView(skip_idle=number is None)
    read_into(view, LedgerTail(workspace.ledger), last=numbered_run(workspace, path, number))
    if view.start is None:
        refuse_unreadable(path, workspace.ledger)
        raise InputError(f"there is no run in the ledger of {path!r}", remedy="run it first")
    return workspace, view


def refuse_unreadable(path: str, ledger: str) -> None:
    """Raises an error if a ledger in which no run was found is damaged."""
    records, damaged = count_records(ledger)
    if damaged:
        what = "no run" if records else "nothing"
        raise InputError(
            f"the ledger of {os.path.basename(path)!r} is damaged: {what} in it is readable",
            remedy="'shoal run' repairs it and runs the tasks again whose records are lost",
        )


def count_records(ledger: str) -> tuple[int, int]:
    """Returns the number of records of a ledger, and the number of bytes that belong to none; its end may be being
    written."""
    records = covered = 0
    for found in LedgerTail(ledger).stretches():
        rows = found.valid_rows(np.arange(len(found)))
        records += len(rows)
        covered += int((found.ends[rows] - found.begins[rows]).sum()) + HEADER_BYTES * len(rows)
    size = os.path.getsize(ledger) if os.path.exists(ledger) else 0
    return records, max(0, size - covered)


def numbered_run(workspace: Workspace, path: str, number: int | None) -> int | None:
    """Returns the number of the selected run, counted from 1; None for the latest."""
    if number is None:
        return None
    runs = count_runs(workspace.ledger)
    wanted = number if number > 0 else runs + number
    if number == 0 or not 1 <= wanted <= runs:  # runs are counted from 1, and -1 is the one before the last
        raise InputError(f"there is no run {number} of {path!r}", remedy=_available_runs(runs))
    return wanted


def _available_runs(runs: int) -> str:
    if runs < 2:
        return "its ledger has one run, @1" if runs else "its ledger has none"
    return f"its ledger has {runs} runs: the first is @1, the one before the last @-1"


def count_runs(ledger: str) -> int:
    """Returns the number of runs that have begun in a ledger."""
    runs = 0
    for payloads in LedgerTail(ledger).pieces():
        runs += sum(isinstance(decode(payload), RunStarted) for payload in payloads if _RUN in payload[:8])
    return runs
