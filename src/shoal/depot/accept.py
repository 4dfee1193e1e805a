"""Taking connections as long as there are descriptors for them; else those who come wait."""

from __future__ import annotations

import logging
import socket
import threading
import time

from shoal.descriptors import is_scarce, shortage

PAUSE_SECONDS = 0.1
SAY_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts at one socket, in a thread of its own."""

    def __init__(self, listener: socket.socket, closed: threading.Event) -> None:
        self._listener, self._closed = listener, closed
        self._say_at = 0.0

    def accept(self) -> socket.socket | None:
        """The next connection; None after a moment in which none could be taken."""
        if is_scarce(self._listener.fileno()):
            self._wait(shortage())
            return None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            self._wait(f"no connection can be taken for now: {error}")
            return None
        return connection

    def _wait(self, why: str) -> None:
        now = time.monotonic()
        if not self._closed.wait(PAUSE_SECONDS) and now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            _log.warning("%s", why)
