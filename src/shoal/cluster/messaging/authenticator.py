"""Authenticates callers: sockets with CURVE on both ends, and the ZAP handler that maps a caller's key to its role.

libzmq asks the handler over an in-process socket (ZAP, RFC 27) before a connection carries its first message. The reply
names the caller's role, which libzmq attaches to every message of that connection, so no message can forge it. pyzmq's
own authenticator needs an event loop or a thread and knows no roles. This one runs in the loop of the messenger that it
protects. The domain is enforced: without a reply, no connection is accepted.
"""

from __future__ import annotations

from typing import TypeAlias

import zmq
from zmq.utils import z85

from shoal.cluster.messaging.access import Access, Role
from shoal.errors import InputError

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"

_PLACE = "inproc://zeromq.zap.01"
_DOMAIN = b"shoal"
_WAITING_ENVELOPES = 16
"""High-water mark of each connection, in both directions."""
_SILENCE_SECONDS = 20
"""Seconds after which the system closes a connection whose peer acknowledges nothing. libzmq's heartbeats are not used:
version 4.3.5 aborts the whole process when a connection is lost whose queue is full."""
_HANDSHAKE_MS = 5_000
"""Milliseconds after which a connection without a completed handshake is closed."""
_BACKLOG = 1024


class Authenticator:
    """Replies to libzmq's requests about keys, for all sockets of one context."""

    def __init__(self, context: Context, access: Access) -> None:
        self._roles = {z85.decode(pair.public.encode()): role for role, pair in access.roles.items()}
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_PLACE)

    def admit(self, most: int) -> int:
        """Handles at most `most` pending requests; returns how many callers were rejected."""
        turned_away = 0
        for _ in range(most):
            try:
                version, request, domain, _, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            known = version == b"1.0" and domain == _DOMAIN and mechanism == b"CURVE" and len(credentials) == 1
            role = self._roles.get(credentials[0]) if known else None
            verdict = (b"200", b"", role.encode()) if role else (b"400", b"", b"")
            turned_away += role is None
            self.socket.send_multipart([version, request, *verdict, b""])
        return turned_away

    def close(self) -> None:
        self.socket.close()


def server_socket(context: Context, access: Access, limit_bytes: int) -> Socket:
    """Makes a ROUTER socket that only callers with a key of this cluster reach; not bound yet."""
    public, secret = access.server_pair()
    socket: Socket = context.socket(zmq.ROUTER)
    _configure(socket, limit_bytes)
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_server = True
    socket.zap_domain = _DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # report a route that is gone or full
    return socket


def client_socket(context: Context, access: Access, role: Role, limit_bytes: int) -> Socket:
    """Makes a DEALER socket that talks to agents of this cluster only; not connected yet."""
    public, secret = access.pair(role)
    socket: Socket = context.socket(zmq.DEALER)
    _configure(socket, limit_bytes)
    socket.curve_serverkey = access.server.public.encode()
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.setsockopt(zmq.IMMEDIATE, 1)  # do not queue messages for a peer that is not connected
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
    return socket


def connect(socket: Socket, address: str) -> None:
    """Connects a client socket to an agent. A wrong address closes the socket and raises `InputError`."""
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise InputError(f"{address!r} is not the address of an agent: {error.strerror}") from None


def _configure(socket: Socket, limit_bytes: int) -> None:
    socket.linger = 0
    socket.setsockopt(zmq.SNDHWM, _WAITING_ENVELOPES)
    socket.setsockopt(zmq.RCVHWM, _WAITING_ENVELOPES)
    socket.setsockopt(zmq.MAXMSGSIZE, limit_bytes + 64)  # CURVE adds 33 bytes
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.TCP_MAXRT, 1000 * _SILENCE_SECONDS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _SILENCE_SECONDS // 2)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _SILENCE_SECONDS // 4)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
