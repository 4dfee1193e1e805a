"""The socket that a page is served on, apart from the server: a run opens it without loading any of that."""

from __future__ import annotations

import errno
import socket
import time

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64


_FREED_SECONDS = 4.0
"""The page of a run that has ended is served for a moment longer; the next run on the same port waits for that."""


def listen(port: int) -> socket.socket:
    """A socket on the loopback address; port 0 stands for any that is free."""
    deadline = time.monotonic() + _FREED_SECONDS
    while True:
        try:
            return _listen(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)


def _listen(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen(MOST_CONNECTIONS)
    except OSError:
        found.close()
        raise
    return found


def address_of(listening: socket.socket, token: str) -> str:
    """What is opened in a browser."""
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/{token}/"
