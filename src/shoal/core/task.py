"""The parts of a task that many tasks share (`Profile`) and what a task does (`Call`, or a command line).

A task's action is one of: `str`, a command line; `Call`, a Python function to be called in a worker process; `None`, a
task that only groups others or stands for a source, and uses no core.
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
    """What tasks of one kind have in common; interned by the graph, so a million tasks share a handful."""

    category: str = ""
    """The key for learning; empty until the graph derives it from the executable or the function's name."""
    resources: Resources = ONE_CORE
    retries: int = 0
    """How many more attempts a failed one is given."""
    timeout: float | None = None
    environment: tuple[tuple[str, str], ...] = ()
    directory: str | None = None
    """Working directory, relative to the workflow's; None is the workflow's own."""
    cores_declared: bool = False
    """Whether somebody asked for these cores; one core also stands in `resources` where nobody said anything."""
    prefers: tuple[str, ...] = ()
    """Labels that its node should carry, if there is one; those that it must carry stand in `resources`."""
    shell: str = ""
    """What runs a command; see `shoal.core.task`."""

    def declares(self, name: str) -> bool:
        """Whether somebody said how much of this resource such a task needs."""
        amount = self.resources.get(name)
        return (self.cores_declared or amount != FRACTION) if name == "cores" else amount > 0


class Call(msgspec.Struct, frozen=True):
    """A Python function to call in a worker process.

    With `wants_task` the function is called with one argument, the running task
    (`shoal.execution.calls.task_api.RunningTask`); otherwise with `arguments` and `keywords`.
    """

    function: Callable[..., Any]
    fingerprint: str = ""
    """Changes when the function's code changes; part of the task's identity."""
    wants_task: bool = False
    wildcards: tuple[tuple[str, str], ...] = ()
    named: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    """Needs that were given by name, for `t.needs.NAME`."""
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


Action: TypeAlias = str | Call | None


def category_of_command(command: str) -> str:
    """The executable's base name, skipping `VAR=value` words and opening brackets: the category nobody declared."""
    for word in command.split(maxsplit=8):
        word = word.lstrip("({")
        if not word or ("=" in word and "/" not in word.split("=", 1)[0]):
            continue
        return word.rsplit("/", 1)[-1].rstrip(";") or word
    return "command"


STRICT = "strict"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./ \t-][A-Za-z0-9_@%+:,./= \t-]*")
"""Characters that no shell gives a meaning to; `=` only behind the first word, where it is no assignment."""


def needs_shell(command: str) -> bool:
    """Whether something in the command means anything to a shell."""
    words = command.split(None, 1)
    return not words or "=" in words[0] or _PLAIN.fullmatch(command) is None


def words_elsewhere(shell: str) -> list[str]:
    """The words in front of `-c` where nothing is known of the machine: in what other programs are to run."""
    if shell == STRICT:
        return ["bash", "-euo", "pipefail"]
    return shlex.split(shell) or ["/bin/sh"]


def parse_shell(value: object) -> str:
    """A program and its options, as a profile has them; `-c` and the command come behind them."""
    if not isinstance(value, str) or is_unusable(value):
        raise InputError(f"shell must be a program and its options, such as 'bash -e', not {value!r}")
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise InputError(f"shell={value!r} cannot be read: {str(error).lower()}") from None
    if words[1:] and words[-1] == "-c":
        words.pop()
    if not words or not words[0] or words[0].startswith("-"):
        raise InputError(f"shell={value!r} names no program", remedy="write a program and its options: 'bash -e'")
    return shlex.join(words)
