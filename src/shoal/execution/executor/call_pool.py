"""Where an executor's calls run: the interface of call pools, and the pool of worker processes on this machine.

The call pool of a cluster is in `shoal.cluster.call_client`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from shoal.core.resources import Resources
from shoal.execution.calls.messages import CallRequest, CallResult, Outcome
from shoal.execution.calls.pickling import CallCancelledError, CallError, pickled
from shoal.execution.calls.worker_pool import WorkerPool

Watch: TypeAlias = Callable[[int], None]


class CallPool(Protocol):
    """Runs calls for a loop that polls the pool's descriptors; see `WorkerPool` for the methods they share."""

    def register(self, function: Callable[..., Any]) -> int: ...
    def release(self, function: int) -> None: ...
    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Runs a bundle, which uses these resources until its last call has ended."""

    def kill(self, task: int, attempt: int) -> bool: ...
    def collect(self, descriptor: int) -> list[CallResult]: ...
    def next_deadline(self) -> float | None: ...
    def enforce(self, now: float) -> list[CallResult]: ...
    def take_capacity(self) -> Resources | None:
        """Returns the new total resources of the pool; None if they have not changed since the last call."""

    def close(self, grace: float) -> None: ...


PoolFactory: TypeAlias = Callable[[Watch, Watch], CallPool]
"""Creates a call pool; the arguments tell the loop which descriptors to poll and which not to poll any more."""


class LocalCallPool(WorkerPool):
    """Worker processes of this machine."""

    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Runs a bundle; the scheduler limits how many run at once."""
        self.start(calls)

    def take_capacity(self) -> Resources | None:
        """Returns None: the resources of a machine do not change."""
        return None


def make_local_pool(on_open: Watch, on_close: Watch) -> CallPool:
    """Creates a pool of local workers that run in the current directory."""
    return LocalCallPool(
        directory=os.getcwd(),
        environment=os.environ,
        sys_path=sys.path,
        run_id=f"executor-{os.getpid()}",
        on_open=on_open,
        on_close=on_close,
    )


def not_run(task: int, attempt: int, error: CallError) -> CallResult:
    """Returns the result of an attempt that no worker received."""
    outcome: Outcome = "cancelled" if isinstance(error, CallCancelledError) else "error"
    return CallResult(task, attempt, outcome, b"", pickled(error), str(error), 0.0, 0.0, 0.0, 0.0, 0, b"")


def lost(task: int, attempt: int, when: float) -> CallResult:
    """Returns the result of an attempt whose outcome is lost; `when` is 0 if it certainly had not begun."""
    return CallResult(task, attempt, "lost", b"", None, "", when, when, 0.0, 0.0, 0, b"")
