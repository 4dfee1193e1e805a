"""The live page beside `shoal run --web`: a companion process that serves it and ends soon after the run.

The run opens the socket and passes it on, so that the address is known at once and the run need not wait. The companion
process reads the ledger like any reader, runs at low priority, and does nothing until the first request.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 64


_FREED_SECONDS = 4.0
"""How long to wait for a port: the page of the previous run is served for a moment after its end."""


def listen(port: int) -> socket.socket:
    """Returns a listening socket on the loopback address; port 0 stands for any free port."""
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
    """The URL to open in a browser."""
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/{token}/"


_DYING_SECONDS = 2.0
"""Time in which a killed run releases its lock after its end of the pipe has closed."""


class CompanionServer:
    """Starts and ends the companion process, on the side of the run."""

    def __init__(self, workflow: str, port: int = 0) -> None:
        listening = listen(port)
        token = secrets.token_urlsafe(24)
        self.address = address_of(listening, token)
        receive, self._send = os.pipe()
        command = [
            sys.executable,
            "-P",
            "-m",
            "shoal.ui.web.companion",
            str(listening.fileno()),
            str(receive),
            workflow,
        ]
        # A run kills all its descendants. A shell starts this process and exits before the run begins, so it is none.
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
        os.write(self._send, token.encode() + b"\n")  # not as an argument, which all users could see

    def close(self) -> None:
        """Signals the end of the run: the companion shows it and exits. The death of the run has the same effect."""
        os.close(self._send)


def main() -> int:
    """Serves on an inherited socket until the run, which holds the other end of a pipe, has ended."""
    from shoal.ledger.workspace import Workspace
    from shoal.ui.web.server import PageServer, of_run, serve_until

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
        serve_until(PageServer(listening, token, of_run(workspace)), is_over)
    return 0


_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""Parameters of `mallopt`, from malloc.h."""
_LARGE = 1 << 20
_NICE = 10


def use_one_heap() -> None:
    """Limits malloc to one arena. Must be called before threads start and before numpy is loaded, because the threads
    that numpy would start cost more than they gain here."""
    _mallopt(_ARENA_MAX, 1)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def yield_to_others() -> None:
    """Lowers the scheduling priority, so that this process uses only processor time that others leave."""
    os.nice(_NICE)
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # forbidden in some containers
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_back() -> None:
    """Returns free memory to the system now, and large blocks from now on as soon as they are freed."""
    _mallopt(_MMAP_THRESHOLD, _LARGE)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mallopt(name: int, value: int) -> None:
    found = getattr(ctypes.CDLL(None), "mallopt", None)
    if found is not None:
        found(name, value)


if __name__ == "__main__":
    sys.exit(main())
