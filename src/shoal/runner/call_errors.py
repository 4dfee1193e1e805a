"""Exceptions that come back from a worker, and how they travel.

An exception is pickled together with the worker's traceback as text; unpickled, it carries that text as its cause, as
`concurrent.futures` does it. What cannot travel is replaced by a `CallError` that names the type. This module imports
little: a worker loads it with its first failing call, the runner when it starts.
"""

from __future__ import annotations

import os
import pickle
import traceback
from types import TracebackType

from shoal.errors import ShoalError
from shoal.runner.call_pickle import dumps_by_value

_OWN_FOLDER = os.path.dirname(__file__) + os.sep


class RemoteTraceback(Exception):  # noqa: N818  # the name that users know from concurrent.futures
    """The traceback of a call, as text from the worker that ran it; the cause of the exception it belongs to."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        """The text between quotation marks of its own, so that it stands apart in the caller's traceback."""
        return f'\n"""\n{self.text}"""'


class CallError(ShoalError):
    """A call failed in a way that its own exception cannot tell the caller."""


class CallExitError(CallError):
    """The call tried to end its process (`sys.exit`, Ctrl-C); the caller must not be ended by that."""


class UnpicklableResultError(CallError):
    """The call returned something that cannot be sent back."""


class CallCrashedError(CallError):
    """The worker died while the call ran."""


class CallTimeoutError(CallError, TimeoutError):
    """The call ran longer than it was allowed to and was killed."""


class CallCancelledError(CallError):
    """The call was cancelled while it waited or ran."""


class _Travelling:
    """An exception on its way: pickles as a call that puts exception and traceback together again."""

    __slots__ = ("error", "text")

    def __init__(self, error: BaseException, text: str) -> None:
        self.error = error
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return arrive, (self.error, self.text)


def arrive(error: BaseException, text: str) -> BaseException:
    """Join an exception and the text of its traceback again, on the caller's side."""
    error.__cause__ = RemoteTraceback(text)
    return error


def describe(error: BaseException) -> tuple[bytes, str]:
    """The pickled exception and its traceback as text; always succeeds."""
    text = traceback_text(error)
    if not isinstance(error, Exception):
        error = CallExitError(f"the call ended with {error!r}")
    return _pickled(error, text), text


def traceback_text(error: BaseException) -> str:
    """The traceback from the first frame of the user's code on."""
    return "".join(traceback.format_exception(type(error), error, _of_user(error.__traceback__)))


def _of_user(found: TracebackType | None) -> TracebackType | None:
    """The traceback without the outermost frames, which are the worker's own; all of it if no others follow them."""
    inner = found
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        inner = inner.tb_next
    return inner if inner is not None else found


def pickled(error: CallError) -> bytes:
    """One of our own exceptions, pickled for a `CallResult`."""
    return pickle.dumps(error, 5)


def _pickled(error: BaseException, text: str) -> bytes:
    reasons = []
    for dumps in (_dumps, dumps_by_value):
        try:
            data = dumps(_Travelling(error, text))
            # Many exceptions pickle but do not unpickle (an `__init__` with more arguments): find out here.
            pickle.loads(data)
            return data
        except Exception as reason:  # the user's own `__reduce__` and `__init__` may raise anything
            reasons.append(f"{type(reason).__name__}: {reason}")
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    stand_in = CallError(f"the call raised {kind}, which cannot be sent back ({reasons[0]}): {_message(text)}")
    return pickle.dumps(_Travelling(stand_in, text), 5)


def _dumps(value: object) -> bytes:
    return pickle.dumps(value, 5)


def _message(text: str) -> str:
    """The last line of a traceback: type and message."""
    return text.rstrip().rpartition("\n")[2]
