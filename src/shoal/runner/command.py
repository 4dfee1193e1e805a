"""How a command line becomes an argument vector: executed directly where no shell is needed, else by `/bin/sh -c`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SHELL = "/bin/sh"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./ \t-][A-Za-z0-9_@%+:,./= \t-]*")
"""Characters that no shell gives a meaning to; `=` only behind the first word, where it is no assignment."""


class CommandResolver:
    """Turns command lines into vectors; remembers where executables were found."""

    def __init__(self, path: str) -> None:
        self._directories = path.split(os.pathsep)
        self._found: dict[str, str | None] = {}
        self._last_command = ""
        self._last_vector = [SHELL, "-c", ""]

    def vector(self, command: str) -> list[str]:
        """The argument vector; its first word is the file to execute. It must not be changed."""
        if command == self._last_command:
            return self._last_vector
        self._last_command, self._last_vector = command, self._split(command)
        return self._last_vector

    def _split(self, command: str) -> list[str]:
        if _PLAIN.fullmatch(command):
            words = command.split()
            if words:
                first = words[0]
                if "=" not in first:
                    executable = first if "/" in first else self._search(first)
                    if executable is not None:
                        words[0] = executable
                        return words
        return [SHELL, "-c", command]

    def _search(self, name: str) -> str | None:
        """Where PATH leads to; None for shell builtins and for what does not exist, which the shell reports best."""
        if name in self._found:
            return self._found[name]
        found = None
        for directory in self._directories:
            candidate = os.path.join(directory or ".", name)
            if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
                found = candidate
                break
        if found is not None:  # what is not there yet may be made by a task
            self._found[name] = found
        return found


def in_directory(vector: list[str], directory: str) -> list[str]:
    """The same command started in another directory; posix_spawn cannot change it."""
    return [SHELL, "-c", 'cd -- "$1" && shift && exec "$@"', "shoal", directory, *vector]


def task_environment(inherited: Mapping[str, str]) -> dict[bytes, bytes]:
    """The environment as bytes, which posix_spawn need not convert for every task."""
    return {os.fsencode(name): os.fsencode(value) for name, value in inherited.items()}
