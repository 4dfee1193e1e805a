"""Gives the objects of a shelf to peers who know the token.

One thread accepts, one serves each connection: a slow peer waits in its own. A peer asks for one chunk at a time and
may ask for many before the first has come; answers keep the order. Nothing is kept between two requests, so an object
may go at any moment and the next request for it is answered with `ABSENT`.

Strangers cost little: only so many connections may be without proof at once, and the oldest of them goes when another
comes; a peer that stands still for too long is left.
"""

from __future__ import annotations

import logging
import os
import socket
import threading

from shoal.depot.accept import Acceptor
from shoal.depot.channel import Channel, Doorman, FileTroubleError
from shoal.depot.checksum import CHUNK_BYTES, chunk_length
from shoal.depot.protocol import (
    ABSENT,
    DIFFERENT,
    EXECUTABLE,
    LEAST_TOKEN_BYTES,
    REQUEST_BYTES,
    SENT,
    Answer,
    BadMessageError,
    Grant,
    RefusedError,
    Request,
    decode_request,
    encode_answer,
    name_length,
)
from shoal.depot.shelf import Shelf
from shoal.errors import InputError

MOST_STRANGERS = 32
"""Connections that may be without proof at once."""
OPENING_SECONDS = 10.0
IDLE_SECONDS = 600.0
"""How long a peer may ask nothing, or take nothing of what it asked for."""

_log = logging.getLogger(__name__)


class Server:
    """Serves from the moment it is made until `close`."""

    def __init__(
        self, shelf: Shelf, token: bytes, *, host: str = "127.0.0.1", port: int = 0, encrypted: bool = True
    ) -> None:
        if len(token) < LEAST_TOKEN_BYTES:
            raise ValueError(f"a token has at least {LEAST_TOKEN_BYTES} bytes")
        self._shelf = shelf
        self._token = token
        self._encrypted = encrypted
        self._doorman = Doorman(token, encrypted)
        self._guard = threading.Lock()
        self._strangers: dict[int, None] = {}
        """Serial numbers of connections without proof, oldest first."""
        self._channels: dict[int, Channel] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._closed = threading.Event()
        self.sent_bytes = 0
        """Of objects, counted when a chunk has gone out whole."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=256)
        except OSError as error:
            raise InputError(
                f"the depot cannot listen on {host}:{port}: {error.strerror}", remedy="choose another port"
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="depot accept", daemon=True)
        self._acceptor.start()

    def grant(self, host: str) -> Grant:
        """What a peer needs that knows this machine by that name."""
        return Grant(host, self.port, self._token, self._encrypted)

    def close(self) -> None:
        """Ends all connections and waits for their threads."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._guard:
            for channel in self._channels.values():
                channel.end()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        serial = 0
        acceptor = Acceptor(self._listener, self._closed)
        while not self._closed.is_set():
            connection = acceptor.accept()
            if connection is None:
                continue
            serial += 1
            try:
                channel = self._doorman.receive(connection)
            except OSError:
                connection.close()
                continue
            thread = threading.Thread(target=self._attend, args=(serial, channel), name="depot serve", daemon=True)
            with self._guard:
                self._strangers[serial] = None
                self._channels[serial] = channel
                self._threads[serial] = thread
                if len(self._strangers) > MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._channels[oldest].end()
            thread.start()

    def _attend(self, serial: int, channel: Channel) -> None:
        """One connection from its first byte to its last."""
        try:
            self._doorman.admit(channel, OPENING_SECONDS)
            channel.set_patience(IDLE_SECONDS)
            with self._guard:
                self._strangers.pop(serial, None)
            while not self._closed.is_set():
                head = channel.receive(REQUEST_BYTES)
                self._answer(channel, decode_request(head, channel.receive(name_length(head))))
        except (OSError, BadMessageError, RefusedError, FileTroubleError) as error:
            _log.debug("the depot leaves a connection: %s", error)
        finally:
            with self._guard:
                self._strangers.pop(serial, None)
                del self._channels[serial], self._threads[serial]
            channel.close()

    def _answer(self, channel: Channel, request: Request) -> None:
        opened = self._shelf.open(request.name)
        if opened is None:
            channel.send(encode_answer(Answer(ABSENT)))
            return
        try:
            about, index = opened.description, request.offset // CHUNK_BYTES
            if request.offset > about.size or request.length != chunk_length(about.size, index):
                channel.send(encode_answer(Answer(DIFFERENT)))
                return
            flags = EXECUTABLE if about.executable else 0
            answer = Answer(SENT, flags, request.length, about.chunk_checksum(index))
            channel.send(encode_answer(answer), more=request.length > 0)
            channel.send_file(opened.descriptor, request.offset, request.length)
            with self._guard:
                self.sent_bytes += request.length
        finally:
            os.close(opened.descriptor)
