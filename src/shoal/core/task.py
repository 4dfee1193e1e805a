"""Task profiles (`Profile`: category, resources, retries, shell, ...) and Python calls (`Call`).

The action of a task is a `str` (a command line), a `Call` (a Python function that runs in a worker process), or `None`:
a task that only groups other tasks or represents a source, and uses no core.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from shoal.core.file_names import is_unusable
from shoal.core.resources import FRACTION, Resources
from shoal.errors import InputError

ONE_CORE = Resources((("cores", FRACTION),))


class Profile(msgspec.Struct, frozen=True):
    """Properties that many tasks share; the graph interns profiles, so a million tasks need only a few."""

    category: str = ""
    """Key under which durations and sizes are learned; if empty, derived from the executable or the function's name."""
    resources: Resources = ONE_CORE
    retries: int = 0
    """Number of further attempts after a failed one."""
    timeout: float | None = None
    environment: tuple[tuple[str, str], ...] = ()
    directory: str | None = None
    """Working directory, relative to the directory of the workflow; None: the directory of the workflow."""
    cores_declared: bool = False
    """Whether the user declared cores; without a declaration `resources` contains one core by default."""
    prefers: tuple[str, ...] = ()
    """Labels of preferred nodes; required labels are part of `resources`."""
    shell: str = ""
    """Shell that runs a command, as a program with options; empty: the default."""

    def declares(self, name: str) -> bool:
        """Whether the user declared an amount of this resource."""
        amount = self.resources.get(name)
        return (self.cores_declared or amount != FRACTION) if name == "cores" else amount > 0


class Call(msgspec.Struct, frozen=True):
    """A Python function to call in a worker process.

    With `wants_task` the function is called with one argument, the running task
    (`shoal.execution.calls.task_api.RunningTask`); otherwise with `arguments` and `keywords`.
    """

    function: Callable[..., Any]
    fingerprint: str = ""
    """Hash of the function's code; part of the task's identity."""
    wants_task: bool = False
    wildcards: tuple[tuple[str, str], ...] = ()
    named: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    """Inputs that were declared by name, for `t.needs.NAME`."""
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


Action: TypeAlias = str | Call | None


def category_of_command(command: str) -> str:
    """The base name of the executable, without `VAR=value` words and opening brackets: the default category."""
    for word in command.split(maxsplit=8):
        word = word.lstrip("({")
        if not word or ("=" in word and "/" not in word.split("=", 1)[0]):
            continue
        return word.rsplit("/", 1)[-1].rstrip(";") or word
    return "command"


STRICT = "strict"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./ \t-][A-Za-z0-9_@%+:,./= \t-]*")
"""Characters without a meaning to a shell; `=` only after the first word, where it is not an assignment."""


def needs_shell(command: str) -> bool:
    """Whether the command contains anything that a shell interprets."""
    words = command.split(None, 1)
    return not words or "=" in words[0] or _PLAIN.fullmatch(command) is None


def words_elsewhere(shell: str) -> list[str]:
    """The words before `-c` in exported workflows, where nothing is known about the machine that runs them."""
    if shell == STRICT:
        return ["bash", "-euo", "pipefail"]
    return shlex.split(shell) or ["/bin/sh"]


def parse_shell(value: object) -> str:
    """Parses a shell: a program and its options, as stored in a profile; `-c` and the command are appended to it."""
    if not isinstance(value, str) or is_unusable(value):
        raise InputError(f"shell must be a program and its options, such as 'bash -e', not {value!r}")
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise InputError(f"shell={value!r} cannot be parsed: {str(error).lower()}") from None
    if words[1:] and words[-1] == "-c":
        words.pop()
    if not words or not words[0] or words[0].startswith("-"):
        raise InputError(f"shell={value!r} names no program", remedy="write a program and its options: 'bash -e'")
    return shlex.join(words)
