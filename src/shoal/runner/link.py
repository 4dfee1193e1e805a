"""Messages between engine and launcher: length and `marshal`, over a socket.

Both ends are the same interpreter and the same Shoal, and one started the other, so there is nothing to validate;
`marshal` is the quickest encoding there is without an import.
"""

from __future__ import annotations

import marshal
import os
from typing import Any, TypeAlias

BOOT = "import sys; sys.path[:] = sys.argv[2:]; from shoal.runner.launcher import main; main(int(sys.argv[1]))"
"""The launcher's program."""
Order: TypeAlias = tuple[int, int, str, float | None, tuple[tuple[str, str], ...], str | None]
"""Task, attempt, command, time limit, variables, directory."""
_PIECE = 1 << 20


class Link:
    """One end. A descriptor in non-blocking mode keeps what cannot be sent at once for `push`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._arrived = bytearray()
        self._unsent = bytearray()

    def send(self, message: tuple[Any, ...] | list[Any]) -> None:
        data = marshal.dumps(message)
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
