"""Listeners of the data transport: accept connections, authenticate clients, and dispatch to services.

`Acceptor` is the accept loop of every listener. `DataListener` is the port of a process for other machines: one port,
one token, one certificate for all services (objects, shared memory). The first frame of a connection names the service.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from shoal.data.channel import Channel, FileTroubleError, ServerHandshake
from shoal.data.shelf import ObjectDescription, ObjectShelf, OpenedObject, describe
from shoal.data.transfer_messages import (
    ABSENT,
    CHUNK_BYTES,
    DIFFERENT,
    EXECUTABLE,
    LEAST_TOKEN_BYTES,
    OBJECTS,
    REQUEST_BYTES,
    SENT,
    BadMessageError,
    ObjectReply,
    ObjectRequest,
    RefusedError,
    chunk_length,
    decode_request,
    encode_answer,
    name_length,
)
from shoal.errors import InputError
from shoal.execution.process_limits import is_scarce, shortage

MOST_STRANGERS = 32
"""Maximum number of connections without proof. When another one comes, the oldest is closed."""
OPENING_SECONDS = 10.0
IDLE_SECONDS = 600.0
"""Seconds for which a client may send no request, or read nothing of a reply."""
CLOSE_SECONDS = 2.0
"""Seconds that each reply in progress may take when its listener closes."""
PAUSE_SECONDS = 0.1
WARNING_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Connection(Protocol):
    """A connection as seen by the acceptor."""

    def end(self) -> None:
        """Wakes the thread that waits on the connection, with an error; any thread may call it."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Acceptor(Generic[C]):
    """Accepts connections at one socket and serves each in a thread of its own, until `close`.

    A slow client delays only its own thread. Unauthenticated clients cost little: `MOST_STRANGERS` limits their
    connections. While the process has hardly any descriptors left, new connections wait in the backlog.
    """

    def __init__(
        self,
        listener: socket.socket,
        wrap: Callable[[socket.socket], C],
        admit: Callable[[C], bytes],
        serve: Callable[[C, bytes], None],
    ) -> None:
        """`admit` returns the service that the client requests, or raises; `serve` returns when the client has
        disconnected."""
        self._listener, self._wrap, self._admit, self._serve = listener, wrap, admit, serve
        self._guard = threading.Lock()
        self._strangers: dict[int, C] = {}
        """By serial number, oldest first."""
        self._admitted: dict[int, tuple[bytes, C]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._closed = threading.Event()
        self._warn_at = 0.0
        self._thread = threading.Thread(target=self._run, name="accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections and waits briefly for their threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._guard:
            for stranger in self._strangers.values():
                stranger.end()
            for _, connection in self._admitted.values():
                connection.end()
            threads = list(self._threads.values())
        _join(threads, CLOSE_SECONDS)

    def end(self, service: bytes, patience: float | None) -> None:
        """Ends the connections of one service and waits up to `patience` seconds for each of their threads."""
        threads = []
        with self._guard:
            for serial, (name, connection) in self._admitted.items():
                if name == service:
                    connection.end()
                    threads.append(self._threads[serial])
        _join(threads, patience)

    def _run(self) -> None:
        serials = itertools.count()
        while not self._closed.is_set():
            accepted = self._accept()
            if accepted is None:
                continue
            try:
                connection = self._wrap(accepted)
            except OSError:
                accepted.close()
                continue
            serial = next(serials)
            thread = threading.Thread(target=self._attend, args=(serial, connection), name="serve", daemon=True)
            with self._guard:
                self._strangers[serial], self._threads[serial] = connection, thread
                if len(self._strangers) > MOST_STRANGERS:
                    self._strangers.pop(next(iter(self._strangers))).end()
            thread.start()

    def _accept(self) -> socket.socket | None:
        """Returns the next connection; None after a pause in which none could be accepted."""
        if is_scarce(self._listener.fileno()):
            self._wait(shortage())
            return None
        try:
            return self._listener.accept()[0]
        except OSError as error:
            self._wait(f"cannot accept connections at the moment: {error}")
            return None

    def _wait(self, reason: str) -> None:
        now = time.monotonic()
        if not self._closed.wait(PAUSE_SECONDS) and now >= self._warn_at:
            self._warn_at = now + WARNING_SECONDS
            _log.warning("%s", reason)

    def _attend(self, serial: int, connection: C) -> None:
        """Serves one connection from its first byte to its last."""
        try:
            service = self._admit(connection)
            with self._guard:
                self._strangers.pop(serial, None)
                self._admitted[serial] = service, connection
            if not self._closed.is_set():
                self._serve(connection, service)
        except (OSError, RefusedError, FileTroubleError) as error:
            _log.debug("a connection ends: %s", error)
        finally:
            with self._guard:
                self._strangers.pop(serial, None)
                self._admitted.pop(serial, None)
                del self._threads[serial]
            connection.close()


class DataListener:
    """The port at which other nodes and programs reach the services of this process."""

    def __init__(self, token: bytes, *, host: str = "127.0.0.1", port: int = 0, encrypted: bool = True) -> None:
        """Listens at once. A connection for a service that is not offered ends after the proofs."""
        if len(token) < LEAST_TOKEN_BYTES:
            raise ValueError(f"a token has at least {LEAST_TOKEN_BYTES} bytes")
        self.token, self.encrypted = token, encrypted
        self._handshake = ServerHandshake(token, encrypted)
        self._services: dict[bytes, Callable[[Channel], None]] = {}
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=256)
        except OSError as error:
            raise InputError(
                f"the node cannot listen on {host}:{port}: {error.strerror}",
                remedy="choose another port" if port else "give the agent an address of this machine with --bind",
            ) from None
        self.port: int = listener.getsockname()[1]
        self.address = f"{host}:{self.port}"
        self._acceptor = Acceptor(listener, self._handshake.wrap, self._admit, self._serve)

    def offer(self, service: bytes, serve: Callable[[Channel], None]) -> None:
        """Registers `serve`, which handles the connections for this service, each in a thread of its own."""
        self._services[service] = serve

    def withdraw(self, service: bytes, patience: float | None = None) -> None:
        """Ends a service and its connections; waits up to `patience` seconds for each reply in progress."""
        self._services.pop(service, None)
        self._acceptor.end(service, patience)

    def close(self) -> None:
        """Ends all services."""
        self._acceptor.close()

    def _admit(self, channel: Channel) -> bytes:
        service = self._handshake.admit(channel, OPENING_SECONDS)
        channel.set_patience(IDLE_SECONDS)
        return service

    def _serve(self, channel: Channel, service: bytes) -> None:
        # The acceptor lists the connection under its service before this lookup, so `withdraw` misses none.
        serve = self._services.get(service)
        if serve is None:
            raise BadMessageError(f"the service {service!r} is not offered here")
        serve(channel)


def _join(threads: Collection[threading.Thread], patience: float | None) -> None:
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(patience)


class ObjectServer:
    """Serves a shelf from its construction until `close`."""

    def __init__(self, shelf: ObjectShelf, listener: DataListener) -> None:
        self._shelf, self._listener = shelf, listener
        listener.offer(OBJECTS, self._attend)

    def close(self) -> None:
        """Ends the connections of all peers and waits for their threads."""
        self._listener.withdraw(OBJECTS)

    def _attend(self, channel: Channel) -> None:
        while True:
            head = channel.receive(REQUEST_BYTES)
            self._answer(channel, decode_request(head, channel.receive(name_length(head))))

    def _answer(self, channel: Channel, request: ObjectRequest) -> None:
        opened = self._shelf.open(request.name)
        if opened is None:
            channel.send(encode_answer(ObjectReply(ABSENT)))
            return
        try:
            about, index = opened.description, request.offset // CHUNK_BYTES
            if request.offset > about.size or request.length != chunk_length(about.size, index):
                channel.send(encode_answer(ObjectReply(DIFFERENT)))
                return
            flags = EXECUTABLE if about.executable else 0
            answer = ObjectReply(SENT, flags, request.length, about.chunk_checksum(index))
            channel.send(encode_answer(answer), more=request.length > 0)
            channel.send_file(opened.descriptor, request.offset, request.length)
        finally:
            os.close(opened.descriptor)


class Lender:
    """A shelf of files that stay with their owners."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent: dict[str, tuple[str, tuple[int, ...], ObjectDescription]] = {}

    def lend(self, path: str, name: str) -> ObjectDescription:
        """Offers the file in its current state; lending the same name again replaces the former file."""
        before = _signature(os.stat(path))
        description = describe(path, name, precious=True, seconds_to_get=0.0)
        with self._lock:
            self._lent[name] = (path, before, description)
        return description

    def withdraw(self, name: str) -> None:
        with self._lock:
            self._lent.pop(name, None)

    def open(self, name: str) -> OpenedObject | None:
        with self._lock:
            lent = self._lent.get(name)
        if lent is None:
            return None
        path, signature, description = lent
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        if _signature(os.fstat(descriptor)) != signature:
            os.close(descriptor)
            return None
        return OpenedObject(descriptor, description)


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
