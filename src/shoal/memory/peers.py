"""Asking the memory services of other nodes: connections that are kept for the next question, one question at a time.

Trouble on the way is an `OSError`; whom to ask instead, and for how long to go on, is for others to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from shoal.depot.channel import Channel, FileTroubleError, dial, introduce
from shoal.depot.handshake import MEMORY, Grant, RefusedError
from shoal.errors import InputError
from shoal.memory.protocol import HEAD_BYTES, Message, Place, Read, Refused, Write, checked, decode, encode, length_of

PATIENCE_SECONDS = 30.0
"""How long a node may be silent while it is asked."""
MOST_IDLE = 4
"""Connections to one node that are kept without a question."""


def send(channel: Channel, message: Message, *, more: bool = False) -> None:
    channel.send(encode(message), more=more)


def receive(channel: Channel) -> Message:
    return decode(channel.receive(length_of(channel.receive(HEAD_BYTES))))


class Peers:
    """All nodes that one service asks."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._guard = threading.Lock()
        self._idle: dict[Place, list[Channel]] = {}
        self._closed = False
        self.received_bytes = 0
        """Of extents, from other nodes."""

    def ask(self, place: Place, message: Message) -> Message:
        """The answer, or the error that it tells of."""
        return self._asked(place, message, lambda channel: None)

    def read(self, place: Place, message: Read, descriptor: int, at: int) -> None:
        """Bytes of an extent, to that place of a file."""

        def take(channel: Channel) -> None:
            channel.receive_file(descriptor, at, message.length, summed=False)
            with self._guard:
                self.received_bytes += message.length

        self._asked(place, message, take)

    def write(self, place: Place, message: Write, descriptor: int, offset: int) -> None:
        """Bytes of a file, for an extent."""

        def give(channel: Channel) -> None:
            channel.send_file(descriptor, offset, message.length)
            checked(receive(channel))

        self._asked(place, message, give)

    def dial(self, place: Place) -> Channel:
        """A connection of its own."""
        host, _, port = place.address.rpartition(":")
        if not port.isdigit():
            raise ConnectionRefusedError(f"{place.name} has no address for other nodes")
        grant = Grant(host, int(port), self._token, place.encrypted)
        channel = dial(grant, PATIENCE_SECONDS)
        try:
            introduce(channel, grant, MEMORY)
        except RefusedError as error:
            channel.close()
            raise ConnectionRefusedError(str(error)) from None
        except OSError:
            channel.close()
            raise
        return channel

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, {}
        for channels in idle.values():
            for channel in channels:
                channel.close()

    def _asked(self, place: Place, message: Message, then: Callable[[Channel], None]) -> Message:
        """Over a connection that is there, or a new one; one that was kept may have been closed meanwhile."""
        with self._guard:
            kept = self._idle.get(place)
            channel = kept.pop() if kept else None
        if channel is not None:
            try:
                return self._over(channel, place, message, then)
            except ConnectionError:
                pass  # the other side has closed it for want of questions, or is gone: a new one will tell
        return self._over(self.dial(place), place, message, then)

    def _over(self, channel: Channel, place: Place, message: Message, then: Callable[[Channel], None]) -> Message:
        try:
            send(channel, message)
            answer = receive(channel)
            if not isinstance(answer, Refused):
                then(channel)
        except InputError:  # the whole exchange is over, and the connection as good as before
            self._keep(channel, place)
            raise
        except FileTroubleError as error:
            channel.close()
            raise OSError(error.errno, str(error)) from None
        except OSError:
            channel.close()
            raise
        self._keep(channel, place)
        return checked(answer)

    def _keep(self, channel: Channel, place: Place) -> None:
        with self._guard:
            kept = self._idle.setdefault(place, [])
            if not self._closed and len(kept) < MOST_IDLE:
                kept.append(channel)
                return
        channel.close()
