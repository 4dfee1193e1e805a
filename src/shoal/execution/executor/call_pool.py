"""Who runs an executor's calls: what the engine asks of a crew, and the crew of this machine.

The crew of a cluster is `shoal.cluster.call_client`.
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
    """Runs calls for a loop that polls the descriptors it is told of; see `WorkerPool` for the shared methods."""

    def register(self, function: Callable[..., Any]) -> int: ...
    def release(self, function: int) -> None: ...
    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Run a bundle, which takes these resources until the last call is over."""

    def kill(self, task: int, attempt: int) -> bool: ...
    def collect(self, descriptor: int) -> list[CallResult]: ...
    def next_deadline(self) -> float | None: ...
    def enforce(self, now: float) -> list[CallResult]: ...
    def take_capacity(self) -> Resources | None:
        """What there is from now on to run calls with; None if that has not changed since the last time."""

    def close(self, grace: float) -> None: ...


Hire: TypeAlias = Callable[[Watch, Watch], CallPool]
"""Makes a crew that tells which descriptors to poll, and which not to poll any more."""


class LocalCallPool(WorkerPool):
    """Worker processes of this machine."""

    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Run a bundle; the broker sees to it that there are not too many."""
        self.start(calls)

    def take_capacity(self) -> Resources | None:
        """A machine stays as it is."""
        return None


def hire_locally(on_open: Watch, on_close: Watch) -> CallPool:
    """Workers that start where the program is now."""
    return LocalCallPool(
        directory=os.getcwd(),
        environment=os.environ,
        sys_path=sys.path,
        run_id=f"executor-{os.getpid()}",
        on_open=on_open,
        on_close=on_close,
    )


def not_run(task: int, attempt: int, error: CallError) -> CallResult:
    """The result of an attempt that no worker got."""
    outcome: Outcome = "cancelled" if isinstance(error, CallCancelledError) else "error"
    return CallResult(task, attempt, outcome, b"", pickled(error), str(error), 0.0, 0.0, 0.0, 0.0, 0, b"")


def lost(task: int, attempt: int, when: float) -> CallResult:
    """The result of an attempt of which nothing more will be heard; `when` is 0 if it was certainly not begun."""
    return CallResult(task, attempt, "lost", b"", None, "", when, when, 0.0, 0.0, 0, b"")
