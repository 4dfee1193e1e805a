"""Reading a workflow's ledger in tests."""

from __future__ import annotations

from pathlib import Path

from shoal.ledger.file import LedgerReader
from shoal.ledger.records import Record, RunStarted, TaskEnded, decode


def ledger_path(workflow: Path) -> Path:
    return workflow.parent / ".shoal" / workflow.name / "ledger"


def records(workflow: Path) -> list[Record]:
    found = [decode(payload) for payload in LedgerReader(str(ledger_path(workflow))).payloads()]
    return [record for record in found if record is not None]


def accepted(workflow: Path) -> list[TaskEnded]:
    """Every accepted result, in the order of acceptance, over all runs."""
    return [record for record in records(workflow) if isinstance(record, TaskEnded) and record.outcome == "ok"]


def run_ids(workflow: Path) -> list[str]:
    return [record.run for record in records(workflow) if isinstance(record, RunStarted)]


def final_records(workflow: Path) -> list[TaskEnded]:
    """The last word on every task, successful or not."""
    return [record for record in records(workflow) if isinstance(record, TaskEnded) and record.final]
