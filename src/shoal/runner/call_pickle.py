"""Pickling by value, for what the other side could not import: lambdas, closures, what the main program defines."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

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
