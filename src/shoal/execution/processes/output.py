"""Captured output of tasks: one file per slot while a task runs, one output stream per workflow afterwards.

A slot's file is opened once and inherited by one task after another; a task without output costs one `lseek`. When a
task ends, its output is appended to the stream, and the ledger records its offset there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_PIECE = 1 << 20
TAIL_BYTES = 8192
_SPARE_DESCRIPTORS = 16
"""Descriptors that remain for measurements, time series and the stream."""


class OutputSlots:
    """Capture files, lowest free number first, so that a run uses as many as it has concurrent tasks."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.descriptors: list[int] = []
        self.to_renew: set[int] = set()
        """Slots whose file is held open by a process that does not end; the next task gets a new file."""
        self._free: list[int] = []
        self._identities: list[tuple[int, int]] = []
        self._commands: set[int] = set()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def take(self) -> int:
        """Returns the lowest free slot; raises `OSError` if there can be no other."""
        if self._free:
            return heappop(self._free)
        descriptor = self._open(len(self.descriptors))
        if self._most != resource.RLIM_INFINITY and descriptor + _SPARE_DESCRIPTORS >= self._most:
            os.close(descriptor)  # descriptors are numbered from the lowest free one, so too few are left
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.descriptors.append(descriptor)
        self._identities.append(_identity(descriptor))
        return len(self.descriptors) - 1

    def give_back(self, slot: int) -> None:
        if slot in self._commands:
            self._commands.discard(slot)
            with suppress(FileNotFoundError):  # there was no disk space for it
                os.unlink(self._command(slot))
        if slot in self.to_renew:
            self.to_renew.discard(slot)
            os.unlink(os.path.join(self.directory, str(slot)))
            descriptor = self._open(slot)
            os.dup2(descriptor, self.descriptors[slot], inheritable=False)
            os.close(descriptor)
            self._identities[slot] = _identity(self.descriptors[slot])
        heappush(self._free, slot)

    def identity(self, slot: int) -> tuple[int, int]:
        """Returns device and inode of its file, which no other slot has."""
        return self._identities[slot]

    def write_command(self, slot: int, command: str) -> str:
        """Writes a command that is too long for an argument to a file beside the slot's; returns its path."""
        path = self._command(slot)
        self._commands.add(slot)
        with open(path, "wb") as file:
            file.write(os.fsencode(command))
        return path

    def _command(self, slot: int) -> str:
        return os.path.join(self.directory, f"{slot}.command")

    def _open(self, slot: int) -> int:
        return os.open(os.path.join(self.directory, str(slot)), _APPEND | os.O_TRUNC, 0o644)

    def size(self, slot: int) -> int:
        return os.lseek(self.descriptors[slot], 0, os.SEEK_END)

    def close(self) -> None:
        for slot in self._commands:
            with suppress(FileNotFoundError):
                os.unlink(self._command(slot))
        for slot, descriptor in enumerate(self.descriptors):
            os.close(descriptor)
            try:
                os.unlink(os.path.join(self.directory, str(slot)))
            except OSError:
                pass
        self.descriptors.clear()


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


class OutputStream:
    """The output stream; the processes of a run append to it, readers use offsets and sizes from the ledger."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.full = False
        """There was no disk space for some output; the run should stop."""
        self._descriptor = -1

    def append(self, data: bytes) -> tuple[int, int]:
        """Returns offset and size of the data; (0, 0) if there was no disk space for it."""
        with self._alone():
            return self._append(data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the stream: the run and its launcher both append, and each piece must stay contiguous."""
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
        """Moves a slot's content into the stream and empties the slot; also returns the end of it for messages."""
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
