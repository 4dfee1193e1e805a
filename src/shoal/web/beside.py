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
import time

from shoal.web.door import address_of, listen

_DYING_SECONDS = 2.0
"""A run that is killed lets go of its end of the pipe and of its lock at about the same time."""


class Beside:
    """The other process, seen from the run."""

    def __init__(self, workflow: str, port: int = 0) -> None:
        listening = listen(port)
        token = secrets.token_urlsafe(24)
        self.address = address_of(listening, token)
        receive, self._send = os.pipe()
        command = [sys.executable, "-P", "-m", "shoal.web.beside", str(listening.fileno()), str(receive), workflow]
        # A run ends everything that it has started. So a shell starts this and goes, before the run begins.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listening.fileno(), receive],
            start_new_session=True,
            check=True,
        )
        listening.close()
        os.close(receive)
        os.write(self._send, token.encode() + b"\n")  # not as an argument: those everybody can see

    def close(self) -> None:
        """The run is over; the other process sees that, shows it, and goes. It sees the death of the run, too."""
        os.close(self._send)


def main() -> int:
    """Serves on an inherited socket until the run, which holds the other end of a pipe, is gone."""
    from shoal.engine.workspace import Workspace
    from shoal.web.server import Server, of_run, serve_until
    from shoal.web.thrift import use_one_heap, yield_to_others

    yield_to_others()
    use_one_heap()
    listening = socket.socket(fileno=int(sys.argv[1]))
    workspace = Workspace(sys.argv[3])
    is_over = threading.Event()
    with os.fdopen(int(sys.argv[2])) as run:
        token = run.readline().strip()

        def wait_for_the_end() -> None:
            run.read()
            deadline = time.monotonic() + _DYING_SECONDS
            while workspace.holder() is not None and time.monotonic() < deadline:
                time.sleep(0.01)
            is_over.set()

        threading.Thread(target=wait_for_the_end, name="run", daemon=True).start()
        serve_until(Server(listening, token, of_run(workspace)), is_over)
    return 0


if __name__ == "__main__":
    sys.exit(main())
