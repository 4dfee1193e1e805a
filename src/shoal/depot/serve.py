"""Sends the objects of a shelf to peers: the service `OBJECTS` of a listener.

A peer asks for one chunk at a time and may ask for many before the first has come; answers keep the order. The server
keeps no state between two requests, so an object may go at any moment and the next request for it is answered with
`ABSENT`.
"""

from __future__ import annotations

import os

from shoal.depot.channel import Channel
from shoal.depot.checksum import CHUNK_BYTES, chunk_length
from shoal.depot.handshake import OBJECTS
from shoal.depot.listener import DataListener
from shoal.depot.protocol import (
    ABSENT,
    DIFFERENT,
    EXECUTABLE,
    REQUEST_BYTES,
    SENT,
    Answer,
    Request,
    decode_request,
    encode_answer,
    name_length,
)
from shoal.depot.shelf import Shelf


class Server:
    """Serves a shelf from the moment it is made until `close`."""

    def __init__(self, shelf: Shelf, listener: DataListener) -> None:
        self._shelf, self._listener = shelf, listener
        listener.offer(OBJECTS, self._attend)

    def close(self) -> None:
        """Ends the connections of all peers and waits for their threads."""
        self._listener.withdraw(OBJECTS)

    def _attend(self, channel: Channel) -> None:
        while True:
            head = channel.receive(REQUEST_BYTES)
            self._answer(channel, decode_request(head, channel.receive(name_length(head))))

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
        finally:
            os.close(opened.descriptor)
