"""The footprint of directories: how many files and bytes they hold, found by walking, a little at a time.

A large directory takes long to walk, and the command should not notice: each call has a budget, the walk goes on where
it stopped, and what is told is the last whole walk (or what the present one has found so far, if that is more).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

_BETWEEN_LOOKS_AT_THE_CLOCK = 64


class Footprint:
    """Files (regular files and directories) and their bytes below some directories; links are not followed."""

    def __init__(self, directories: list[str]) -> None:
        self._directories = directories
        self._walk = self._entries()
        self._files = self._bytes = 0
        self.files = 0
        self.bytes = 0

    def look(self, seconds: float, *, afresh: bool = False) -> bool:
        """Walks for so long at most, `afresh` from the beginning; True if a walk was completed."""
        if afresh:
            self._restart()
        deadline = time.monotonic() + seconds
        for count, size in enumerate(self._walk, 1):
            self._files += 1
            self._bytes += size
            if count % _BETWEEN_LOOKS_AT_THE_CLOCK == 0 and time.monotonic() > deadline:
                self.files, self.bytes = max(self.files, self._files), max(self.bytes, self._bytes)
                return False
        self.files, self.bytes = self._files, self._bytes
        self._restart()
        return True

    def _restart(self) -> None:
        self._walk = self._entries()
        self._files = self._bytes = 0

    def _entries(self) -> Iterator[int]:
        """Sizes of everything; directories count as files without bytes."""
        waiting = list(self._directories)
        while waiting:
            try:
                listing = os.scandir(waiting.pop())
            except OSError:
                continue  # removed in the meantime, or not for us
            yield 0
            with listing:
                for entry in listing:
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            yield entry.stat(follow_symlinks=False).st_size
                    except OSError:
                        continue
