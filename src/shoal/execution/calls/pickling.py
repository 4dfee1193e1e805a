"""Pickling for workers: functions and values by value where workers cannot import them, exceptions with tracebacks."""

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
"""What plain pickling raises for a value that may still be picklable by value."""
CachedFunction = type(functools.cache(len))
_OF_ONE_PROCESS: dict[type, Callable[[], Any]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
    weakref.WeakKeyDictionary: weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary: weakref.WeakValueDictionary,
    weakref.WeakSet: weakref.WeakSet,
}
"""Locks cannot be pickled and are created anew: a worker that imports the function's module has its own, too."""


def dumps_by_value(value: object) -> bytes:
    """Pickles a value with the definitions it needs; raises what cloudpickle raises."""
    return _dumped(value, by_value_pickler())


def dumps_function(function: Callable[..., Any]) -> bytes:
    """Pickles a function by value; the locks that it uses are replaced by new ones.

    In an argument a new lock would be wrong, because the caller means this very lock.
    """
    return _dumped(function, by_value_pickler(of_function=True))


@functools.cache
def by_value_pickler(*, of_function: bool = False) -> Any:
    """Returns cloudpickle's pickler class, extended to pickle functions with `functools.cache` by value; cloudpickle
    refers to those by name."""
    # Imported here because it takes about 30 ms, and plain pickling suffices for functions and results that belong to
    # modules.
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
    """Yields locks that belong to a class, not to its objects: its definition is sent, so the other side has its
    own."""
    for member in vars(kind).values():
        lock = getattr(member, "lock", None) if isinstance(member, functools.cached_property) else member
        if type(lock) in _OF_ONE_PROCESS:
            yield lock


def _cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _can_import(function: Any, by_value: set[str]) -> bool:
    """Returns whether a worker can import the function by name; not so for modules that are pickled by value."""
    module = getattr(function, "__module__", None) or "__main__"
    if module == "__main__" or any(module == each or module.startswith(each + ".") for each in by_value):
        return False
    found: Any = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


_OWN_FOLDER = os.path.dirname(__file__) + os.sep


class RemoteTraceback(Exception):  # noqa: N818  # the name that users know from concurrent.futures
    """The traceback of a call, as text from its worker; the cause of the call's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        """Returns the text in quotation marks, so that it stands out in the caller's traceback."""
        return f'\n"""\n{self.text}"""'


class CallError(ShoalError):
    """A call failed in a way that no exception of its own describes."""


class CallExitError(CallError):
    """The call tried to end its process (`sys.exit`, Ctrl-C), which must not end the caller."""


class UnpicklableResultError(CallError):
    """The call returned something that cannot be sent back."""


class CallCrashedError(CallError):
    """The worker died while the call ran."""


class CallTimeoutError(CallError, TimeoutError):
    """The call ran longer than its time limit and was killed."""


class CallCancelledError(CallError):
    """The call was cancelled while it waited or ran."""


class _PicklableError:
    """Pickles an exception as a function call that joins exception and traceback again."""

    __slots__ = ("error", "text")

    def __init__(self, error: BaseException, text: str) -> None:
        self.error = error
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return arrive, (self.error, self.text)


def arrive(error: BaseException, text: str) -> BaseException:
    """Joins an exception and the text of its traceback again, on the caller's side."""
    error.__cause__ = RemoteTraceback(text)
    return error


def describe(error: BaseException) -> tuple[bytes, str]:
    """Returns the pickled exception and its traceback as text; never raises."""
    text = traceback_text(error)
    if not isinstance(error, Exception):
        error = CallExitError(f"the call ended with {error!r}")
    return _pickled(error, text), text


def traceback_text(error: BaseException) -> str:
    """Returns the traceback from the first frame of the user's code on."""
    return "".join(traceback.format_exception(type(error), error, _of_user(error.__traceback__)))


def _of_user(found: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the outermost frames of the worker; all of it if no other frames follow."""
    inner = found
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        inner = inner.tb_next
    return inner if inner is not None else found


def pickled(error: CallError) -> bytes:
    """Pickles an exception of Shoal for a `CallResult`."""
    return pickle.dumps(error, 5)


def _pickled(error: BaseException, text: str) -> bytes:
    reasons = []
    for dumps in (_dumps, dumps_by_value):
        try:
            data = dumps(_PicklableError(error, text))
            # Many exceptions pickle but do not unpickle (an `__init__` with more arguments): test it here.
            pickle.loads(data)
            return data
        except Exception as reason:  # the user's `__reduce__` and `__init__` may raise anything
            reasons.append(f"{type(reason).__name__}: {reason}")
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    stand_in = CallError(f"the call raised {kind}, which cannot be sent back ({reasons[0]}): {_message(text)}")
    return pickle.dumps(_PicklableError(stand_in, text), 5)


def _dumps(value: object) -> bytes:
    return pickle.dumps(value, 5)


def _message(text: str) -> str:
    """Returns the last line of a traceback: type and message."""
    return text.rstrip().rpartition("\n")[2]
