"""Calls from a running task to the program that drives its workflow: `call` a function there, `meet` the other ranks.

In a task that a job server runs, `call("name", ...)` runs the function which the driver registered under that name and
returns what it gave. `meet(value)` is for tasks on several machines: it returns the values of all ranks, in their
order, once all have come. The connections are `shoal.cluster.job_servers.task_calls`, the driver's side is
`shoal.cluster.job_servers.job_server`. Every worker loads this module, and few of its tasks ask anything, so the
rest is loaded by those who do.
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

TYPE_CHECKING = False  # what type checkers take for true; importing it would cost every start milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


CALL_SECONDS = 300.0
"""A driver that says nothing for so long does not answer any more."""

_lock = threading.Lock()
_driver: bytes | None = None
_lines: DriverConnections | None = None


def attach(driver: bytes | None) -> None:
    """From now on this process has this driver, a pickled `Driver`; connected when something is asked."""
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
                    "this process is no task of a job server, so there is no driver to call",
                    remedy="call it in a task that shoal.runtime.JobServer runs",
                )
            import pickle

            _lines = DriverConnections(pickle.loads(_driver))
        return _lines


def call(name: str, /, *arguments: Any, timeout: float = CALL_SECONDS, **keywords: Any) -> Any:
    """Run a function of the driver, which registered it under this name; raises `RunError` if that failed.

    Threads of a task may call at the same time; eight are heard, and the others wait for them.
    """
    return _connected().call(name, arguments, keywords, timeout)


def meet(value: object = None, *, timeout: float = CALL_SECONDS) -> list[Any]:
    """Wait for all ranks of this task; what each of them brought, by rank."""
    rank, ranks = int(os.environ.get("SHOAL_RANK", "0")), int(os.environ.get("SHOAL_RANKS", "1"))
    return _connected().meet(value, rank, ranks, timeout)


AT_ONCE = 8
"""Calls of one task under way, and calls of all tasks that a driver runs at the same time."""


class CallRequestMessage(msgspec.Struct, frozen=True, tag=True):
    """A task wants a function of the driver to be run."""

    name: str
    arguments: bytes
    """Pickled: positions and keywords."""


class MeetRequest(msgspec.Struct, frozen=True, tag=True):
    """A rank of a task has come to where all meet."""

    task: str
    turn: int
    rank: int
    ranks: int
    value: bytes


class CallbackReply(msgspec.Struct, frozen=True, tag=True):
    """What came of it: a pickled value, or a sentence."""

    value: bytes = b""
    problem: str = ""


Message = CallRequestMessage | MeetRequest | CallbackReply


def make_codec() -> Codec[Message]:
    return Codec[Message](Message)


class DriverAddress(msgspec.Struct, frozen=True):
    """Where a task finds its driver."""

    access: Access
    task: str
    """Tells this attempt from all others."""


class DriverConnections:
    """The connections of one task to its driver: one for each thread that asks at the same time, up to a bound."""

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
                what = f"did not answer within {timeout:g} s" if late else "cannot be asked"
                # The connection speaks of agents, which the driver is not.
                raise RunError(f"the driver of this task {what}" + ("" if late else f": {_said(error)}")) from error
        assert isinstance(answer, CallbackReply)
        if answer.problem:
            raise RunError(answer.problem)
        return pickle.loads(answer.value)

    @contextmanager
    def _caller(self) -> Iterator[Caller[Message]]:
        """A connection that nobody else uses meanwhile."""
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
        """Those in use are closed by whoever uses them."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.close()


def _said(error: ShoalError) -> str:
    return (error.message if isinstance(error, InputError) else str(error)).replace("the agent at", "the driver at")


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
        """`driver` is for `shoal.cluster.job_servers.task_calls.attach`."""
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


def granted(function: Callable[..., Any]) -> Callable[..., TimedResult]:
    """The function as it is sent to nodes, once for all its calls; each call says where it sits."""

    def perform(seat: Seat, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> TimedResult:
        started, cpu = time.time(), time.process_time()
        with seated(seat):
            value = sendable(function(*arguments, **keywords))
        if isinstance(value, TimedResult):  # a command, which times itself
            return value
        return TimedResult(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform
