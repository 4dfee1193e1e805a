"""What a node is sent for a granted task: a function that takes its place first, runs the user's own, and leaves.

Taking the place means: held to the granted processors, with the variables that tell of hosts, ranks and devices, and
with a line to the driver. Worker processes run one call at a time, and the next one has a place of its own. Every
worker loads this module: it is kept small.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

from shoal.nets.work import Timed, placed, sendable
from shoal.runner.pinning import pinned
from shoal.runtime.calls import attach

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class Seat:
    """Where one process of a task sits."""

    __slots__ = ("cpus", "directory", "driver", "environment")

    def __init__(
        self,
        environment: dict[str, str],
        cpus: tuple[int, ...],
        driver: bytes | None = None,
        directory: str | None = None,
    ) -> None:
        """`driver` is for `shoal.runtime.calls.attach`."""
        self.environment, self.cpus = environment, cpus
        self.driver, self.directory = driver, directory


@contextmanager
def seated(seat: Seat) -> Iterator[None]:
    """While this lasts the process is where the task was granted its place."""
    attach(seat.driver)
    try:
        with placed(seat.environment, seat.directory), pinned(seat.cpus):
            yield
    finally:
        attach(None)


def granted(function: Callable[..., Any]) -> Callable[..., Timed]:
    """The function as it is sent to nodes, once for all its calls; each call says where it sits."""

    def perform(seat: Seat, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Timed:
        started, cpu = time.time(), time.process_time()
        with seated(seat):
            value = sendable(function(*arguments, **keywords))
        if isinstance(value, Timed):  # a command, which times itself
            return value
        return Timed(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform
