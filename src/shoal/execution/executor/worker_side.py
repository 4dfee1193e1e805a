"""The part of the executor that runs inside worker processes; imports little, because every worker pays for it."""

from __future__ import annotations

import io
import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Loader(pickle.Unpickler):
    def __init__(self, pickled: bytes, values: list[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._values = values

    def persistent_load(self, position: int) -> Any:
        return self._values[position]


def fill(pickled: bytes, values: list[Any]) -> Any:
    """Unpickles a request and inserts the results of other calls, by their position in `values`."""
    return _Loader(pickled, values).load()


def apply(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Calls a callable that is sent with each call: a bound method, a partial, a callable object."""
    return function(*arguments, **keywords)


class Definition:
    """Base of objects that stand for a function's definition: they do not change, so each worker receives them once."""


class Chunked(Definition):
    """A function that is called for several tuples of arguments at a time."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function = function
        self.__name__ = f"chunks of {name}"

    def __call__(self, chunk: list[tuple[Any, ...]]) -> list[Any]:
        function = self.function
        return [function(*arguments) for arguments in chunk]
