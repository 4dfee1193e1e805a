"""A served store in a process of its own, behind a Unix socket, so that a test can kill it: `store_process.py PATH`."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60.0


class StoreProcess:
    """The process, and a transport to whichever is running."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.breaks = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, __file__, str(self.path)])

    def kill(self) -> None:
        """Ends it without warning."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def ask(self, request: bytes) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(PATIENCE)
                line.connect(str(self.path / "socket"))
                _send(line, request)
                return _receive(line)
        except OSError as error:
            self.breaks += 1
            raise TimeoutError(str(error)) from None


def _send(line: socket.socket, data: bytes) -> None:
    line.sendall(struct.pack("<I", len(data)) + data)


def _receive(line: socket.socket) -> bytes:
    (length,) = struct.unpack("<I", _exactly(line, 4))
    return _exactly(line, length)


def _exactly(line: socket.socket, amount: int) -> bytes:
    data = bytearray()
    while len(data) < amount:
        if not (part := line.recv(amount - len(data))):
            raise ConnectionError("cut off")
        data += part
    return bytes(data)


def main(path: str) -> None:
    from shoal.cluster.stores.server import StoreServer

    server = StoreServer(path)
    place = os.path.join(path, "socket")
    if os.path.exists(place):
        os.unlink(place)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        while True:
            line, _ = listener.accept()
            with line:
                _send(line, server.perform(_receive(line), time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
