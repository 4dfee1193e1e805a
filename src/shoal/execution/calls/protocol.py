"""The protocol between a worker pool and a worker process: the layout of their shared memory, and the payloads of
calls.

Both sides map the start of one memory file and take turns. The pool writes a bundle of calls and rings, which means
that it writes a byte to a socket. The worker copies the bundle out, then writes one record per call from the same
position on, and rings. A record that does not fit into the mapped window is written at the same offset of the file,
which grows. So neither side ever waits for buffer space, and no size of data can cause a deadlock. Results are in the
file and not in the worker, so they survive it: results of finished calls are not lost when a later call crashes the
worker.

This module defines only the layout. `shoal.execution.calls.worker` (the worker's side) and
`shoal.execution.calls.worker_client` (the pool's side) decide who writes when. It imports little: every worker pays for
it at start-up.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.execution.calls.pickling import PICKLING_ERRORS, dumps_by_value, dumps_function

MAX_CALLS = 2048
"""Maximum number of calls per bundle: their withdrawal flags have to fit into the control page."""

# Indices of 8-byte words at the start of the control page.
RUNNING = 0  # 1 + the slot of the latest call that began; 0 before the first
WRITTEN = 1  # the file offset up to which records are complete
DONE = 2  # 1 when the worker has finished the whole bundle
FRAME = 3  # size of the bundle that the pool wrote
STARTED = 4  # a float: when the call in RUNNING began, by the monotonic clock

FLAGS = 64  # one byte per slot: 1 means "do not begin this call"
RECORDS = 4096  # bundles and records start here
WINDOW = 256 * 1024  # size of the mapped part of the file

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

# Descriptors that are open in a worker when it starts.
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
        """Writes `data` at `position`, inside the window or beyond it; returns its end."""
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
        """Returns a copy of `size` bytes at `position`."""
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


_OF_MAIN = b"__main__"


class ValueOf:
    """Stands in an argument for the result of an earlier call that this process has only as pickled bytes.

    It may stand anywhere inside the arguments. Its pickled form is "unpickle these bytes", so the worker gets the value
    and neither side has to search for it.
    """

    __slots__ = ("pickled",)

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def __reduce__(self) -> tuple[object, ...]:
        return pickle.loads, (self.pickled,)


def plain_payload(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bytes:
    """Returns the payload of a plain call; raises what pickling an argument raises."""
    return _dumps((PLAIN, arguments, keywords), dumps_by_value)


def placed_payload(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], environment: Mapping[str, str], directory: str
) -> bytes:
    """Returns the payload of a call with a directory and environment variables of its own."""
    return _dumps((PLACED, dict(environment), directory, arguments, keywords), dumps_by_value)


def task_payload(
    name: str,
    outputs: Sequence[str],
    needs: Sequence[str],
    *,
    values: Mapping[str, bytes] | None = None,
    named: Mapping[str, str | Sequence[str]] | None = None,
    wildcards: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: str = "",
) -> bytes:
    """Returns the payload of a rules action, which is called with a `shoal.execution.calls.task_api.RunningTask`.

    `values` holds the pickled results of those needs that have one. `named` is for needs given as a dict: each name
    stands for one need or several. `environment` and `directory` are as for `placed_payload`.
    """
    about_task = (name, list(outputs), list(needs), dict(values or {}), dict(named or {}), dict(wildcards or {}))
    return pickle.dumps((ACTION, dict(environment or {}), directory, *about_task), 5)


def function_payload(function: Callable[..., Any]) -> bytes:
    """Pickles the function, by reference if a worker can import it, otherwise by value."""
    # A module that is pickled by value (the rules file) was registered with cloudpickle, which alone knows about it.
    if "cloudpickle" in sys.modules:
        return dumps_function(function)
    return _dumps(function, dumps_function)


def _dumps(value: Any, by_value: Callable[[Any], bytes]) -> bytes:
    try:
        data = pickle.dumps(value, 5)
    except PICKLING_ERRORS:
        return by_value(value)
    # Plain pickle refers to definitions of the main program by name, but a worker has another main module.
    return by_value(value) if _OF_MAIN in data else data
