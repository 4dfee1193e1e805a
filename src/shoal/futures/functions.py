"""Which functions the workers know, so that each is pickled and sent once; those no longer used are forgotten."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from shoal.futures.arguments import UnpicklableArgumentError
from shoal.futures.crew import Crew
from shoal.futures.remote import Definition
from shoal.runner.call_pickle import CachedFunction

KEPT = 256
"""Functions without calls under way that are kept in case they are called again."""


def is_shippable(function: Callable[..., Any]) -> bool:
    """Whether it is a definition, which does not change; anything else has a state that belongs to each call."""
    if isinstance(function, BuiltinFunctionType):
        return isinstance(function.__self__, ModuleType)
    return isinstance(function, FunctionType | type | Definition | CachedFunction)


def name_of(function: Callable[..., Any]) -> str:
    """How messages call it."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__qualname__


class _Known:
    __slots__ = ("calls", "function", "number")

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function = function
        self.number = number
        self.calls = 0


class FunctionTable:
    """Counts the calls under way per function; an unused function is released when there are too many."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._known: dict[int, _Known] = {}
        """By identity of the function, which we hold so that its identity is not given to another; oldest first."""
        self._room = KEPT

    def take(self, function: Callable[..., Any], calls: int) -> int:
        """The function's number; `calls` more of it are under way."""
        known = self._known.get(id(function))
        if known is None:
            if len(self._known) >= self._room:
                self._make_room()
            try:
                number = self._crew.register(function)
            except Exception as error:  # users' reducers may raise anything
                reason = f"{type(error).__name__}: {error}"
                name = name_of(function)
                raise UnpicklableArgumentError(f"{name} cannot be sent to a worker process ({reason})") from error
            known = self._known[id(function)] = _Known(function, number)
        known.calls += calls
        return known.number

    def give_back(self, function: Callable[..., Any]) -> None:
        """One call of the function is over."""
        self._known[id(function)].calls -= 1

    def _make_room(self) -> None:
        for identity, known in list(self._known.items()):
            if not known.calls:
                self._crew.release(known.number)
                del self._known[identity]
        # Where all are in use, looking again at every new one would cost the square of their number.
        self._room = max(KEPT, 2 * len(self._known))
