"""The messenger of an agent: sends and receives all messages of the agent without blocking, over ZeroMQ sockets.

One bound socket receives from all callers; a connecting socket per peer is made when the first message is sent there.
The loop of the owner is: poll `fds()`, `receive()`, act, `flush()`. What was sent during a turn leaves at its end as
one envelope per receiver. Any message may be lost: for an unreachable receiver, only a bounded outbox is kept.

The role of a sender follows from its key (`shoal.cluster.messaging.authenticator`). The owner decides what a role may
send, and what messages mean. Invalid frames are counted and dropped.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from errno import EADDRINUSE
from random import Random
from typing import Any, Generic, NamedTuple, TypeAlias

import zmq

from shoal.cluster.messaging.access import Access, Role
from shoal.cluster.messaging.authenticator import Authenticator, Context, Socket, client_socket, connect, server_socket
from shoal.cluster.messaging.envelope import (
    HEADER_BYTES,
    NAME_LENGTH,
    BadFrame,
    Codec,
    Envelope,
    M,
    OtherVersion,
    Outbox,
)
from shoal.errors import InputError
from shoal.execution.process_limits import OUT_OF_DESCRIPTORS, is_scarce, most_left, reserve, shortage

LOOK_SECONDS = 0.5
SAY_SECONDS = 60.0
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_TAKE_NOTHING = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
"""One instruction of the Berkeley packet filter: return 0, which drops each packet."""
_FILTER = struct.pack("@HP", 1, ctypes.addressof(_TAKE_NOTHING))

_log = logging.getLogger(__name__)


class AcceptPause:
    """Pauses new connections at one listening socket of libzmq while descriptors are scarce."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: where the socket listens, as reported by libzmq."""
        self.is_on = False
        """Whether new connections are paused."""
        self._listener = _listener_at(endpoint)
        self._any = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        """Duplicated to count the descriptors that are left."""
        self._look_at = 0.0
        self._say_at = 0.0

    def fd(self) -> int:
        """A descriptor to poll (edge-triggered) for new connections; -1 if the system does not show the socket."""
        return self._listener.fileno() if self._listener is not None else -1

    def look(self, *, at_once: bool) -> None:
        """Checks the descriptors. Call it often, and with `at_once` when a connection arrives."""
        now = time.monotonic()
        if now < self._look_at and not at_once:
            return
        self._look_at = now + LOOK_SECONDS
        if is_scarce(self._any):
            self._begin(now)
        elif self.is_on and most_left(self._any) > 2 * reserve():
            self._end()

    def _begin(self, now: float) -> None:
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            _log.warning("%s", shortage())
        self.is_on = True
        if self._listener is None:
            return
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _FILTER)
        except OSError:
            pass  # not permitted here: libzmq continues to accept

    def _end(self) -> None:
        self.is_on = False
        if self._listener is not None:
            try:
                self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            except OSError:
                pass  # there is no filter

    def close(self) -> None:
        os.close(self._any)
        if self._listener is not None:
            self._listener.close()


def _listener_at(endpoint: str) -> socket.socket | None:
    """Returns the socket of this process that listens at `tcp://HOST:PORT`; None if the system does not show it."""
    port = endpoint.rpartition(":")[2]
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return None
    for number in numbers:
        try:
            copy = os.dup(number)
        except OSError:
            continue  # the descriptor of the listing itself
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        try:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and str(found.getsockname()[1]) == port:
                found.setblocking(False)
                return found
        except (OSError, IndexError):
            pass  # a socket of another kind
        found.close()
    return None


MOST_FRAMES = 1_000
MOST_BYTES = 32 * 1024 * 1024
"""After so many received frames, bytes and keys the owner gets its turn: no sender can keep it busy for ever."""
ENVELOPE_BYTES = 1024 * 1024
"""An envelope is larger only if it contains a single larger message."""
OUTBOX_BYTES = 16 * 1024 * 1024
RENEWAL = 10.0
"""Seconds after which the connection to a peer that takes no messages is replaced: libzmq stops to reconnect after some
failures."""
_READABLE, _WRITABLE = int(zmq.POLLIN), int(zmq.POLLOUT)


class Asker(NamedTuple):
    """The address for the reply to a message that arrived at the bound socket."""

    connection: bytes
    serial: int


Route: TypeAlias = Asker | str
"""Where a reply goes: back over the connection of a caller, or to the address of an agent."""


