"""Messages between engine and launcher: length and `marshal`, over a socket.

Both ends are the same Shoal, and one started the other, so there is nothing to validate; `marshal` is the quickest
encoding there is without an import. Version 2 has no references between objects, so that the compiled launcher can read
it in a few lines.

What the engine sends: first its settings, then `(START, place, orders)` and `(KILL, task, outcome, why, at once)`. What
comes back are lists of tuples that begin with `ended`, `course`, `running`, `grew` or `full`. Behind `ended` stand:
task, attempt, outcome, exit status, moments of start and end, user and system CPU seconds, peak of the largest process,
place and size of the output, message, last words; then bytes read and written, context switches, major page faults; of
the whole tree, 0 where it was too short to be looked at: peaks of resident, virtual and swapped memory, most processes
at once, processes in all; thousandths of cores; and for those with a limit of disk what they had of it, in bytes and
files. Of one that took a second or more the `course` comes before: task, attempt, points.
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
"""Task, attempt, command, time limit (negative: none), variables (`NAME=value`, each ended by a zero), directory,
memory limit in bytes (0: none; negative: not held, but a `grew` row tells when it is passed), words of the shell (each
ended by a zero; none: /bin/sh; an empty one first: also for a command that needs no shell)."""
Order: TypeAlias = Plain | tuple[int, int, bytes, float, bytes, bytes, int, bytes, int, bytes]
"""What has a limit of disk tells it in bytes, and the files and directories it makes, each path ended by a zero."""
NO_LIMIT = -1.0
NO_MEMORY_LIMIT = 0
_VERSION = 2
_PIECE = 1 << 16


class MessageLink:
    """One end. A descriptor in non-blocking mode keeps what cannot be sent at once for `push`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._arrived = bytearray()
        self._unsent = bytearray()

    def send(self, message: tuple[Any, ...] | list[Any]) -> None:
        data = marshal.dumps(message, _VERSION)
        self._unsent += len(data).to_bytes(4, "little") + data
        self.push()

    def push(self) -> bool:
        """Sends what is waiting; whether all of it is gone. Nobody at the other end: it is dropped, `receive` tells."""
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
        """Whole messages that have arrived; None when the other end is gone."""
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
