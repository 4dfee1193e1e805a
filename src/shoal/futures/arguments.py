"""From a call's arguments to the bytes a worker gets, with the results of other calls put in where futures stand.

Arguments are pickled when the call is submitted, so the caller may change them afterwards. Futures inside them, however
deep, are left out (pickle's persistent ids) and noted; once they are done, their pickled results are sent along and the
worker puts the two together (`shoal.futures.remote.fill`). This process need not unpickle a result to pass it on.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from shoal.futures.remote import fill
from shoal.runner.call_errors import CallError
from shoal.runner.call_page import PLAIN
from shoal.runner.call_payload import ValueOf
from shoal.runner.call_pickle import PICKLING_ERRORS, by_value_pickler, dumps_by_value

_NOT_THERE = (b"__main__", b"shoal_rules")
"""What plain pickle refers to by the name of the main program or a rules file is not there in a worker, so it travels
by value."""


class UnpicklableArgumentError(CallError):
    """A function or its arguments cannot be sent to a worker process."""


class Unfilled:
    """A pickled request that lacks the results of some futures."""

    __slots__ = ("_pickled", "futures")

    def __init__(self, pickled: bytes, futures: Sequence[Future[Any]]) -> None:
        self._pickled = pickled
        self.futures = futures

    def payload(self, pickled_result: Callable[[Future[Any]], bytes]) -> bytes:
        """The whole request, when all futures are done."""
        values = [ValueOf(pickled_result(future)) for future in self.futures]
        return pickle.dumps(_Filled(self._pickled, values), 5)


class _Filled:
    """Pickles as a call that puts request and results together."""

    __slots__ = ("pickled", "values")

    def __init__(self, pickled: bytes, values: list[ValueOf]) -> None:
        self.pickled = pickled
        self.values = values

    def __reduce__(self) -> tuple[object, ...]:
        return fill, (self.pickled, self.values)


def encode(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bytes | Unfilled:
    """The payload of a plain call, or what there is of it; `name` is for the message if it cannot be pickled."""
    request = (PLAIN, arguments, keywords)
    for argument in arguments:
        if isinstance(argument, Future):
            return _noting(name, request)
    try:
        data = pickle.dumps(request, 5)
    except Exception:  # a future somewhere inside, or something that only travels by value; reducers may raise anything
        return _noting(name, request)
    return _noting(name, request) if _must_travel(data) else data


def encode_all(calls: Sequence[tuple[Any, ...]]) -> list[bytes] | None:
    """Payloads of calls with nothing but plain arguments; None if one of them is not as plain as that."""
    dumps = pickle.dumps
    nothing: dict[str, Any] = {}
    try:
        payloads = [dumps((PLAIN, arguments, nothing), 5) for arguments in calls]
    except Exception:  # as above
        return None
    return None if any(map(_must_travel, payloads)) else payloads


def dumps(value: object) -> bytes:
    """A value as the workers understand it."""
    try:
        data = pickle.dumps(value, 5)
    except PICKLING_ERRORS:
        return dumps_by_value(value)
    return dumps_by_value(value) if _must_travel(data) else data


def _must_travel(pickled: bytes) -> bool:
    return _NOT_THERE[0] in pickled or _NOT_THERE[1] in pickled


class _Noted:
    """The futures met while pickling, each once, in the order of their first appearance."""

    def __init__(self) -> None:
        self.position: dict[int, int] = {}
        self.futures: list[Future[Any]] = []

    def persistent_id(self, value: object) -> int | None:
        """A position for a future; None for everything else, which is pickled as usual."""
        if not isinstance(value, Future):
            return None
        known = self.position.setdefault(id(value), len(self.futures))
        if known == len(self.futures):
            self.futures.append(value)
        return known


class _Dumper(Protocol):
    def dump(self, value: object, /) -> None: ...


def _plain_dumper(file: io.BytesIO, noted: _Noted) -> _Dumper:
    class Plain(pickle.Pickler):
        def persistent_id(self, value: object) -> int | None:
            return noted.persistent_id(value)

    return Plain(file, 5)


def _by_value_dumper(file: io.BytesIO, noted: _Noted) -> _Dumper:
    class ByValue(by_value_pickler()):  # type: ignore[misc]  # its base has no stubs
        def persistent_id(self, value: object) -> int | None:
            return noted.persistent_id(value)

    dumper: _Dumper = ByValue(file, 5)
    return dumper


def _noting(name: str, request: tuple[Any, ...]) -> bytes | Unfilled:
    reason = ""
    for make in (_plain_dumper, _by_value_dumper):
        file = io.BytesIO()
        noted = _Noted()
        try:
            make(file, noted).dump(request)
        except Exception as error:  # users' reducers may raise anything
            reason = f"{type(error).__name__}: {error}"
            continue
        data = file.getvalue()
        if make is _plain_dumper and _must_travel(data):
            continue
        return Unfilled(data, noted.futures) if noted.futures else data
    raise UnpicklableArgumentError(f"an argument of {name} cannot be sent to a worker process ({reason})")
