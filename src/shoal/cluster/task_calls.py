"""Calls from a running task to its driver (`call`), meetings of the ranks of a task (`meet`), and the task's place.

In a task that a job server runs, `call("name", ...)` runs the function that the driver has registered under that name
and returns its result. `meet(value)` is for tasks on several machines: it returns the values of all ranks, in their
order, once all have arrived. The server side is in `shoal.cluster.job_server`. Every worker imports this
module but few tasks call their driver, so other modules are imported on first use.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal.cluster.messaging.access import Access, Role
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.messaging.envelope import Codec
from shoal.errors import InputError, RunError, ShoalError
from shoal.execution.calls.pickling import dumps_by_value
from shoal.execution.nets.task_calls import TimedResult, placed, sendable
from shoal.execution.processes.pinning import pinned

TYPE_CHECKING = False  # true for type checkers; importing typing would cost every start milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


CALL_SECONDS = 300.0
"""Seconds without a message after which a driver counts as unreachable."""

_lock = threading.Lock()
_driver: bytes | None = None
_lines: DriverConnections | None = None


def attach(driver: bytes | None) -> None:
    """Sets the driver of this process, a pickled `DriverAddress`; the first call connects."""
    global _driver, _lines
    with _lock:
        before = _lines
        _driver, _lines = driver, None
    if before is not None:
        before.close()


def _connected() -> DriverConnections:
    global _lines
    with _lock:
        if _lines is None:
            if _driver is None:
                raise InputError(
                    "this process is not a task of a job server, so it has no driver",
                    remedy="call it in a task that shoal.runtime.JobServer runs",
                )
            import pickle

            _lines = DriverConnections(pickle.loads(_driver))
        return _lines


def call(name: str, /, *arguments: Any, timeout: float = CALL_SECONDS, **keywords: Any) -> Any:
    """Runs a function that the driver has registered under this name; raises `RunError` if it failed.

    Threads of a task may call at the same time; eight calls are in flight at most, further ones wait.
    """
    return _connected().call(name, arguments, keywords, timeout)


def meet(value: object = None, *, timeout: float = CALL_SECONDS) -> list[Any]:
    """Waits for all ranks of this task; returns their values, by rank."""
    rank, ranks = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_RANKS", "1"))
    return _connected().meet(value, rank, ranks, timeout)


AT_ONCE = 8
"""Maximum number of calls of one task in flight, and of calls of all tasks that a driver runs at the same time."""


class CallRequestMessage(msgspec.Struct, frozen=True, tag=True):
    """Requests a call of a function of the driver."""

    name: str
    arguments: bytes
    """Pickled positional and keyword arguments."""


class MeetRequest(msgspec.Struct, frozen=True, tag=True):
    """A rank of a task has arrived at a meeting."""

    task: str
    turn: int
    rank: int
    ranks: int
    value: bytes


class CallbackReply(msgspec.Struct, frozen=True, tag=True):
    """The result: a pickled value, or an error message."""

    value: bytes = b""
    problem: str = ""


Message = CallRequestMessage | MeetRequest | CallbackReply


def make_codec() -> Codec[Message]:
    return Codec[Message](Message)


class DriverAddress(msgspec.Struct, frozen=True):
    """The address of a task's driver."""

    access: Access
    task: str
    """Identifies this attempt of the task."""


class DriverConnections:
    """The connections of one task to its driver: one for each thread with a call in flight, up to a limit."""

    def __init__(self, driver: DriverAddress) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._room = threading.Semaphore(AT_ONCE)
        self._idle: list[Caller[Message]] = []
        self._is_closed = False
        self._turn = 0

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], timeout: float) -> Any:
        return self._ask(CallRequestMessage(name, dumps_by_value((arguments, keywords))), timeout)

    def meet(self, value: object, rank: int, ranks: int, timeout: float) -> list[Any]:
        with self._lock:
            self._turn += 1
            turn = self._turn
        found = self._ask(MeetRequest(self._driver.task, turn, rank, ranks, dumps_by_value(value)), timeout)
        return [pickle.loads(each) for each in found]

    def _ask(self, message: Message, timeout: float) -> Any:
        began = time.monotonic()
        with self._caller() as caller:
            try:
                answer = caller.ask(message, timeout)
            except ShoalError as error:
                late = time.monotonic() - began >= timeout
                what = f"did not reply within {timeout:g} s" if late else "is unreachable"
                # The message speaks of an agent, which the driver is not.
                raise RunError(f"the driver of this task {what}" + ("" if late else f": {_said(error)}")) from error
        assert isinstance(answer, CallbackReply)
        if answer.problem:
            raise RunError(answer.problem)
        return pickle.loads(answer.value)

    @contextmanager
    def _caller(self) -> Iterator[Caller[Message]]:
        """Returns a connection for exclusive use."""
        driver = self._driver
        with self._room:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            caller = idle or Caller(driver.access, make_codec(), role=Role.CLIENT, sender=driver.task)
            try:
                yield caller
            finally:
                with self._lock:
                    is_kept = not self._is_closed
                    if is_kept:
                        self._idle.append(caller)
                if not is_kept:
                    caller.close()

    def close(self) -> None:
        """Closes idle connections; those in use are closed by their users."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.close()


def _said(error: ShoalError) -> str:
    return (error.message if isinstance(error, InputError) else str(error)).replace("the agent at", "the driver at")


class Seat:
    """The place of one process of a task: environment, processors, driver and directory."""

    __slots__ = ("cpus", "directory", "driver", "environment")

    def __init__(
        self,
        environment: dict[str, str],
        cpus: tuple[int, ...],
        driver: bytes | None = None,
        directory: str | None = None,
    ) -> None:
        """`driver` is for `attach`."""
        self.environment, self.cpus = environment, cpus
        self.driver, self.directory = driver, directory


@contextmanager
def seated(seat: Seat) -> Iterator[None]:
    """Applies environment, processors, driver and directory of the task's place for the duration of a `with` block."""
    attach(seat.driver)
    try:
        with placed(seat.environment, seat.directory), pinned(seat.cpus):
            yield
    finally:
        attach(None)


def granted(function: Callable[..., Any]) -> Callable[..., TimedResult]:
    """Wraps the function for nodes, once for all its calls; each call passes its place."""

    def perform(seat: Seat, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> TimedResult:
        started, cpu = time.time(), time.process_time()
        with seated(seat):
            value = sendable(function(*arguments, **keywords))
        if isinstance(value, TimedResult):  # a command, which measures its own times
            return value
        return TimedResult(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform
