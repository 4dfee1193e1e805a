"""`shoal.Executor`: Python calls as futures, on this machine or on a cluster.

Names are loaded when first used: worker processes load this package too, and need only `shoal.futures.remote`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.futures.arguments import UnpicklableArgumentError
    from shoal.futures.decorator import DecoratedFunction, function
    from shoal.futures.executor import ConfiguredExecutor, Executor
    from shoal.futures.future import CallFuture, DependencyFailed
    from shoal.runner.call_errors import (
        CallCrashedError,
        CallError,
        CallExitError,
        CallTimeoutError,
        RemoteTraceback,
        UnpicklableResultError,
    )

_HOME_OF = {
    "CallCrashedError": "shoal.runner.call_errors",
    "CallError": "shoal.runner.call_errors",
    "CallExitError": "shoal.runner.call_errors",
    "CallFuture": "shoal.futures.future",
    "CallTimeoutError": "shoal.runner.call_errors",
    "ConfiguredExecutor": "shoal.futures.executor",
    "DecoratedFunction": "shoal.futures.decorator",
    "DependencyFailed": "shoal.futures.future",
    "Executor": "shoal.futures.executor",
    "RemoteTraceback": "shoal.runner.call_errors",
    "UnpicklableArgumentError": "shoal.futures.arguments",
    "UnpicklableResultError": "shoal.runner.call_errors",
    "function": "shoal.futures.decorator",
}

__all__ = [
    "CallCrashedError",
    "CallError",
    "CallExitError",
    "CallFuture",
    "CallTimeoutError",
    "ConfiguredExecutor",
    "DecoratedFunction",
    "DependencyFailed",
    "Executor",
    "RemoteTraceback",
    "UnpicklableArgumentError",
    "UnpicklableResultError",
    "function",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'shoal.futures' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
