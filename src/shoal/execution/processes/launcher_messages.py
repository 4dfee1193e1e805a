"""Messages between a run and its launcher: length and `marshal`, over a socket.

Both ends belong to the same version of Shoal, and one started the other, so nothing is validated. `marshal` is the
fastest encoding that needs no import. Its version 2 has no references between objects, so that the compiled launcher
can read it with a few lines of code.

The run first sends its settings, then `(START, place, orders)` and `(KILL, task, outcome, why, at once)`. The launcher
sends lists of tuples that begin with `ended`, `course`, `running`, `grew` or `full`. After `ended` follow: task,
attempt, outcome, exit status, start and end time, user and system CPU seconds, peak memory of the largest process,
offset and size of the output, message, end of the output; then bytes read and written, context switches, major page
faults; for the whole tree (0 if it was too short to be measured): peak resident, virtual and swapped memory, maximum
number of processes at once, total number of processes; thousandths of cores; and for tasks with a disk limit their disk
usage in bytes and files. For attempts of a second or more, `course` comes first: task, attempt, points of the time
series.
"""

from __future__ import annotations

import marshal
import os
from typing import Any, TypeAlias

BOOT = (
    "import sys; sys.path[:] = sys.argv[2:]; from shoal.execution.processes.launcher import main;"
    " main(int(sys.argv[1]))"
)
"""The launcher's program."""
START, KILL = 0, 1
Plain: TypeAlias = tuple[int, int, bytes, float, bytes, bytes, int, bytes]
"""Task, attempt, command, time limit (negative: none), variables (each `NAME=value` and a zero byte), directory, memory
limit in bytes (0: none; negative: not enforced, but a `grew` row reports when it is exceeded), words of the shell (each
followed by a zero byte; none: /bin/sh; an empty one first: use the shell even for commands that need none)."""
Order: TypeAlias = Plain | tuple[int, int, bytes, float, bytes, bytes, int, bytes, int, bytes]
"""Orders with a disk limit add the limit in bytes, and the output files and directories, each path followed by a zero
byte."""
NO_LIMIT = -1.0
NO_MEMORY_LIMIT = 0
_VERSION = 2
_PIECE = 1 << 16


class MessageLink:
    """One end of the connection. A non-blocking descriptor keeps what cannot be sent at once for `push`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._arrived = bytearray()
        self._unsent = bytearray()

    def send(self, message: tuple[Any, ...] | list[Any]) -> None:
        data = marshal.dumps(message, _VERSION)
        self._unsent += len(data).to_bytes(4, "little") + data
        self.push()

    def push(self) -> bool:
        """Sends waiting data; returns whether all of it is sent. If the other end is closed, it is dropped; `receive`
        reports that."""
        unsent = self._unsent
        while unsent:
            try:
                del unsent[: os.write(self.descriptor, unsent)]
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                unsent.clear()
        return True

    def receive(self) -> list[Any] | None:
        """Returns the complete messages that have arrived; None when the other end is closed."""
        try:
            piece = os.read(self.descriptor, _PIECE)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            piece = b""
        if not piece:
            return None
        arrived = self._arrived
        arrived += piece
        messages = []
        at, size = 0, len(arrived)
        while size - at >= 4:
            end = at + 4 + int.from_bytes(arrived[at : at + 4], "little")
            if end > size:
                break
            messages.append(marshal.loads(memoryview(arrived)[at + 4 : end]))
            at = end
        del arrived[:at]
        return messages
