"""What tasks read on a node that shares no files: how much had to be fetched for them, and how much was there.

A file that was fetched is new until a task has read it for the first time: that reading is what it was fetched for.
Every other reading of a file that is here is a hit, whether it was made here or fetched for another task.
"""

from __future__ import annotations


class Reads:
    """The readings of one run on one node."""

    def __init__(self) -> None:
        self.fetched = 0
        """Files that came from others."""
        self.hits = 0
        self.hit_bytes = 0
        self._new: set[str] = set()

    def arrived(self, name: str) -> None:
        """A file has come from another node, or from the head."""
        self.fetched += 1
        self._new.add(name)

    def read(self, name: str, size: int) -> None:
        """A task that is about to start reads it."""
        if name in self._new:
            self._new.discard(name)
        else:
            self.hits += 1
            self.hit_bytes += size
