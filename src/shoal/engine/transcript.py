"""The attempts of one task in a ledger, with where their output stands.

A task is found by the names that the runs gave it, and by its place, which outlives a ledger's mending. What the user
may call a task beyond that is in the workflow itself and left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import RunEnded, RunStarted, TaskEnded, TasksPlanned, TaskStarted, TasksVanished, decode
from shoal.plan.identity import place_of_text


class Attempts(msgspec.Struct):
    """What is recorded of one task."""

    ended: list[TaskEnded] = []
    runs: list[int] = []
    """For each of these, which run it was in, counted from 1."""
    running: TaskStarted | None = None
    """The attempt that the last run has started and not ended: it runs, or was killed together with the run."""

    def of_last_run(self) -> list[TaskEnded]:
        """The attempts of the last run that had any."""
        return [record for record, run in zip(self.ended, self.runs, strict=True) if run == self.runs[-1]]


def find_attempts(workspace: Workspace, names: Sequence[str]) -> Attempts:
    """Reads the ledger for everything about the task that goes by these names."""
    places = [place_of_text(prefix + name) for name in names for prefix in ("", "\1")]
    found = Attempts()
    numbers: list[int] = []
    run = 0
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        match record:
            case RunStarted():
                run += 1
                numbers, found.running = [], None
            case TasksPlanned():
                numbers += [task for task, name in zip(record.first, record.names, strict=True) if name in names]
            case TaskStarted() if record.task in numbers:
                found.running = record
            case TaskEnded() if record.place in places or record.task in numbers:
                found.ended.append(record)
                found.runs.append(run)
                found.running = None
            case TasksVanished() if found.running is not None and found.running.task in record.tasks:
                found.running = None
            case RunEnded():
                found.running = None
    return found
