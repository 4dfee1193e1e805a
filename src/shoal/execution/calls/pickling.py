"""Pickling by value, for what the other side could not import: lambdas, closures, what the main program defines."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from shoal.errors import ShoalError

PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)
"""What plain pickling raises for something that may still be picklable by value."""
CachedFunction = type(functools.cache(len))
_OF_ONE_PROCESS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
    weakref.WeakKeyDictionary: weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary: weakref.WeakValueDictionary,
    weakref.WeakSet: weakref.WeakSet,
}
"""What cannot be sent, and is made anew: a worker that imported a function's module would have its own as well."""


def dumps_by_value(value: object) -> bytes:
    """The value with the definitions it needs; raises what cloudpickle raises if it cannot be pickled."""
    return _dumped(value, by_value_pickler())


def dumps_function(function: Callable[..., Any]) -> bytes:
    """The same for a function, which gets new locks in place of those that it uses.

    In an argument a new lock would be wrong, because the caller's own is meant.
    """
    return _dumped(function, by_value_pickler(of_function=True))


@functools.cache
def by_value_pickler(*, of_function: bool = False) -> Any:
    """cloudpickle's pickler, which also sends functions with `functools.cache`: it refers to those by their names."""
    # Loading it costs about 30 ms, which nobody pays whose functions and results all belong to modules.
    import cloudpickle  # type: ignore[import-untyped]  # it has no stubs

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]  # it has no stubs
        def reducer_override(self, value: Any) -> Any:
            make = _OF_ONE_PROCESS.get(type(value))
            if make is not None and (of_function or any(value is each for each in self.__dict__.get("of_classes", ()))):
                return make, ()
            if isinstance(value, type):
                self.__dict__.setdefault("of_classes", []).extend(_locks_of(value))
            if type(value) is CachedFunction and not _can_import(value, cloudpickle.list_registry_pickle_by_value()):
                return _cached_again, (value.__wrapped__, value.cache_parameters())
            return super().reducer_override(value)

    return ByValue


def _dumped(value: object, pickler: Any) -> bytes:
    file = io.BytesIO()
    pickler(file, 5).dump(value)
    return file.getvalue()


def _locks_of(kind: type) -> Iterator[object]:
    """Locks that belong to a class, not to its objects: its definition is sent, so the other side has its own."""
    for member in vars(kind).values():
        lock = getattr(member, "lock", None) if isinstance(member, functools.cached_property) else member
        if type(lock) in _OF_ONE_PROCESS:
            yield lock


def _cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _can_import(function: Any, by_value: set[str]) -> bool:
    """Whether a worker finds the function under its name; it does not in the modules that are sent by value."""
    module = getattr(function, "__module__", None) or "__main__"
    if module == "__main__" or any(module == each or module.startswith(each + ".") for each in by_value):
        return False
    found: Any = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


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
