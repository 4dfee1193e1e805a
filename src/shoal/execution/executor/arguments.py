"""Pickles a call's function and arguments, and fills in the results of other calls where futures stand.

Arguments are pickled when the call is submitted, so the caller may change them afterwards. Futures inside them, at any
depth, are left out (pickle's persistent ids) and collected. Once they are done, their pickled results are sent along
and the worker puts the two together (`shoal.execution.executor.worker_side.fill`). So this process need not unpickle a
result to pass it on.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Protocol

from shoal.execution.calls.pickling import PICKLING_ERRORS, CachedFunction, CallError, by_value_pickler, dumps_by_value
from shoal.execution.calls.protocol import PLAIN, ValueOf
from shoal.execution.executor.call_pool import CallPool
from shoal.execution.executor.worker_side import Definition, fill

_NOT_IMPORTABLE = (b"__main__", b"shoal_rules")
"""Pickle refers to definitions of the main program or a rules file by name. A worker cannot import these modules, so
such values are pickled by value."""


class UnpicklableArgumentError(CallError):
    """A function or its arguments cannot be sent to a worker process."""


class Unfilled:
    """A pickled request that lacks the results of some futures."""

    __slots__ = ("_pickled", "futures")

    def __init__(self, pickled: bytes, futures: Sequence[Future[Any]]) -> None:
        self._pickled = pickled
        self.futures = futures

    def payload(self, pickled_result: Callable[[Future[Any]], bytes]) -> bytes:
        """Returns the whole request; all futures must be done."""
        values = [ValueOf(pickled_result(future)) for future in self.futures]
        return pickle.dumps(_Filled(self._pickled, values), 5)


class _Filled:
    """Pickles as a function call that joins request and results in the worker."""

    __slots__ = ("pickled", "values")

    def __init__(self, pickled: bytes, values: list[ValueOf]) -> None:
        self.pickled = pickled
        self.values = values

    def __reduce__(self) -> tuple[object, ...]:
        return fill, (self.pickled, self.values)


def encode(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bytes | Unfilled:
    """Returns the payload of a plain call, unfilled if it contains futures; `name` appears in the message if pickling
    fails."""
    request = (PLAIN, arguments, keywords)
    for argument in arguments:
        if isinstance(argument, Future):
            return _encode_with_futures(name, request)
    try:
        data = pickle.dumps(request, 5)
    except Exception:  # a future at some depth, or a value that needs pickling by value; reducers may raise anything
        return _encode_with_futures(name, request)
    return _encode_with_futures(name, request) if _needs_by_value(data) else data


def encode_all(calls: Sequence[tuple[Any, ...]]) -> list[bytes] | None:
    """Returns the payloads of calls without futures; None if one of them needs more than plain pickling."""
    dumps = pickle.dumps
    nothing: dict[str, Any] = {}
    try:
        payloads = [dumps((PLAIN, arguments, nothing), 5) for arguments in calls]
    except Exception:  # as above
        return None
    return None if any(map(_needs_by_value, payloads)) else payloads


def dumps(value: object) -> bytes:
    """Pickles a value so that workers can unpickle it."""
    try:
        data = pickle.dumps(value, 5)
    except PICKLING_ERRORS:
        return dumps_by_value(value)
    return dumps_by_value(value) if _needs_by_value(data) else data


def _needs_by_value(pickled: bytes) -> bool:
    return _NOT_IMPORTABLE[0] in pickled or _NOT_IMPORTABLE[1] in pickled


class _FutureCollector:
    """The futures found while pickling, each once, in the order of their first appearance."""

    def __init__(self) -> None:
        self.position: dict[int, int] = {}
        self.futures: list[Future[Any]] = []

    def persistent_id(self, value: object) -> int | None:
        """Returns an index for a future; None for everything else, which is pickled as usual."""
        if not isinstance(value, Future):
            return None
        known = self.position.setdefault(id(value), len(self.futures))
        if known == len(self.futures):
            self.futures.append(value)
        return known


class _Dumper(Protocol):
    def dump(self, value: object, /) -> None: ...


def _plain_dumper(file: io.BytesIO, collector: _FutureCollector) -> _Dumper:
    class Plain(pickle.Pickler):
        def persistent_id(self, value: object) -> int | None:
            return collector.persistent_id(value)

    return Plain(file, 5)


def _by_value_dumper(file: io.BytesIO, collector: _FutureCollector) -> _Dumper:
    class ByValue(by_value_pickler()):  # type: ignore[misc]  # its base has no stubs
        def persistent_id(self, value: object) -> int | None:
            return collector.persistent_id(value)

    dumper: _Dumper = ByValue(file, 5)
    return dumper


def _encode_with_futures(name: str, request: tuple[Any, ...]) -> bytes | Unfilled:
    reason = ""
    for make in (_plain_dumper, _by_value_dumper):
        file = io.BytesIO()
        collector = _FutureCollector()
        try:
            make(file, collector).dump(request)
        except Exception as error:  # users' reducers may raise anything
            reason = f"{type(error).__name__}: {error}"
            continue
        data = file.getvalue()
        if make is _plain_dumper and _needs_by_value(data):
            continue
        return Unfilled(data, collector.futures) if collector.futures else data
    raise UnpicklableArgumentError(f"an argument of {name} cannot be sent to a worker process ({reason})")


KEPT = 256
"""Maximum number of functions that are kept for later calls."""


def is_shippable(function: Callable[..., Any]) -> bool:
    """Returns whether the function is a definition, which does not change. Other callables have state of their own and
    are sent with each call."""
    if isinstance(function, BuiltinFunctionType):
        return isinstance(function.__self__, ModuleType)
    return isinstance(function, FunctionType | type | Definition | CachedFunction)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of the function for messages."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__qualname__


class _Registered:
    __slots__ = ("calls", "function", "number")

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function = function
        self.number = number
        self.calls = 0


class FunctionTable:
    """Counts the open calls per function; releases unused functions when there are too many."""

    def __init__(self, pool: CallPool) -> None:
        self._pool = pool
        self._known: dict[int, _Registered] = {}
        """By identity of the function, oldest first. The table holds the function, so that its id is not reused."""
        self._room = KEPT

    def take(self, function: Callable[..., Any], calls: int) -> int:
        """Returns the number of the function; counts `calls` more open calls."""
        known = self._known.get(id(function))
        if known is None:
            if len(self._known) >= self._room:
                self._make_room()
            try:
                number = self._pool.register(function)
            except Exception as error:  # users' reducers may raise anything
                reason = f"{type(error).__name__}: {error}"
                name = name_of(function)
                raise UnpicklableArgumentError(f"{name} cannot be sent to a worker process ({reason})") from error
            known = self._known[id(function)] = _Registered(function, number)
        known.calls += calls
        return known.number

    def give_back(self, function: Callable[..., Any]) -> None:
        """Counts one call of the function as ended."""
        self._known[id(function)].calls -= 1

    def _make_room(self) -> None:
        for identity, known in list(self._known.items()):
            if not known.calls:
                self._pool.release(known.number)
                del self._known[identity]
        # If all functions are in use, repeating this for each new function would take quadratic time.
        self._room = max(KEPT, 2 * len(self._known))
