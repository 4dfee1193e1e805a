"""Doors: a listening socket, a thread that accepts, and one for each connection; strangers cost little.

What is said at a door is the business of whoever opens it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Protocol

from shoal.depot.accept import Acceptor
from shoal.depot.channel import Channel, Doorman, FileTroubleError
from shoal.depot.protocol import BadMessageError, RefusedError
from shoal.errors import InputError
from shoal.memory.line import Line

MOST_STRANGERS = 32
"""Connections that may be without proof at once; the oldest goes when another comes."""
OPENING_SECONDS = 10.0
IDLE_SECONDS = 600.0
CLOSE_SECONDS = 2.0
"""How long an answer that is being given may still take at the end."""
_log = logging.getLogger(__name__)


class Guest(Protocol):
    """A connection at a door."""

    def end(self) -> None:
        """Wakes whoever waits on the connection; any thread may call it."""

    def close(self) -> None: ...


class Door:
    """Open from the moment it is made until `close`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._guard = threading.Lock()
        self._guests: dict[int, Guest] = {}
        self._strangers: dict[int, None] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._closed = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="memory accept", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Ends all connections and waits a moment for their threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._guard:
            for guest in self._guests.values():
                guest.end()
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_SECONDS)

    def receive(self, connection: socket.socket) -> Guest:
        """What stands at the door."""
        raise NotImplementedError

    def admit(self, guest: Guest) -> None:
        """Finds out who it is; an OSError or a RefusedError if they may not come in."""
        raise NotImplementedError

    def attend(self, guest: Guest) -> None:
        """Answers until the other side goes."""
        raise NotImplementedError

    def _accept(self) -> None:
        serial = 0
        acceptor = Acceptor(self._listener, self._closed)
        while not self._closed.is_set():
            connection = acceptor.accept()
            if connection is None:
                continue
            serial += 1
            try:
                guest = self.receive(connection)
            except OSError:
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(serial, guest), name="memory serve", daemon=True)
            with self._guard:
                self._strangers[serial] = None
                self._guests[serial], self._threads[serial] = guest, thread
                if len(self._strangers) > MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._guests[oldest].end()
            thread.start()

    def _serve(self, serial: int, guest: Guest) -> None:
        try:
            self.admit(guest)
            with self._guard:
                self._strangers.pop(serial, None)
            if not self._closed.is_set():
                self.attend(guest)
        except (OSError, BadMessageError, RefusedError, FileTroubleError) as error:
            _log.debug("the memory service leaves a connection: %s", error)
        finally:
            with self._guard:
                self._strangers.pop(serial, None)
                del self._guests[serial], self._threads[serial]
            guest.close()


class OuterDoor(Door):
    """For other machines: only those who know the token get in."""

    def __init__(self, host: str, token: bytes, encrypted: bool, attend: Callable[[Channel], None]) -> None:
        self._doorman = Doorman(token, encrypted)
        self._attend = attend
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, 0), family=family, backlog=256)
        except OSError as error:
            raise InputError(
                f"the memory service cannot listen on {host}: {error.strerror}",
                remedy="give the agent an address of this machine with --bind",
            ) from None
        self.port: int = listener.getsockname()[1]
        super().__init__(listener)

    def receive(self, connection: socket.socket) -> Guest:
        return self._doorman.receive(connection)

    def admit(self, guest: Guest) -> None:
        self._doorman.admit(guest, OPENING_SECONDS)  # type: ignore[arg-type]  # what `receive` returned
        guest.set_patience(IDLE_SECONDS)  # type: ignore[attr-defined]

    def attend(self, guest: Guest) -> None:
        self._attend(guest)  # type: ignore[arg-type]


class InnerDoor(Door):
    """For tasks of this machine and this user; it stands in a folder that nobody else may enter."""

    def __init__(self, path: str, attend: Callable[[Line], None]) -> None:
        self._attend = attend
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(256)
        super().__init__(listener)

    def receive(self, connection: socket.socket) -> Guest:
        return Line(connection)

    def admit(self, guest: Guest) -> None:
        assert isinstance(guest, Line)
        told = guest.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", told)
        if user not in (os.geteuid(), 0):
            raise RefusedError("somebody else's process")

    def attend(self, guest: Guest) -> None:
        assert isinstance(guest, Line)
        self._attend(guest)
