"""Shoal: many-task computing. `from shoal import rule, file, task` in a rules file; `shoal.Executor` in a program.

Public names are loaded when first used, so that `import shoal` and `shoal --help` stay quick.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
TYPE_CHECKING = False  # what type checkers take for true; importing it would cost every start milliseconds

if TYPE_CHECKING:
    from shoal.errors import InputError, RunError, ShoalError
    from shoal.flow.net import NOTHING, Net, count, each, read, take
    from shoal.frontend.rules.api import directory, file, files, include, namespace, param, rule, shell, task
    from shoal.frontend.rules.paths import pathmap
    from shoal.futures import Executor, function
    from shoal.notebook.watching import start, watch
    from shoal.runner.action import CommandFailed, capture, sh

_HOMES = {
    "shoal.errors": ("InputError", "RunError", "ShoalError"),
    "shoal.flow.net": ("NOTHING", "Net", "count", "each", "read", "take"),
    "shoal.frontend.rules.api": (
        "directory",
        "file",
        "files",
        "include",
        "namespace",
        "param",
        "rule",
        "shell",
        "task",
    ),
    "shoal.frontend.rules.paths": ("pathmap",),
    "shoal.futures": ("Executor", "function"),
    "shoal.notebook.watching": ("start", "watch"),
    "shoal.runner.action": ("CommandFailed", "capture", "sh"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "NOTHING",
    "CommandFailed",
    "Executor",
    "InputError",
    "Net",
    "RunError",
    "ShoalError",
    "capture",
    "count",
    "directory",
    "each",
    "file",
    "files",
    "function",
    "include",
    "namespace",
    "param",
    "pathmap",
    "read",
    "rule",
    "sh",
    "shell",
    "start",
    "take",
    "task",
    "watch",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
