"""One agent as a client sees it: the line to its farm, what the farm has, and what the client has there.

A line is *open* when the farm has told what it has. It is *lost* when the farm says that it does not know us, when the
connection broke and nothing was heard since, or when a question stays unanswered for long: then nothing that comes over
it counts any more. What to put on which line, and what becomes of a lost one, is up to `shoal.futures.cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.errors import InputError
from shoal.futures.farming import (
    UNKNOWN,
    CallsAsked,
    CallsTold,
    CallsUnwanted,
    FarmsAsked,
    FarmsTold,
    FarmTold,
    FromFarm,
    Opening,
    Refused,
    ToFarm,
    decode_from_farm,
    encode_item,
)
from shoal.futures.stream import Stream
from shoal.model.resources import Resources
from shoal.wire.access import Access, Role
from shoal.wire.envelope import BadFrame, Codec
from shoal.wire.gate import Context, Socket, client_socket

BEAT_SECONDS = 1.0
"""So often we say that we live, and ask the same."""
ASK_AGAIN_SECONDS = 5.0
"""An agent that does not answer is asked seldom: what it has not read must not fill its socket."""
BROKEN_SECONDS = 2.0
"""A connection that broke may come back within this time."""
SILENCE_SECONDS = 15.0
"""An agent may take so long to answer: it may be busy, or the network away for a while."""

MOST_SOCKETS = 65_535
"""Each line takes three."""

Said = FarmsAsked | FarmsTold | CallsAsked | CallsTold | CallsUnwanted | Refused


def make_codec() -> Codec[Said]:
    """That part of what agents say which clients with calls need."""
    return Codec(Said)


class Wire:
    """What all lines of a client share: how frames are made, and read from a socket."""

    def __init__(self, context: Context, access: Access, sender: str) -> None:
        self.context, self.access, self.sender = context, access, sender
        context.set(zmq.MAX_SOCKETS, min(MOST_SOCKETS, int(context.get(zmq.SOCKET_LIMIT))))
        self.codec = make_codec()
        self._serial = 0

    def socket(self, *addresses: str) -> Socket:
        socket = client_socket(self.context, self.access, Role.CLIENT, self.codec.limit_bytes)
        # We beat ourselves. libzmq's own heartbeat ends the whole program (an assertion in version 4.3.5) if the other
        # side goes while so much has arrived that was not read; our thread may wait for the interpreter lock for long.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        for address in addresses:
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                socket.close()
                raise InputError(f"{address!r} is not the address of an agent: {error.strerror}") from None
        return socket

    def send(self, socket: Socket, message: Said) -> bool:
        """Whether it could be handed over."""
        self._serial += 1
        frame = self.codec.frame(self.access.cluster, self.sender, self._serial, [self.codec.packed(message)])
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def received(self, socket: Socket) -> Iterator[Said]:
        """Everything that has arrived; what is not understood is as good as lost."""
        while True:
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                envelope = self.codec.decode(frame)
            except BadFrame:
                continue
            if envelope.cluster == self.access.cluster:
                yield from envelope.messages


@dataclass(slots=True, eq=False)
class Held:
    """What one place holds on a line: resources, until its last call is over."""

    line: Line
    place: int
    needs: Resources
    left: int = 0


class Line:
    """The connection to one farm."""

    def __init__(self, wire: Wire, address: str, session: str, opening: Opening, now: float) -> None:
        self.address = address
        self.session = session
        self.since = now
        self.told: FarmTold | None = None
        self.known: set[int] = set()
        """Functions that the farm has been given."""
        self.is_listed = True
        self.is_unknown = False
        self._wire = wire
        self._free: dict[str, int] = {}
        self._stream = Stream()
        self._socket = wire.socket()
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self.fd = int(self._socket.get(zmq.FD))
        self._sent_at = now
        self._asked_at: float | None = None
        self._broken_at: float | None = None
        self.put(opening)

    # ---- what there is, and what is taken ------------------------------------------------------------------------

    @property
    def takes_calls(self) -> bool:
        told = self.told
        return told is not None and not told.refusal and not told.leaving and self.is_listed

    def could_hold(self, needs: Resources) -> bool:
        """Whether there would be room if nothing else were there."""
        return self.told is not None and not needs.lacking_in(self.told.resources)

    def has_room(self, needs: Resources) -> bool:
        for name, amount in needs.amounts:
            if amount > self._free.get(name, 0):
                return False
        return True

    def free_cores(self) -> int:
        return self._free.get("cores", 0)

    def hold(self, place: int, needs: Resources) -> Held:
        for name, amount in needs.amounts:
            self._free[name] -= amount
        return Held(self, place, needs)

    def let_go(self, held: Held) -> None:
        for name, amount in held.needs.amounts:
            self._free[name] += amount

    # ---- talking -------------------------------------------------------------------------------------------------

    def put(self, item: ToFarm) -> None:
        self._stream.put(encode_item(item))

    def flush(self, now: float) -> bool:
        """Sends what can be sent; whether there is something to be read, which the poll might not tell any more."""
        events = int(self._socket.get(zmq.EVENTS))
        while events & zmq.POLLOUT:
            first, parts = self._stream.next_run(now)
            if not parts and not self._stream.owes_word():
                break
            self._say(CallsAsked(self.session, first, parts, self._stream.heard), now)
            events = int(self._socket.get(zmq.EVENTS))
        return bool(events & zmq.POLLIN)

    def _say(self, message: CallsAsked, now: float) -> None:
        if self._wire.send(self._socket, message):  # if not: what is not heard of is repeated
            self._sent_at = now
            self._stream.said()

    def receive(self, now: float) -> list[FromFarm]:
        """The items that have arrived."""
        items: list[FromFarm] = []
        for message in self._wire.received(self._socket):
            if not isinstance(message, CallsTold) or message.client != self.session:
                continue
            self._asked_at = self._broken_at = None
            if message.heard == UNKNOWN:
                self.is_unknown = True
                break
            self._stream.confirm(message.heard, now)
            items += [decode_from_farm(item) for item in self._stream.take(message.first, message.parts)]
        return items

    def hear_told(self, told: FarmTold) -> None:
        if self.told is None:
            self._free = dict(told.resources.amounts)
        self.told = told

    def beat(self, now: float) -> None:
        """Says that we live if nothing was said lately; repeats what was lost."""
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._broken_at = now
        self._stream.repeat(now)
        pause = BEAT_SECONDS if self._asked_at is None else ASK_AGAIN_SECONDS
        if now - self._sent_at >= pause and int(self._socket.get(zmq.EVENTS)) & zmq.POLLOUT:
            self._say(CallsAsked(self.session, 0, [], self._stream.heard), now)
            if self._asked_at is None:
                self._asked_at = now

    def is_lost(self, now: float) -> bool:
        """Whether nothing more is to be expected; to be asked after everything that has arrived was received."""
        if self._broken_at is not None and now - self._broken_at >= BROKEN_SECONDS:
            return True
        return self.is_unknown or (self._asked_at is not None and now - self._asked_at >= SILENCE_SECONDS)

    def close(self, linger: float = 0.0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(1000 * linger))
