"""Chooses how to run a command: directly without a shell, or by which shell.

`shoal.core.task` defines what a profile says about shells.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from shoal.core.task import STRICT, needs_shell

SHELL = "/bin/sh"
LONGEST_WORD = 128 << 10
"""Maximum size of an argument in bytes, with the zero byte at its end; a limit of the kernel."""


class CommandResolver:
    """Turns command lines into argument vectors; caches where executables were found."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: dict[tuple[str, str], str] = {}
        self._last: tuple[str, str | None, bool] | None = None
        self._last_words: list[str] | None = None

    def words(self, command: str, path: str | None = None, *, elsewhere: bool = False) -> list[str] | None:
        """Returns the words of a command that needs no shell, with the path of the executable first; None if it needs a
        shell. Callers must not change the list. `path` is the task's own search path, `elsewhere` means that it runs in
        another directory."""
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
                return None  # bash replaces it by the user's home directory, other shells do not
            executable = self._search(words[0], path)
            # Relative directories in PATH are different ones in another directory.
            if executable is None or (elsewhere and not os.path.isabs(executable)):
                return None
            words[0] = executable
        return words

    def _search(self, name: str, path: str) -> str | None:
        """Returns the executable that PATH leads to; None for shell builtins and missing programs, which the shell
        reports best."""
        if (path, name) in self._found:
            return self._found[path, name]
        for directory in path.split(os.pathsep) if path else ():
            candidate = os.path.join(directory or ".", name)
            if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
                self._found[path, name] = candidate  # a missing program is not cached, because a task may create it
                return candidate
        return None


def in_directory(vector: Sequence[str], directory: str) -> list[str]:
    """Returns a command that first changes the directory, which posix_spawn cannot do."""
    return [SHELL, "-c", 'cd -- "$1" && shift && exec "$@"', "shoal", directory, *vector]


def task_environment(inherited: Mapping[str, str]) -> dict[bytes, bytes]:
    """Returns the environment as bytes, so that posix_spawn need not convert it for every task."""
    return {os.fsencode(name): os.fsencode(value) for name, value in inherited.items()}


_USUAL = ("sh", "dash", "bash")
_STRICTNESS = frozenset(["-e", "-u", "-eu", "-ue", "-o", "-eo", "-uo", "-euo", "-ueo", "pipefail"])
NO_BASH = "bash is not installed: commands run with 'sh -eu', which does not detect failures inside a pipe"


_own_path: list[str] = []


def keep_path() -> None:
    """Remembers the current PATH for finding shells, because functions may run with other variables."""
    if not _own_path:
        _own_path.append(os.environ.get("PATH", os.defpath))


def words_of_shell(shell: str) -> Sequence[str]:
    """Returns the words in front of `-c`; none for /bin/sh. An empty one first means that even simple commands go to
    this shell, because it may run start-up files or have another syntax."""
    if not shell:
        return ()
    if shell == STRICT:
        bash = program("bash")
        return (SHELL, "-eu") if bash is None else (bash, "-euo", "pipefail")
    first, *options = shlex.split(shell)
    words = (program(first) or first, *options)
    return words if os.path.basename(first) in _USUAL and _STRICTNESS.issuperset(options) else ("", *words)


def lacks_bash(shell: str, command: str) -> bool:
    """Returns whether the command should be run by bash, which is not installed."""
    return shell == STRICT and needs_shell(command) and program("bash") is None


@contextmanager
def in_shell(command: str, shell: str) -> Iterator[list[str]]:
    """Yields the words that make the shell run the command; a command that is too long for an argument is put into a
    temporary file."""
    words = [word for word in words_of_shell(shell) if word] or [SHELL]
    if len(command) * 4 < LONGEST_WORD or len(os.fsencode(command)) + 1 < LONGEST_WORD:
        yield [*words, "-c", command]
        return
    import tempfile  # takes 10 ms that a short command need not pay

    with tempfile.NamedTemporaryFile(prefix="shoal-command-") as file:
        file.write(os.fsencode(command))
        file.flush()
        yield [*words, file.name]


def program(name: str) -> str | None:
    """Returns the absolute path of a program found by PATH; None if there is none."""
    if "/" in name:
        return name
    path = _own_path[-1] if _own_path else os.environ.get("PATH", os.defpath)
    for directory in path.split(os.pathsep):
        found = os.path.join(directory or ".", name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.abspath(found)
    return None
