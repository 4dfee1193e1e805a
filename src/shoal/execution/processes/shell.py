"""Which program runs the commands of a task, on the machine that runs it.

`shoal.core.task` says what stands in a profile.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from shoal.core.task import STRICT, needs_shell

SHELL = "/bin/sh"
LONGEST_WORD = 128 << 10
"""Of an argument, in bytes, with the zero at its end: the system takes no longer one."""


class CommandResolver:
    """Turns command lines into vectors; remembers where executables were found."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[tuple[str, str], str] = {}
        self._last: tuple[str, str | None, bool] | None = None
        self._last_words: list[str] | None = None

    def words(self, command: str, path: str | None = None, *, elsewhere: bool = False) -> list[str] | None:
        """The words of a command that needs no shell, the file to execute first; they must not be changed. None if it
        needs one. `path` is the search path of the task if it has its own, `elsewhere` that it runs in another
        directory."""
        key = (command, path, elsewhere)
        if key != self._last:
            self._last, self._last_words = key, self._split(command, self._path if path is None else path, elsewhere)
        return self._last_words

    def _split(self, command: str, path: str, elsewhere: bool) -> list[str] | None:
        if needs_shell(command):
            return None
        words = command.split()
        if "/" not in words[0]:
            if "~" in path and any(directory.startswith("~") for directory in path.split(os.pathsep)):
                return None  # bash finds the user's directory in it, and another shell does not
            executable = self._search(words[0], path)
            # What PATH says of a directory that is named relative to ours does not hold in another one.
            if executable is None or (elsewhere and not os.path.isabs(executable)):
                return None
            words[0] = executable
        return words

    def _search(self, name: str, path: str) -> str | None:
        """Where PATH leads to; None for shell builtins and for what does not exist, which the shell reports best."""
        if (path, name) in self._found:
            return self._found[path, name]
        for directory in path.split(os.pathsep) if path else ():
            candidate = os.path.join(directory or ".", name)
            if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
                self._found[path, name] = candidate  # what is not there yet may be made by a task
                return candidate
        return None


def in_directory(vector: Sequence[str], directory: str) -> list[str]:
    """The same command started in another directory; posix_spawn cannot change it."""
    return [SHELL, "-c", 'cd -- "$1" && shift && exec "$@"', "shoal", directory, *vector]


def task_environment(inherited: Mapping[str, str]) -> dict[bytes, bytes]:
    """The environment as bytes, which posix_spawn need not convert for every task."""
    return {os.fsencode(name): os.fsencode(value) for name, value in inherited.items()}


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
