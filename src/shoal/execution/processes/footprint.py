"""Counts files and bytes below given paths, by walking directories a little at a time.

Walking a large directory takes long and must not delay the caller. So each call has a time budget and continues where
the last one stopped. The reported values are those of the last complete walk, or of the current walk if they are
larger.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence

_BETWEEN_LOOKS_AT_THE_CLOCK = 64


class Footprint:
    """Number and bytes of files (regular files and directories) at given paths; links are followed only there."""

    def __init__(self, places: Sequence[str], *, since: float = 0.0) -> None:
        self._places = places
        self._since = since
        """Files that were not changed since then are left out."""
        self._walk = self._entries()
        self._files = self._bytes = 0
        self.files = 0
        self.bytes = 0

    def look(self, seconds: float, *, afresh: bool = False) -> bool:
        """Walks for at most `seconds`, from the start if `afresh`; returns True if a walk was completed."""
        if afresh:
            self._restart()
        deadline = time.monotonic() + seconds
        for count, (files, size) in enumerate(self._walk, 1):
            self._files += files
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

    def _counted(self, found: os.stat_result) -> tuple[int, int]:
        is_counted = stat.S_ISREG(found.st_mode) and found.st_ctime >= self._since
        return (1, found.st_size) if is_counted else (0, 0)

    def _entries(self) -> Iterator[tuple[int, int]]:
        """Yields number and bytes of each entry; directories count as files without bytes."""
        waiting: list[str] = []
        for place in self._places:
            try:
                found = os.stat(place)
            except OSError:
                continue  # does not exist, or no permission
            if stat.S_ISDIR(found.st_mode):
                waiting.append(place)
            else:
                yield self._counted(found)
        while waiting:
            try:
                listing = os.scandir(waiting.pop())
            except OSError:
                continue  # removed in the meantime, or no permission
            yield 1, 0
            with listing:
                for entry in listing:
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        elif entry.is_file(follow_symlinks=False):
                            yield self._counted(entry.stat(follow_symlinks=False))
                    except OSError:
                        continue
