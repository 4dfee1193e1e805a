"""Open calls of an executor: single calls with a future each, and stretches of a `map`.

Both implement `PendingCalls`. They complete futures and pass values on; the executor's loop decides when. The loop
calls everything here from its own thread, except `results`, which is the caller's side of a `map`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeAlias

from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.executor.arguments import Unfilled
from shoal.execution.executor.future import (
    CallFuture,
    dependency_failed,
    failure_of,
    pickled_result,
    unpickled,
    unpickled_error,
)


class PendingCalls(Protocol):
    """One call, or several alike."""

    function: Callable[..., Any]
    """The function that the worker calls."""
    number: int
    """The number of the function in the call pool, once it is registered."""
    name: str

    def request(self, task: int, attempt: int) -> CallRequest | None: ...
    def succeed(self, task: int, value: bytes) -> bool: ...
    def fail(self, task: int, result: CallResult | None) -> None: ...
    def fail_with(self, task: int, error: BaseException) -> None: ...
    def cancel(self, task: int) -> None: ...


class SingleCall:
    """A call with a future."""

    __slots__ = ("_request", "function", "future", "name", "number", "timeout")

    def __init__(
        self,
        function: Callable[..., Any],
        request: bytes | Unfilled,
        timeout: float | None,
        future: CallFuture,
    ) -> None:
        self.function = function
        self.future = future
        self.name = future.name
        self.number = -1
        self.timeout = timeout
        self._request = request

    @property
    def needs(self) -> tuple[Future[Any], ...]:
        """The futures whose results the call needs."""
        return tuple(self._request.futures) if isinstance(self._request, Unfilled) else ()

    def fill(self) -> None:
        """Inserts the results of all needs; raises what pickling the result of another library's future raises."""
        if isinstance(self._request, Unfilled):
            self._request = self._request.payload(pickled_result)

    def request(self, task: int, attempt: int) -> CallRequest | None:
        """Returns the request for a worker; None if the call was cancelled."""
        if not self.future.begin():
            return None
        assert isinstance(self._request, bytes), "started before its needs are done"
        return CallRequest(task, attempt, self.number, self._request, self.timeout)

    def succeed(self, task: int, value: bytes) -> bool:
        """Passes on the result; returns False if the call was cancelled."""
        return self.future.deliver(value)

    def fail(self, task: int, result: CallResult | None) -> None:
        """Passes on the error of the last attempt."""
        error, text = (result.error, result.error_text) if result is not None else (None, "")
        self.future.fail_with(unpickled_error(error, text))

    def fail_with(self, task: int, error: BaseException) -> None:
        """Ends the call with an exception that Shoal raises."""
        self.future.fail_with(error)

    def doom(self, needed: str, error: BaseException) -> None:
        """Ends the call because a call that it needs has failed."""
        self.future.fail_with(dependency_failed(self.name, needed, error))

    def cancel(self, task: int) -> None:
        """Marks the future as cancelled, if it is not already."""
        self.future.notify_cancelled()


class _Failure:
    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


_Arrived: TypeAlias = bytes | _Failure


class MapResults:
    """Collects the results of one `map` in any order, and yields them in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrived: list[_Arrived | None] = []
        """One slot per call; None until its result arrives, and again when it has been taken."""
        self._wanted = -1
        """The slot that the iterator waits for."""
        self._there = threading.Event()

    def add_place(self) -> int:
        """Adds a slot for one more call."""
        self.arrived.append(None)
        return len(self.arrived) - 1

    def put_future(self, place: int, future: CallFuture) -> None:
        """Stores the outcome of a call that has a future of its own."""
        if future.cancelled():
            self.put(place, _Failure(CancelledError()))
            return
        error = failure_of(future)
        self.put(place, _Failure(error) if error is not None else pickled_result(future))

    def put(self, place: int, value: _Arrived) -> None:
        """Stores a result."""
        self.arrived[place] = value
        if place == self._wanted:
            self._there.set()

    def take(self, place: int, deadline: float | None) -> bytes:
        """Waits for a result; raises what the call raised."""
        value = self.arrived[place]
        while value is None:
            self._there.clear()
            self._wanted = place
            # Checked again after setting `_wanted`: a result that arrived in between was not announced.
            if self.arrived[place] is None and not self._there.wait(_left(deadline)):
                raise TimeoutError
            value = self.arrived[place]
        self.arrived[place] = None
        if type(value) is bytes:
            return value
        assert isinstance(value, _Failure)
        try:
            raise value.error
        finally:
            del value  # breaks the reference cycle between the exception's traceback and this frame

    def results(self, deadline: float | None, give_up: Callable[[], None]) -> Generator[Any, None, None]:
        """Yields the values in order; calls `give_up` if the iterator is closed before the last one."""
        arrived = self.arrived
        place = 0
        try:
            while place < len(arrived):
                pickled = self.take(place, deadline)
                place += 1
                yield unpickled(pickled, self.name)  # not kept here: only the caller holds it
        finally:
            if place < len(arrived):
                give_up()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class MapStretch:
    """Consecutive calls of one `map`, which have consecutive task numbers."""

    def __init__(
        self,
        function: Callable[..., Any],
        tasks: range,
        payloads: list[bytes],
        timeout: float | None,
        results: MapResults,
    ) -> None:
        self.function = function
        self.tasks = tasks
        self.name = results.name
        self.number = -1
        self.cancelled = False
        self._payloads = payloads
        self._timeout = timeout
        self._results = results
        self._first = tasks.start
        self._place = len(results.arrived) - tasks.start  # task number + offset = slot
        results.arrived.extend([None] * len(tasks))

    def request(self, task: int, attempt: int) -> CallRequest | None:
        """Returns the request for a worker; None if the rest of the `map` was abandoned."""
        if self.cancelled:
            return None
        return CallRequest(task, attempt, self.number, self._payloads[task - self._first], self._timeout)

    def succeed(self, task: int, value: bytes) -> bool:
        """Passes on the result."""
        # the iterator may keep this object for long, and arguments can be large
        self._payloads[task - self._first] = b""
        self._results.put(task + self._place, value)
        return True

    def fail(self, task: int, result: CallResult | None) -> None:
        """Passes on the error of the last attempt."""
        error, text = (result.error, result.error_text) if result is not None else (None, "")
        self.fail_with(task, unpickled_error(error, text))

    def fail_with(self, task: int, error: BaseException) -> None:
        """Ends the call with an exception."""
        self._payloads[task - self._first] = b""
        self._results.put(task + self._place, _Failure(error))

    def cancel(self, task: int) -> None:
        """Ends the call as cancelled."""
        self.fail_with(task, CancelledError())
