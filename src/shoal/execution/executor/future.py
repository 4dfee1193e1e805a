"""The future of one call, and how a failed call fails the calls that need its result."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from shoal.errors import ShoalError
from shoal.execution.calls.messages import CallResult
from shoal.execution.calls.pickling import CallError
from shoal.execution.executor.arguments import dumps
from shoal.extensions import load_extension


class DependencyFailed(ShoalError):  # noqa: N818  # what happened, in the words users search for
    """A call was not run because a call that it needs has failed; the cause is that call's exception."""

    def __init__(self, message: str, failed: str = "") -> None:
        super().__init__(message, failed)
        self.message = message
        self.failed = failed
        """The name of the function whose call failed first."""

    def __str__(self) -> str:
        return self.message


def dependency_failed(name: str, needed: str, error: BaseException) -> DependencyFailed:
    """Returns the error of a call of `name` that needs, directly or not, a failed call of `needed`."""
    if isinstance(error, DependencyFailed) and error.__cause__ is not None:
        needed, error = error.failed, error.__cause__
    failed = DependencyFailed(f"{name} was not run: {needed}, which it needs, failed with {in_a_line(error)}", needed)
    failed.__cause__ = error
    return failed


def in_a_line(error: BaseException) -> str:
    """Returns the type of an exception and the first line of its message."""
    said = str(error).partition("\n")[0]
    return _printable(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _printable(text: str) -> str:
    """Removes terminal control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def unpickled(pickled: bytes, name: str) -> Any:
    """Returns what a call returned; raises `CallError` if it cannot be unpickled in this process."""
    try:
        return pickle.loads(pickled)
    except Exception as error:  # the user's `__setstate__` may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise CallError(f"{name} returned something that cannot be unpickled here ({reason})") from error


def unpickled_error(pickled: bytes | None, text: str) -> BaseException:
    """Returns the exception that ended a call, or the best substitute."""
    if pickled is None:
        return CallError(text or "the worker process was lost repeatedly")
    try:
        error = pickle.loads(pickled)
    except Exception:  # as above
        error = None
    return error if isinstance(error, BaseException) else CallError(text)


class CallFuture(Future[Any]):
    """A future whose result stays pickled until it is read.

    The standard library can cancel pending futures only. This class also cancels running calls. So for the base class
    the future stays pending until the call has ended, and `running` is implemented here.
    """

    def __init__(self, task: int, name: str, owner: object, ask_to_cancel: Callable[[int], None]) -> None:
        super().__init__()
        self.task = task
        self.name = name
        self.owner = owner
        """The executor loop that runs the call."""
        self.on_attempt: Callable[[CallResult], None] | None = None
        """Called with each ended attempt, in the loop's thread and before the future is done."""
        self._ask_to_cancel = ask_to_cancel
        self._begun = False
        self._pickled: bytes | None = None
        self._value: Any

    def cancel(self) -> bool:
        """Cancels the call: kills a running call with its worker; a waiting call never runs. Returns False if it has
        ended."""
        if not super().cancel():
            return False
        self._ask_to_cancel(self.task)
        return True

    def running(self) -> bool:
        """Returns whether a worker has received the call and it has not ended."""
        return self._begun and not self.done()

    def result(self, timeout: float | None = None) -> Any:
        """Returns the result; raises what the call raised, or `TimeoutError`."""
        super().result(timeout)
        return self._opened()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns what the call raised, or None."""
        error = super().exception(timeout)
        if error is not None:
            return error
        try:
            self._opened()
        except CallError as unreadable:
            return unreadable
        return None

    def state(self) -> str:
        """Returns `waiting`, `running`, `done`, `failed`, `not run` or `cancelled`; unpickles nothing."""
        if self.cancelled():
            return "cancelled"
        if not self.done():
            return "running" if self._begun else "waiting"
        error = failure_of(self)
        return "done" if error is None else "not run" if isinstance(error, DependencyFailed) else "failed"

    def failure(self) -> str:
        """Returns the error of a failed call in one line; an empty string for others."""
        error = failure_of(self) if self.done() else None
        return "" if error is None else in_a_line(error)

    def __repr__(self) -> str:
        said = self.failure()
        return _printable(f"<{type(self).__name__} of {self.name}: {self.state()}{f', {said[:200]}' if said else ''}>")

    def _repr_html_(self) -> str:
        return str(load_extension("line_of")(self.name, self.state(), self.failure()))

    def _opened(self) -> Any:
        pickled = self._pickled
        if pickled is not None:
            # Two threads may get here at the same time: the value of the first one counts.
            self.__dict__.setdefault("_value", unpickled(pickled, self.name))
            self._pickled = None
        return self._value

    # Called by the executor's loop.

    def begin(self) -> bool:
        """Marks the call as passed to a worker; returns False if it has been cancelled."""
        self._begun = True  # set first: from the next line on, `cancel` has to kill a running call
        return not self.cancelled()

    def deliver(self, pickled: bytes) -> bool:
        """Sets the result; returns False if the call was cancelled meanwhile."""
        self._pickled = pickled
        try:
            self.set_result(None)
        except InvalidStateError:
            self.notify_cancelled()
            return False
        return True

    def fail_with(self, error: BaseException) -> None:
        """Sets the exception, unless the call was cancelled meanwhile."""
        try:
            self.set_exception(error)
        except InvalidStateError:
            self.notify_cancelled()

    def notify_cancelled(self) -> None:
        """Cancels the future if it is not yet cancelled, and notifies `wait` and `as_completed`. Called once, when the
        loop removes the call."""
        if super().cancel():
            self.set_running_or_notify_cancel()


def pickled_result(future: Future[Any]) -> bytes:
    """Returns the pickled result of a successful future of this executor or another."""
    kept = future._pickled if isinstance(future, CallFuture) else None
    return kept if kept is not None else dumps(future.result())


def failure_of(future: Future[Any]) -> BaseException | None:
    """Returns the exception of a future that is done, None if it was cancelled; does not unpickle a result."""
    return None if future.cancelled() else Future.exception(future)


def has_failed(future: Future[Any]) -> bool:
    """Returns whether a future that is done has no result."""
    return future.cancelled() or Future.exception(future) is not None
