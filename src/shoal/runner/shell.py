"""Which program runs the commands of a task, on the machine that runs it.

`shoal.model.shell` says what stands in a profile.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.model.shell import STRICT, needs_shell
from shoal.runner.command import LONGEST_WORD, SHELL

_USUAL = ("sh", "dash", "bash")
_STRICTNESS = frozenset(["-e", "-u", "-eu", "-ue", "-o", "-eo", "-uo", "-euo", "-ueo", "pipefail"])
NO_BASH = "there is no bash: commands run with 'sh -eu', which does not see a failure inside a pipe"


_own_path: list[str] = []


def keep_path() -> None:
    """Shells are found as they are now, whatever PATH says while a function runs with variables of its own."""
    if not _own_path:
        _own_path.append(os.environ.get("PATH", os.defpath))


def words_of_shell(shell: str) -> Sequence[str]:
    """The words in front of `-c`; none for /bin/sh. An empty one first: commands that need no shell go to it, too, for
    it may do something at its start, or understand another language."""
    if not shell:
        return ()
    if shell == STRICT:
        bash = program("bash")
        return (SHELL, "-eu") if bash is None else (bash, "-euo", "pipefail")
    first, *options = shlex.split(shell)
    words = (program(first) or first, *options)
    return words if os.path.basename(first) in _USUAL and _STRICTNESS.issuperset(options) else ("", *words)


def lacks_bash(shell: str, command: str) -> bool:
    """Whether the command should go to bash, which is not there."""
    return shell == STRICT and needs_shell(command) and program("bash") is None


@contextmanager
def in_shell(command: str, shell: str) -> Iterator[list[str]]:
    """The words that have the shell run the command; one that is too long for an argument stands in a file as long as
    this lasts."""
    words = [word for word in words_of_shell(shell) if word] or [SHELL]
    if len(command) * 4 < LONGEST_WORD or len(os.fsencode(command)) + 1 < LONGEST_WORD:
        yield [*words, "-c", command]
        return
    import tempfile  # it costs 10 ms that a short command need not pay

    with tempfile.NamedTemporaryFile(prefix="shoal-command-") as file:
        file.write(os.fsencode(command))
        file.flush()
        yield [*words, file.name]


def program(name: str) -> str | None:
    """Where our PATH leads to, absolute; None if there is no such program."""
    if "/" in name:
        return name
    path = _own_path[-1] if _own_path else os.environ.get("PATH", os.defpath)
    for directory in path.split(os.pathsep):
        found = os.path.join(directory or ".", name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.abspath(found)
    return None
