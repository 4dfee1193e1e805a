"""Who runs an executor's calls: what the engine asks of a crew, and the crew of this machine.

The crew of a cluster is `shoal.futures.cluster`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from shoal.model.resources import Resources
from shoal.runner.call_messages import CallRequest, CallResult
from shoal.runner.function import FunctionRunner

Watch: TypeAlias = Callable[[int], None]


class Crew(Protocol):
    """Runs calls for a loop that polls the descriptors it is told of; see `FunctionRunner` for the shared methods."""

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


Hire: TypeAlias = Callable[[Watch, Watch], Crew]
"""Makes a crew that tells which descriptors to poll, and which not to poll any more."""


class LocalCrew(FunctionRunner):
    """Worker processes of this machine."""

    def put(self, calls: Sequence[CallRequest], place: int, needs: Resources) -> None:
        """Run a bundle; the broker sees to it that there are not too many."""
        self.start(calls)

    def take_capacity(self) -> Resources | None:
        """A machine stays as it is."""
        return None


def hire_locally(on_open: Watch, on_close: Watch) -> Crew:
    """Workers that start where the program is now."""
    return LocalCrew(
        directory=os.getcwd(),
        environment=os.environ,
        sys_path=sys.path,
        run_id=f"executor-{os.getpid()}",
        on_open=on_open,
        on_close=on_close,
    )
