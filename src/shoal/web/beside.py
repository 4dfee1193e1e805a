"""The live page of a run that is about to begin: a process beside it, which ends soon after the run does.

The run opens the socket and hands it over, so that the address is known at once and the run need not wait for anything.
The other process reads the ledger like any reader, yields to the tasks, and does nothing until somebody looks.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading

from shoal.web.server import Server, address_of, listen, serve_until

_NICE = 10


class Beside:
    """The other process, seen from the run."""

    def __init__(self, workflow: str, port: int = 0) -> None:
        listening = listen(port)
        token = secrets.token_urlsafe(24)
        self.address = address_of(listening, token)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shoal.web.beside", str(listening.fileno()), workflow],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            start_new_session=True,  # Ctrl-C is for the run, which then ends this in its own way
        )
        listening.close()
        assert self._process.stdin is not None
        self._process.stdin.write(token.encode() + b"\n")  # not as an argument: those everybody can see
        self._process.stdin.flush()

    def close(self) -> None:
        """The run is over; the other process sees that, shows it, and goes."""
        assert self._process.stdin is not None
        self._process.stdin.close()


def main() -> int:
    """Serves on an inherited socket until the run, which holds the other end of our standard input, is gone."""
    from shoal.engine.workspace import Workspace

    os.nice(_NICE)
    listening = socket.socket(fileno=int(sys.argv[1]))
    token = sys.stdin.readline().strip()
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, name="run", daemon=True).start()
    serve_until(Server(listening, token, Workspace(sys.argv[2])), is_over)
    return 0


if __name__ == "__main__":
    sys.exit(main())
