"""`@shoal.function`: a function whose calls become futures while an executor is active."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, Unpack, overload

from shoal.futures.executor import DefinitionWithOptions, Submitter, active
from shoal.futures.future import CallFuture
from shoal.futures.options import Options, Wishes


class DecoratedFunction(DefinitionWithOptions):
    """Calls itself through the active executor, or directly where there is none, as in a worker."""

    __name__: str
    __qualname__: str
    __module__: str

    def __init__(self, function: Callable[..., Any], wishes: Wishes) -> None:
        self.wishes = wishes
        self.options = Options().changed(wishes)
        functools.update_wrapper(self, function)
        self.__wrapped__ = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        executors = active.get()
        if executors:
            return executors[-1].submit(self, *arguments, **keywords)
        return self.__wrapped__(*arguments, **keywords)

    def submit(self, executor: Submitter, /, *arguments: Any, **keywords: Any) -> CallFuture:
        """Submit a call to a certain executor, active or not."""
        return executor.submit(self, *arguments, **keywords)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<shoal.function {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """By name where a worker can import it, else with the function."""
        found: Any = sys.modules.get(self.__module__) if self.__module__ != "__main__" else None
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (DecoratedFunction, (self.__wrapped__, self.wishes))


@overload
def function(of: Callable[..., Any], /) -> DecoratedFunction: ...
@overload
def function(**wishes: Unpack[Wishes]) -> Callable[[Callable[..., Any]], DecoratedFunction]: ...


def function(of: Callable[..., Any] | None = None, /, **wishes: Unpack[Wishes]) -> Any:
    """Make calls of a function futures: `@shoal.function`, or `@shoal.function(cores=2, retries=1, …)`."""
    if of is None:
        return lambda of: DecoratedFunction(of, wishes)
    return DecoratedFunction(of, wishes)
