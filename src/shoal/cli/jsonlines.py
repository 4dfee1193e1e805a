"""The display for programs: one JSON object per line and event, on standard output."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO

from shoal.cli.display import QuietDisplay
from shoal.cli.planned import count_up_to_date
from shoal.cli.screen import Screen
from shoal.engine.attempt import EndedAttempt
from shoal.engine.session import Run, Session
from shoal.engine.statistics import Statistics


class JsonDisplay(QuietDisplay):
    """Writes `run_started`, `task_planned` (with --explain), `task_ended`, `note` and `run_ended`."""

    tell_all = True

    def __init__(self, stream: TextIO) -> None:
        super().__init__(Screen(stream))
        self._pending: list[str] = []

    def begin(self, session: Session) -> None:
        plan = session.plan
        self._emit(
            "run_started",
            time=time.time(),
            run=session.identity,
            workflow=session.workspace.workflow,
            to_run=len(plan.to_run()),
            up_to_date=count_up_to_date(plan),
        )

    def explain(self, name: str, reason: str) -> None:
        self._emit("task_planned", name=name, reason=reason)

    def attempt_over(self, name: str, attempt: EndedAttempt, verdict: str) -> None:
        self._emit(
            "task_ended",
            time=attempt.ended,
            name=name,
            attempt=attempt.attempt,
            verdict=verdict,
            outcome=attempt.outcome.value,
            status=attempt.status,
            seconds=round(attempt.ended - attempt.started, 6),
            cpu=round(attempt.user + attempt.system, 6),
            memory_bytes=attempt.max_rss,
            message=attempt.message,
        )

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def tick(self, statistics: Statistics, now: float) -> None:
        self._flush()

    def end(self, session: Session, run: Run, status: int) -> None:
        totals = run.statistics
        self._emit(
            "run_ended",
            time=totals.ended,
            status=status,
            stopped=run.stop_reason,
            done=totals.done,
            up_to_date=totals.up_to_date,
            failed=totals.failed,
            not_run=totals.to_run() - totals.done - totals.failed,
            seconds=round(totals.ended - totals.started, 6),
            work=round(totals.work, 6),
            cpu=round(totals.cpu, 6),
            utilisation=round(totals.utilisation(), 4),
        )
        self._flush()

    def _emit(self, event: str, **fields: Any) -> None:
        self._pending.append(json.dumps({"event": event, **fields}))  # escapes names that are not UTF-8, too

    def _flush(self) -> None:
        """Many tasks may end between two ticks; they are written together."""
        if self._pending:
            self.screen.say("\n".join(self._pending))
            self._pending.clear()
