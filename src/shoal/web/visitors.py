"""Who is connected to a server: those who have shown the token, and strangers, who keep nobody out."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Visitors:
    """So many at a time. Where there is no room left somebody goes in favour of the next one: the stranger who came
    first, or else of those who have shown the token the one who has asked for nothing for the longest time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._strangers: dict[socket.socket, None] = {}
        """In the order in which they came."""
        self._idle: dict[socket.socket, None] = {}
        """Known, in the order of their last answers."""
        self._busy: set[socket.socket] = set()
        """Known, and waiting for an answer or listening."""
        self._changing = threading.Lock()

    @property
    def known(self) -> int:
        """How many are here who have shown the token."""
        with self._changing:
            return len(self._idle) + len(self._busy)

    def admit(self, visitor: socket.socket) -> bool:
        """Somebody has come; whether there is room."""
        with self._changing:
            if len(self._strangers) + len(self._idle) + len(self._busy) >= self._most:
                line = self._strangers or self._idle
                if not line:
                    return False
                first = next(iter(line))
                del line[first]
                with suppress(OSError):  # it has gone by itself
                    first.shutdown(socket.SHUT_RDWR)  # whoever reads from it sees its end, and closes it
            self._strangers[visitor] = None
            return True

    def know(self, visitor: socket.socket) -> None:
        """One who is here has shown the token, and asks for something."""
        with self._changing:
            for line in (self._strangers, self._idle):
                if visitor in line:
                    del line[visitor]
                    self._busy.add(visitor)

    def rest(self, visitor: socket.socket) -> None:
        """One has been answered, and may ask again."""
        with self._changing:
            if visitor in self._busy:
                self._busy.discard(visitor)
                self._idle[visitor] = None

    def leave(self, visitor: socket.socket) -> None:
        """One has gone."""
        with self._changing:
            self._busy.discard(visitor)
            self._idle.pop(visitor, None)
            self._strangers.pop(visitor, None)
