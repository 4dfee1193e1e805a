"""Output of tasks: written by the task into its slot's file, kept in one stream per workflow.

A slot's file is opened once and inherited by one task after another; a silent task costs one `lseek`. What a task
wrote is appended to the stream when it ends, and the ledger says where it stands there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_PIECE = 1 << 20
TAIL_BYTES = 8192


class Slots:
    """Capture files, lowest free number first, so that a run uses as many as it has tasks at once."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.descriptors: list[int] = []
        self._free: list[int] = []

    def take(self) -> int:
        if self._free:
            return heappop(self._free)
        slot = len(self.descriptors)
        self.descriptors.append(os.open(os.path.join(self.directory, str(slot)), _APPEND | os.O_TRUNC, 0o644))
        return slot

    def give_back(self, slot: int) -> None:
        heappush(self._free, slot)

    def size(self, slot: int) -> int:
        return os.lseek(self.descriptors[slot], 0, os.SEEK_END)

    def close(self) -> None:
        for slot, descriptor in enumerate(self.descriptors):
            os.close(descriptor)
            try:
                os.unlink(os.path.join(self.directory, str(slot)))
            except OSError:
                pass
        self.descriptors.clear()


class OutputStream:
    """The stream; appended to by the processes of a run, read by anybody with an offset and a size from the ledger."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.full = False
        """There was no room for some output; the run should stop."""
        self._descriptor = -1

    def append(self, data: bytes) -> tuple[int, int]:
        """Where the data stands now; (0, 0) if there was no room for it."""
        with self._alone():
            return self._append(data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Launcher and engine both append: what belongs together stays together."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, _APPEND, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _append(self, data: bytes) -> tuple[int, int]:
        begin = os.lseek(self._descriptor, 0, os.SEEK_END)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError:
                self.full = True
                os.ftruncate(self._descriptor, begin)
                return 0, 0
        return begin, len(data)

    def absorb(self, source: int, size: int) -> tuple[int, int, bytes]:
        """Moves a slot's content into the stream and empties the slot; also returns the tail for messages."""
        begin, moved = -1, 0
        with self._alone():
            while moved < size:
                piece = os.pread(source, min(_PIECE, size - moved), moved)
                at, length = self._append(piece) if piece else (0, 0)
                if not length:
                    break
                begin = at if begin < 0 else begin
                moved += length
        tail = os.pread(source, TAIL_BYTES, max(0, size - TAIL_BYTES))
        os.ftruncate(source, 0)
        return max(0, begin), moved, tail

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
