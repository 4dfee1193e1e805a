"""`shoal.Executor`: Python calls as futures, on this machine or on a cluster.

Names are imported at first use: worker processes load this module too, and need only
`shoal.execution.executor.worker_side`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__path__: list[str] = []  # lets the former names of its modules be found

if TYPE_CHECKING:
    from shoal.execution.calls.pickling import (
        CallCrashedError,
        CallError,
        CallExitError,
        CallTimeoutError,
        RemoteTraceback,
        UnpicklableResultError,
    )
    from shoal.execution.executor.arguments import UnpicklableArgumentError
    from shoal.execution.executor.executor import ConfiguredExecutor, DecoratedFunction, Executor, function
    from shoal.execution.executor.future import CallFuture, DependencyFailed

_HOME_OF = {
    "CallCrashedError": "shoal.execution.calls.pickling",
    "CallError": "shoal.execution.calls.pickling",
    "CallExitError": "shoal.execution.calls.pickling",
    "CallFuture": "shoal.execution.executor.future",
    "CallTimeoutError": "shoal.execution.calls.pickling",
    "ConfiguredExecutor": "shoal.execution.executor.executor",
    "DecoratedFunction": "shoal.execution.executor.executor",
    "DependencyFailed": "shoal.execution.executor.future",
    "Executor": "shoal.execution.executor.executor",
    "RemoteTraceback": "shoal.execution.calls.pickling",
    "UnpicklableArgumentError": "shoal.execution.executor.arguments",
    "UnpicklableResultError": "shoal.execution.calls.pickling",
    "function": "shoal.execution.executor.executor",
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
