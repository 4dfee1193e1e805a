"""Function actions: from a user's function and the names of one task to a `Call`.

A function that takes a parameter gets the running task, so its call carries the wildcards and which needs were given
under a key. The needs themselves are in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

from shoal.errors import InputError
from shoal.frontend.rules.fingerprint import Fingerprints, ModuleText
from shoal.frontend.rules.template import Names
from shoal.model.task import Call


class Calls:
    """Makes calls; what depends on the function alone is worked out once."""

    def __init__(self, modules: ModuleText) -> None:
        self._fingerprints = Fingerprints(modules)
        self._plain: dict[int, Call] = {}
        """By `id(function)`; the calls keep the functions alive."""

    def make(self, function: Callable[..., object], names: Names) -> Call:
        plain = self._plain.get(id(function))
        if plain is None:
            plain = Call(function, self._fingerprints.of(function), wants_task(function))
            self._plain[id(function)] = plain
        if not plain.wants_task or not (names.groups or names.wildcards):
            return plain
        return Call(
            function,
            plain.fingerprint,
            wants_task=True,
            wildcards=tuple(names.wildcards.items()),
            named=tuple(names.groups.items()),
        )


def wants_task(function: Callable[..., object]) -> bool:
    """Whether it takes a parameter without default; `lambda i=i: ...` keeps its own."""
    required, keywords = required_parameters(function)
    if required > 1 or keywords:
        name = getattr(function, "__name__", "the function")
        raise InputError(
            f"{name}() takes {required + keywords} parameters, but an action takes the task or nothing",
            remedy="give the others default values, or use param()",
        )
    return required == 1


def required_parameters(function: Callable[..., object]) -> tuple[int, int]:
    """How many positional and keyword-only parameters have no default."""
    if isinstance(function, FunctionType):
        code = function.__code__
        keywords = code.co_kwonlyargcount - len(function.__kwdefaults__ or {})
        return code.co_argcount - len(function.__defaults__ or ()), keywords
    import inspect  # costs milliseconds, and is needed for unusual callables only

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return 0, 0
    required = [one.kind for one in parameters if one.default is one.empty]
    keywords = required.count(inspect.Parameter.KEYWORD_ONLY)
    variable = required.count(inspect.Parameter.VAR_POSITIONAL) + required.count(inspect.Parameter.VAR_KEYWORD)
    return len(required) - keywords - variable, keywords
