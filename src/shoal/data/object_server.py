"""Sends objects of a shelf, or lent files, to peers: the service `OBJECTS` of a listener.

A peer requests one chunk at a time and may send many requests before the first reply; replies keep the order. The
server keeps no state between two requests, so an object may disappear at any moment; the next request for it gets the
reply `ABSENT`.
"""

from __future__ import annotations

import os
import threading

from shoal.data.channel import Channel
from shoal.data.listener import DataListener
from shoal.data.shelf import ObjectDescription, ObjectShelf, OpenedObject, describe
from shoal.data.transfer_messages import (
    ABSENT,
    CHUNK_BYTES,
    DIFFERENT,
    EXECUTABLE,
    OBJECTS,
    REQUEST_BYTES,
    SENT,
    ObjectReply,
    ObjectRequest,
    chunk_length,
    decode_request,
    encode_answer,
    name_length,
)


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
