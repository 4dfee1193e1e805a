"""The future of one call, and what a call's failure does to the calls that need it."""

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
    """A call was not run because one whose result it needs has failed; the cause is that one's exception."""

    def __init__(self, message: str, failed: str = "") -> None:
        super().__init__(message, failed)
        self.message = message
        self.failed = failed
        """The name of the function whose call failed first."""

    def __str__(self) -> str:
        return self.message


def dependency_failed(name: str, needed: str, error: BaseException) -> DependencyFailed:
    """What becomes of a call of `name` when `error` came out of a call of `needed`, or of one that it needed."""
    if isinstance(error, DependencyFailed) and error.__cause__ is not None:
        needed, error = error.failed, error.__cause__
    failed = DependencyFailed(f"{name} was not run: {needed}, which it needs, failed with {in_a_line(error)}", needed)
    failed.__cause__ = error
    return failed


def in_a_line(error: BaseException) -> str:
    """The kind of an exception and the first line of what it says."""
    said = str(error).partition("\n")[0]
    return _printable(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _printable(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def unpickled(pickled: bytes, name: str) -> Any:
    """What a call returned; raises `CallError` if it cannot be put together in this process."""
    try:
        return pickle.loads(pickled)
    except Exception as error:  # the user's own `__setstate__` may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise CallError(f"{name} returned something that cannot be unpickled here ({reason})") from error


def unpickled_error(pickled: bytes | None, text: str) -> BaseException:
    """The exception that ended a call, or what is known of it."""
    if pickled is None:
        return CallError(text or "the worker process was lost again and again")
    try:
        error = pickle.loads(pickled)
    except Exception:  # as above
        error = None
    return error if isinstance(error, BaseException) else CallError(text)


class CallFuture(Future[Any]):
    """A future whose result stays pickled until somebody asks for it.

    The standard library lets only pending futures be cancelled. Ours also cancels a call that runs, so to the base
    class it stays pending until it is over, and `running` is answered here.
    """

    def __init__(self, task: int, name: str, owner: object, ask_to_cancel: Callable[[int], None]) -> None:
        super().__init__()
        self.task = task
        self.name = name
        self.owner = owner
        """The engine that runs the call."""
        self.heard: Callable[[CallResult], None] | None = None
        """Told of each attempt that ends, by the engine's thread and before the future is done."""
        self._ask_to_cancel = ask_to_cancel
        self._begun = False
        self._pickled: bytes | None = None
        self._value: Any

    def cancel(self) -> bool:
        """Give the call up. One that runs is ended with its worker; one that waits never runs. False if it is over."""
        if not super().cancel():
            return False
        self._ask_to_cancel(self.task)
        return True

    def running(self) -> bool:
        """Whether a worker has been given the call, and it is not over."""
        return self._begun and not self.done()

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned; raises what it raised, or `TimeoutError` if it is not over in time."""
        super().result(timeout)
        return self._opened()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None."""
        error = super().exception(timeout)
        if error is not None:
            return error
        try:
            self._opened()
        except CallError as unreadable:
            return unreadable
        return None

    def state(self) -> str:
        """In a word: `waiting`, `running`, `done`, `failed`, `not run` or `cancelled`; nothing is unpickled for it."""
        if self.cancelled():
            return "cancelled"
        if not self.done():
            return "running" if self._begun else "waiting"
        error = failure_of(self)
        return "done" if error is None else "not run" if isinstance(error, DependencyFailed) else "failed"

    def failure(self) -> str:
        """What a call that has failed ended with, in a line; nothing for others."""
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
            # Two threads may both get here: the value of the first one counts.
            self.__dict__.setdefault("_value", unpickled(pickled, self.name))
            self._pickled = None
        return self._value

    # The rest is for the engine.

    def begin(self) -> bool:
        """Note that a worker gets the call now; false if it has been cancelled."""
        self._begun = True  # first: whoever cancels after the next line cancels a call that runs
        return not self.cancelled()

    def deliver(self, pickled: bytes) -> bool:
        """Set the result; false if the call was cancelled meanwhile."""
        self._pickled = pickled
        try:
            self.set_result(None)
        except InvalidStateError:
            self.tell_cancelled()
            return False
        return True

    def break_off(self, error: BaseException) -> None:
        """Set the exception, unless the call was cancelled meanwhile."""
        try:
            self.set_exception(error)
        except InvalidStateError:
            self.tell_cancelled()

    def tell_cancelled(self) -> None:
        """Cancel it if nobody has, and tell those who wait for several futures; once, when the engine lets go of it."""
        if super().cancel():
            self.set_running_or_notify_cancel()


def pickled_result(future: Future[Any]) -> bytes:
    """The result of a future that is done without failure, of this executor or another."""
    kept = future._pickled if isinstance(future, CallFuture) else None
    return kept if kept is not None else dumps(future.result())


def failure_of(future: Future[Any]) -> BaseException | None:
    """The exception of a future that is done, None if it was cancelled; a result is left pickled."""
    return None if future.cancelled() else Future.exception(future)


def has_failed(future: Future[Any]) -> bool:
    """Whether a future that is done has no result."""
    return future.cancelled() or Future.exception(future) is not None
