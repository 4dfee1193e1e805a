"""How a command line becomes an argument vector: executed directly where no shell is needed, else by a shell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from shoal.model.shell import needs_shell

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
