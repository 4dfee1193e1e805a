"""The summary at the end of a run."""

from __future__ import annotations

from shoal.engine.local import LocalRun
from shoal.engine.session import Session


def summarise(session: Session, run: LocalRun) -> str:
    totals = run.statistics
    return f"{totals.done} done, {totals.up_to_date} up to date, {totals.failed} failed"