@dataclass(frozen=True, slots=True)
class Received(Generic[M]):
    """The messages of one envelope, and the facts about their sender."""

    role: Role
    """According to the sender's key. Agents are workers."""
    route: Route
    sender: str
    """The sender's name for itself."""
    serial: int
    messages: list[M]


@dataclass(slots=True)
class _Peer:
    """An agent to which messages were sent."""

    address: str
    socket: Socket
    fd: int
    outbox: Outbox
    blocked_since: float | None = None
    serial: int = 0


@dataclass(slots=True)
class _Turn(Generic[M]):
    """What one call has received so far."""

    found: list[Received[M]] = field(default_factory=list)
    frames: int = 0
    bytes: int = 0

    def may_go_on(self) -> bool:
        return self.frames < MOST_FRAMES and self.bytes < MOST_BYTES


class Messenger(Generic[M]):
    """The bound socket of one agent, and its connections to others."""

    def __init__(
        self,
        access: Access,
        codec: Codec[M],
        *,
        bind: str = "tcp://127.0.0.1:0",
        sender: str = "",
        context: Context | None = None,
        outbox_bytes: int = OUTBOX_BYTES,
        renewal: float = RENEWAL,
    ) -> None:
        """`bind` with port 0 takes any free port. A context can be shared only with sockets that need no keys of their
        own."""
        access.server_pair()  # fails before anything is opened
        access.pair(Role.WORKER)
        self._access = access
        self._codec = codec
        self._sender = sender[:NAME_LENGTH]
        self._outbox_bytes = outbox_bytes
        self._envelope_bytes = min(ENVELOPE_BYTES, codec.limit_bytes - HEADER_BYTES)
        self._renewal = renewal
        self._own_context = context is None
        self._context: Context = context or zmq.Context()
        if context is None:
            self._context.set(zmq.MAX_SOCKETS, min(65_535, int(self._context.get(zmq.SOCKET_LIMIT))))
        self._peers: dict[str, _Peer] = {}
        self._by_fd: dict[int, _Peer] = {}
        self._waiting: dict[str, _Peer] = {}
        self._answers: dict[bytes, Outbox] = {}
        self._restless: dict[int, None] = {}
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.refused: Counter[str] = Counter()
        """Number of rejected callers and frames, by cause."""
        self._pause: AcceptPause | None = None
        self.dropped = 0
        """Number of messages that were dropped for newer ones, or whose receiver was gone."""
        self._gate = Authenticator(self._context, access)
        self._router = server_socket(self._context, access, codec.limit_bytes)
        self._gate_fd, self._router_fd = _fd(self._gate.socket), _fd(self._router)
        for fd in (self._gate_fd, self._router_fd, self._bell):
            self._epoll.register(fd, select.EPOLLIN)
        self._bind(bind)
        self.address = str(self._router.get_string(zmq.LAST_ENDPOINT))
        self._pause = AcceptPause(self.address)
        if self._pause.fd() >= 0:
            self._epoll.register(self._pause.fd(), select.EPOLLIN | select.EPOLLET)

    def _bind(self, bind: str) -> None:
        try:
            self._router.bind(bind)
        except zmq.ZMQError as error:
            self.close()
            if error.errno == EADDRINUSE:
                raise InputError(f"{bind} is in use by another program", remedy="choose another port, or 0") from None
            raise InputError(f"cannot listen on {bind}: {error.strerror}") from None

    def fds(self) -> list[int]:
        """Descriptors to poll for reading; they stay the same while peers come and go."""
        return [self._epoll.fileno()]

    def receive(self) -> list[Received[M]]:
        """Returns all messages that have arrived, and authenticates callers. Call it in every turn."""
        ready = dict.fromkeys(fd for fd, _ in self._epoll.poll(0)) | self._restless
        if self._pause is not None:
            self._pause.look(at_once=self._pause.fd() in ready)
        self._restless = {}
        rung = self._bell in ready
        if rung:
            os.eventfd_read(self._bell)
        if rung or self._gate_fd in ready:
            self.refused["key"] += self._gate.admit(MOST_FRAMES)
            if _has_more(self._gate.socket):
                self._ring()
        turn: _Turn[M] = _Turn()
        if rung or self._router_fd in ready:
            self._read_router(turn)
        for fd in ready:
            if (peer := self._by_fd.get(fd)) is not None:
                self._read_peer(peer, turn)
        if not turn.may_go_on():
            self._ring()
        return turn.found

    def _read_router(self, turn: _Turn[M]) -> None:
        while turn.may_go_on():
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            connection = parts[0].bytes
            # Connection names assigned by libzmq begin with a zero byte; a caller could choose another one to
            # impersonate a connection.
            if len(parts) != 2 or connection[:1] != b"\0":
                self.refused["shape"] += 1
                continue
            envelope = self._opened(parts[1].buffer, turn, connection)
            if envelope is not None:
                role = Role(str(parts[1].get("User-Id")))
                route = Asker(connection, envelope.serial)
                turn.found.append(Received(role, route, envelope.sender, envelope.serial, envelope.messages))

    def _read_peer(self, peer: _Peer, turn: _Turn[M]) -> None:
        """Reads replies that an agent has sent back over this agent's own connection to it."""
        while turn.may_go_on():
            try:
                parts = peer.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            envelope = self._opened(parts[0].buffer, turn, None)
            if envelope is not None:
                found = Received(Role.WORKER, peer.address, envelope.sender, envelope.serial, envelope.messages)
                turn.found.append(found)
        self._restless[peer.fd] = None

    def _opened(self, frame: memoryview, turn: _Turn[M], connection: bytes | None) -> Envelope[M] | None:
        """Decodes a frame; a caller at the bound socket with another version gets ours as reply."""
        turn.frames += 1
        turn.bytes += len(frame)
        try:
            envelope = self._codec.decode(frame)
        except OtherVersion as error:
            self.refused["version"] += 1
            if connection is not None:
                self._tell_version(Asker(connection, error.serial))
            return None
        except BadFrame:
            self.refused["frame"] += 1
            return None
        if envelope.cluster != self._access.cluster:
            self.refused["cluster"] += 1
            return None
        return envelope

    def _tell_version(self, asker: Asker) -> None:
        """Sends an empty envelope: the other side can read nothing of it but the version."""
        try:
            self._router.send_multipart([asker.connection, self._framed(asker.serial, [])], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.dropped += 1

    def send(self, address: str, message: M) -> None:
        """Queues a message for an agent; `BadFrame` if it is too large for any frame.

        It is dropped if there are no descriptors for a connection to a new agent.
        """
        packed = self._codec.packed(message)
        peer = self._peers.get(address)
        if peer is None:
            socket = None if self._pause is not None and self._pause.is_on else self._connected(address)
            if socket is None:
                self.dropped += 1
                return
            peer = self._peers[address] = _Peer(address, socket, _fd(socket), Outbox(self._outbox_bytes))
            self._watch(peer)
        self.dropped += peer.outbox.put(packed)
        self._waiting[address] = peer

    def answer(self, route: Route, message: M) -> None:
        """Queues a reply; it is dropped if the caller is gone."""
        if isinstance(route, str):
            self.send(route, message)
            return
        packed = self._codec.packed(message)
        outbox = self._answers.get(route.connection)
        if outbox is None:
            outbox = self._answers[route.connection] = Outbox(self._outbox_bytes)
        self.dropped += outbox.put(packed, route.serial)

    def flush(self) -> None:
        """Sends queued messages, as far as receivers take them. Call it at the end of every turn."""
        for connection, outbox in list(self._answers.items()):
            if self._flush_answers(connection, outbox):
                del self._answers[connection]
        for address, peer in list(self._waiting.items()):
            if self._flush_peer(peer):
                del self._waiting[address]
        # Sending may have consumed the edge that signals readable data; without this check, poll would wait in vain.
        if self._restless or _has_more(self._router):
            self._ring()

    def _flush_answers(self, connection: bytes, outbox: Outbox) -> bool:
        """Returns whether everything for this caller was sent."""
        while outbox:
            serial, messages = outbox.first(self._envelope_bytes)
            try:
                self._router.send_multipart([connection, self._framed(serial, messages)], zmq.NOBLOCK)
            except zmq.Again:
                return False
            except zmq.ZMQError:  # the caller is gone
                self.dropped += len(outbox)
                return True
            outbox.sent(len(messages))
        return True

    def _flush_peer(self, peer: _Peer) -> bool:
        """Returns whether everything for this agent was sent."""
        while peer.outbox and int(peer.socket.get(zmq.EVENTS)) & _WRITABLE:
            _, messages = peer.outbox.first(self._envelope_bytes)
            try:
                peer.socket.send(self._framed(peer.serial + 1, messages), zmq.NOBLOCK)
            except zmq.Again:
                break
            peer.serial += 1
            peer.outbox.sent(len(messages))
            peer.blocked_since = None
        if _has_more(peer.socket):
            self._restless[peer.fd] = None
        if not peer.outbox:
            return True
        now = time.monotonic()
        if peer.blocked_since is None:
            peer.blocked_since = now
        elif now - peer.blocked_since > self._renewal:
            self._renew(peer)
        return peer.address not in self._peers

    def _renew(self, peer: _Peer) -> None:
        self._drop_socket(peer)
        socket = self._connected(peer.address)
        if socket is None:
            self.dropped += len(peer.outbox)
            del self._peers[peer.address]
            return
        peer.socket = socket
        peer.fd = _fd(peer.socket)
        peer.blocked_since = None
        self._watch(peer)

    def _connected(self, address: str) -> Socket | None:
        """Opens a connection; None if there is no descriptor for it."""
        try:
            socket = client_socket(self._context, self._access, Role.WORKER, self._codec.limit_bytes)
        except zmq.ZMQError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                return None
            raise
        connect(socket, address)
        return socket

    def _watch(self, peer: _Peer) -> None:
        self._by_fd[peer.fd] = peer
        self._epoll.register(peer.fd, select.EPOLLIN)

    def _drop_socket(self, peer: _Peer) -> None:
        self._epoll.unregister(peer.fd)
        self._restless.pop(peer.fd, None)
        del self._by_fd[peer.fd]
        peer.socket.close()

    def forget(self, address: str) -> None:
        """Closes the connection to an agent and drops its queue; does nothing if there is none."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._waiting.pop(address, None)
            self._drop_socket(peer)

    def waiting(self, address: str) -> int:
        """Number of messages that an agent has not taken yet."""
        peer = self._peers.get(address)
        return len(peer.outbox) if peer else 0

    def close(self, linger: float = 0.0) -> None:
        """Closes everything, after at most `linger` seconds for messages that were flushed."""
        for peer in self._peers.values():
            peer.socket.close(linger=int(1000 * linger))
        for table in (self._peers, self._by_fd, self._waiting, self._answers):
            table.clear()
        self._router.close(linger=int(1000 * linger))
        self._gate.close()
        if self._own_context:
            self._context.term()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._bell)
            if self._pause is not None:
                self._pause.close()

    def _framed(self, serial: int, messages: list[bytes]) -> bytes:
        return self._codec.frame(self._access.cluster, self._sender, serial, messages)

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)


def _fd(socket: Socket) -> int:
    return int(socket.get(zmq.FD))


def _has_more(socket: Socket) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & _READABLE)


VARIABLE = "SHOAL_TROUBLE"
LATEST_SECONDS = 2.0
LOSS_OF_FIRST = 0.5


class FaultInjector:
    """Wraps the messenger of an agent."""

    def __init__(self, messenger: Any, text: str) -> None:
        try:
            seed, loss, double, late, *first = text.split()
            (self._first,) = map(int, first or ("0",))
            self._random = Random(int(seed))
            self._loss, self._double, self._late = float(loss), float(double), float(late)
        except ValueError:
            raise InputError(f"{VARIABLE}={text!r} is not 'SEED LOSS DOUBLE LATE [FIRST]'") from None
        self._messenger = messenger
        self._held: list[tuple[float, str, Any]] = []
        self._sent: Counter[str] = Counter()
        """Number of messages sent to each address."""

    def send(self, address: str, message: Any) -> None:
        draw = self._random.random()
        self._sent[address] += 1
        if draw < (LOSS_OF_FIRST if self._sent[address] <= self._first else self._loss):
            return
        if draw < self._loss + self._double:
            self._messenger.send(address, message)
        elif draw < self._loss + self._double + self._late:
            self._held.append((time.monotonic() + self._random.uniform(0.0, LATEST_SECONDS), address, message))
            return
        self._messenger.send(address, message)

    def flush(self) -> None:
        """Flushes; also sends delayed messages that are due."""
        now = time.monotonic()
        due = [held for held in self._held if held[0] <= now]
        if due:
            self._held = [held for held in self._held if held[0] > now]
            for _, address, message in due:
                self._messenger.send(address, message)
        self._messenger.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messenger, name)
