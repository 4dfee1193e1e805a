"""What the runner sends to a worker about one call: the function, and the call's arguments, as bytes.

Everything is pickled the plain way where that suffices and by value (cloudpickle) where a worker could not find the
definition: a lambda, a closure, whatever the user's main program or rules file defines.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.runner.call_page import ACTION, PLACED, PLAIN
from shoal.runner.call_pickle import PICKLING_ERRORS, dumps_by_value, dumps_function

_OF_MAIN = b"__main__"


class ValueOf:
    """Stands in an argument for the result of an earlier call, of which only the pickled bytes are here.

    It may stand anywhere inside the arguments. Its own pickled form is "unpickle these bytes", so the worker gets the
    value and neither side has to look for it.
    """

    __slots__ = ("pickled",)

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def __reduce__(self) -> tuple[object, ...]:
        return pickle.loads, (self.pickled,)


def plain_payload(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bytes:
    """The payload of a plain call; raises what pickling raises if an argument cannot be pickled."""
    return _dumps((PLAIN, arguments, keywords), dumps_by_value)


def placed_payload(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], environment: Mapping[str, str], directory: str
) -> bytes:
    """The payload of a call in a directory of its own, and with variables that other calls of the worker do not see."""
    return _dumps((PLACED, dict(environment), directory, arguments, keywords), dumps_by_value)


def task_payload(
    name: str,
    outputs: Sequence[str],
    needs: Sequence[str],
    *,
    values: Mapping[str, bytes] | None = None,
    named: Mapping[str, str | Sequence[str]] | None = None,
    wildcards: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: str = "",
) -> bytes:
    """The payload of a rules action, which is called with a `shoal.runner.action.RunningTask`.

    `values` holds the pickled results of those needs that have one; `named` is for needs that were given as a dict:
    each of its names stands for one need or several. `environment` and `directory` are as for `placed_payload`.
    """
    about_task = (name, list(outputs), list(needs), dict(values or {}), dict(named or {}), dict(wildcards or {}))
    return pickle.dumps((ACTION, dict(environment or {}), directory, *about_task), 5)


def function_payload(function: Callable[..., Any]) -> bytes:
    """The function itself, by reference if a worker can import it, else by value."""
    # Whoever had a module pickled by value (the rules file) has loaded cloudpickle, which alone knows about that.
    if "cloudpickle" in sys.modules:
        return dumps_function(function)
    return _dumps(function, dumps_function)


def _dumps(value: Any, by_value: Callable[[Any], bytes]) -> bytes:
    try:
        data = pickle.dumps(value, 5)
    except PICKLING_ERRORS:
        return by_value(value)
    # Plain pickle refers to what the main program defines by name, but the main module of a worker is another one.
    return by_value(value) if _OF_MAIN in data else data
