"""Request and result of a Python call in a worker: the interface of `WorkerPool`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shoal.core.policies.retry import AttemptOutcome as Verdict

Outcome: TypeAlias = Literal["ok", "error", "crashed", "timeout", "cancelled", "lost"]
"""`ok` and `error`: the call returned or raised. `crashed`: its worker died during it. `timeout`, `cancelled`: it was
killed on purpose. `lost`: it did not finish through no fault of its own, and should be restarted without counting as an
attempt: its worker died during another call, or it waited too long behind a long call."""


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a task that is a Python call."""

    task: int
    attempt: int
    function: int
    """A number from `WorkerPool.register`."""
    payload: bytes
    """From `plain_payload` or `task_payload`."""
    timeout: float | None = None


class CallResult(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ended. Times are seconds since the epoch; 0 for a call that never began."""

    task: int
    attempt: int
    outcome: Outcome
    value: bytes
    """The pickled result; empty unless `ok`."""
    error: bytes | None
    """A pickled exception with the worker's traceback as its cause; None for `ok` and `lost`."""
    error_text: str
    """The same as text: a traceback, or one sentence."""
    started: float
    ended: float
    cpu_user: float
    cpu_system: float
    max_rss_bytes: int
    """Peak memory; 0 if the call was too short to measure."""
    output: bytes
    """What the call wrote to standard output and standard error."""

    def verdict(self) -> Verdict:
        """The outcome in the scheduler's terms."""
        return Verdict.UNBEGUN if self.outcome == "lost" and not self.started else _VERDICTS[self.outcome]


_VERDICTS: dict[Outcome, Verdict] = {
    "ok": Verdict.OK,
    "error": Verdict.FAILED,
    "crashed": Verdict.CRASHED,
    "timeout": Verdict.TIMEOUT,
    "cancelled": Verdict.CANCELLED,
    "lost": Verdict.LOST,
}
