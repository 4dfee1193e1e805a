"""A connection within one machine, over which descriptors of memory can be passed."""

from __future__ import annotations

import os
import socket


class Line:
    """A connection within the machine, over which descriptors can be passed."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        sent = socket.send_fds(self.socket, [data], list(descriptors))
        self.socket.sendall(memoryview(data)[sent:])

    def receive(self, length: int) -> tuple[bytes, list[int]]:
        """Exactly so many bytes, and the descriptors that came with the first of them."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, length, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            while len(data) < length:
                more = self.socket.recv(length - len(data))
                if not more:
                    raise ConnectionResetError("the other side has closed the connection")
                data += more
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return data, descriptors

    def end(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self.socket.close()
