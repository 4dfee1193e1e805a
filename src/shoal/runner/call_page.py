"""The memory that a runner and one of its workers share: where calls go in and results come out.

Both sides map the start of one memory file. They take turns: the runner writes a bundle of calls and rings; the worker
copies it out, then writes one record per call from the same place on, and rings. A record that does not fit into the
mapped window is written at the same offset of the file, which grows, so neither side ever waits for the other and no
size can make them wait for each other. Because results lie in the file and not in the worker, they survive it: what a
call finished is never lost with the call that crashed after it.

This module knows only the layout. Who writes when is up to `shoal.runner.worker` (the worker's side) and
`shoal.runner.call_worker` (the runner's side). It imports little: every worker pays for it when it starts.
"""

from __future__ import annotations

import mmap
import os
import struct

MAX_CALLS = 2048
"""How many calls one bundle may hold: one withdrawal flag each has to fit into the control page."""

# Words of 8 bytes at the start of the control page.
RUNNING = 0  # 1 + the slot of the call that was begun last; 0 before the first
WRITTEN = 1  # the file offset up to which records are complete
DONE = 2  # 1 when the worker has been through the whole bundle
FRAME = 3  # size of the bundle that the runner wrote
STARTED = 4  # a float: when the call in RUNNING began, by the monotonic clock

FLAGS = 64  # one byte per slot: 1 means "do not begin this one"
RECORDS = 4096  # bundles and records start here
WINDOW = 256 * 1024  # how much of the file is mapped

RECORD = struct.Struct("=IIddddQQQ")
"""slot, outcome, began, ended, user CPU, system CPU, peak memory, end of output, size of the body that follows."""

# Outcomes in a record.
FINISHED = 0
FAILED = 1
SKIPPED = 2

# Kinds of call: the first element of an unpickled payload.
PLAIN = 0  # arguments and keywords follow
ACTION = 1  # variables, directory and the description of a running task follow
PLACED = 2  # variables, directory, arguments and keywords follow

# What the worker finds open when it starts.
BELL_FD = 3
MEMORY_FD = 4
LIFELINE_FD = 5
OUTPUT_FD = 6


class Page:
    """One side's view of the shared file."""

    __slots__ = ("file", "memory", "times", "words")

    def __init__(self, file: int) -> None:
        self.file = file
        self.memory = mmap.mmap(file, WINDOW)
        control = memoryview(self.memory)[:FLAGS]
        self.words = control.cast("Q")
        self.times = control.cast("d")

    def store(self, position: int, data: bytes) -> int:
        """Write `data` at `position`, inside the window or behind it; return where it ends."""
        end = position + len(data)
        if end <= WINDOW:
            self.memory[position:end] = data
            return end
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.file, rest, position)
            position += written
            rest = rest[written:]
        return end

    def fetch(self, position: int, size: int) -> bytes | bytearray:
        """A copy of `size` bytes at `position`."""
        if position + size <= WINDOW:
            return self.memory[position : position + size]
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = os.preadv(self.file, [rest], position)
            if not count:
                raise EOFError(f"the shared file ends before offset {position}")
            position += count
            rest = rest[count:]
        return data
