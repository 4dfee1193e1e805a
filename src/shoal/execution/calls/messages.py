"""What goes into the function runner and what comes out of it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shoal.core.policies.retry import AttemptOutcome as Verdict

Outcome: TypeAlias = Literal["ok", "error", "crashed", "timeout", "cancelled", "lost"]
"""`ok` and `error`: the call returned or raised. `crashed`: it took its worker with it. `timeout`, `cancelled`: it was
ended on purpose. `lost`: it did not run to its end through no fault of its own, and should be started again without
being charged an attempt: its worker died of another call, or a long call kept it waiting."""


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """One attempt of one task that is a Python call."""

    task: int
    attempt: int
    function: int
    """A number from `WorkerPool.register`."""
    payload: bytes
    """From `plain_payload` or `task_payload`."""
    timeout: float | None = None


class CallResult(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ended. Times are seconds since the epoch; 0 for a call that was not begun."""

    task: int
    attempt: int
    outcome: Outcome
    value: bytes
    """The pickled result; empty unless `ok`."""
    error: bytes | None
    """A pickled exception that carries the worker's traceback as its cause; None for `ok` and `lost`."""
    error_text: str
    """The same for people: a traceback, or one sentence."""
    started: float
    ended: float
    cpu_user: float
    cpu_system: float
    max_rss_bytes: int
    """Peak memory; 0 if the call was too short to be measured."""
    output: bytes
    """What the call wrote to standard output and standard error."""

    def verdict(self) -> Verdict:
        """The outcome in the broker's words."""
        return Verdict.UNBEGUN if self.outcome == "lost" and not self.started else _VERDICTS[self.outcome]


_VERDICTS: dict[Outcome, Verdict] = {
    "ok": Verdict.OK,
    "error": Verdict.FAILED,
    "crashed": Verdict.CRASHED,
    "timeout": Verdict.TIMEOUT,
    "cancelled": Verdict.CANCELLED,
    "lost": Verdict.LOST,
}
