"""Shoal: many-task computing. `from shoal import rule, file, task` in a rules file; `shoal.Executor` in a program.

Public names are loaded when first used, so that `import shoal` and `shoal --help` stay quick.
"""

from __future__ import annotations

import sys
from importlib import import_module

__version__ = "0.1.0"
TYPE_CHECKING = False  # what type checkers take for true; importing it would cost every start milliseconds

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from shoal.errors import InputError, RunError, ShoalError
    from shoal.execution.calls.task_api import CommandFailed, capture, sh
    from shoal.formats.rules.api import directory, file, files, include, namespace, param, rule, shell, task
    from shoal.formats.rules.patterns import pathmap
    from shoal.futures import Executor, function
    from shoal.petri import NOTHING, Net, count, each, read, take
    from shoal.ui.notebook.watch import start, watch

_HOMES = {
    "shoal.errors": ("InputError", "RunError", "ShoalError"),
    "shoal.petri": ("NOTHING", "Net", "count", "each", "read", "take"),
    "shoal.formats.rules.api": (
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
    "shoal.formats.rules.patterns": ("pathmap",),
    "shoal.futures": ("Executor", "function"),
    "shoal.ui.notebook.watch": ("start", "watch"),
    "shoal.execution.calls.task_api": ("CommandFailed", "capture", "sh"),
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


class _FormerNames:
    """Finds modules by the names that they had in earlier versions; asked only for those that are not there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("shoal."):
            return None
        from shoal.former_names import former_spec

        return former_spec(name)


sys.meta_path.append(_FormerNames)
