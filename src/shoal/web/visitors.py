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
        self._known: dict[socket.socket, bool] = {}
        """In the order in which they asked last, and whether they have been answered; others wait or listen."""
        self._changing = threading.Lock()

    @property
    def known(self) -> int:
        """How many are here who have shown the token."""
        with self._changing:
            return len(self._known)

    @property
    def idle(self) -> int:
        """How many of those have been answered, and ask for nothing."""
        with self._changing:
            return sum(self._known.values())

    def admit(self, visitor: socket.socket) -> bool:
        """Somebody has come; whether there is room."""
        with self._changing:
            if len(self._strangers) + len(self._known) >= self._most:
                first = self._first_to_go()
                if first is None:
                    return False
                with suppress(OSError):  # it has gone by itself
                    first.shutdown(socket.SHUT_RDWR)  # whoever reads from it sees its end, and closes it
            self._strangers[visitor] = None
            return True

    def _first_to_go(self) -> socket.socket | None:
        """Takes somebody off; None: all are known, and wait for an answer or listen."""
        for stranger in self._strangers:
            del self._strangers[stranger]
            return stranger
        for visitor, is_answered in self._known.items():
            if is_answered:
                del self._known[visitor]
                return visitor
        return None

    def know(self, visitor: socket.socket) -> None:
        """One who is here has shown the token, and asks for something."""
        with self._changing:
            if visitor in self._strangers or visitor in self._known:
                self._strangers.pop(visitor, None)
                self._known.pop(visitor, None)
                self._known[visitor] = False

    def rest(self, visitor: socket.socket) -> None:
        """One has been answered, and may ask again."""
        with self._changing:
            if visitor in self._known:
                self._known[visitor] = True

    def leave(self, visitor: socket.socket) -> None:
        """One has gone."""
        with self._changing:
            self._known.pop(visitor, None)
            self._strangers.pop(visitor, None)
