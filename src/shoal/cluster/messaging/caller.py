"""Synchronous requests from commands to a cluster: finds an agent that replies, sends the request, explains failures.

All contacts of the access file are tried at once, and the first agent that accepts the key gets the request. CURVE
meets a wrong key with silence, so the sockets' monitors are read: they distinguish an agent that rejects the key from a
host without an agent. After a failure the next request searches for an agent again. When no contact replies soon,
further agents are tried: the spare ones of the access file, and those that the caller has learned of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Generic

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.cluster.messaging.access import Access, Role
from shoal.cluster.messaging.authenticator import Context, client_socket
from shoal.cluster.messaging.envelope import NAME_LENGTH, BadFrame, Codec, Envelope, M, OtherVersion
from shoal.errors import InputError

AT_ONCE = 16
"""Number of contacts that are tried at the same time."""
SPARE_AFTER = 0.5
"""Seconds before other agents are tried besides the contacts."""
_SHOWN = 5
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS = (
    _REFUSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
)


class VersionError(InputError):
    """The agent uses another version of the protocol: repeating the request does not help."""


class _Line:
    """A connection to one contact, open or being opened."""

    def __init__(self, context: Context, access: Access, role: Role, contact: str, limit_bytes: int) -> None:
        self.contact = contact
        self.is_open = False
        self.is_refused = False
        self._is_greeting = False
        self._failures = 0
        self.socket = client_socket(context, access, role, limit_bytes)
        # With IMMEDIATE, libzmq drops received but unread messages when the peer disconnects: the last reply of an
        # agent that ends. Here nothing is sent before the connection is open, so IMMEDIATE is not needed.
        self.socket.setsockopt(zmq.IMMEDIATE, 0)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        try:
            self.socket.connect(contact)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"{contact!r} is not the address of an agent: {error.strerror}") from None

    def hear(self) -> None:
        """Reads the events of the monitor."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_CONNECTED:
                self._is_greeting = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_open, self._is_greeting = True, False
            elif event & _REFUSED:
                self.is_refused, self._is_greeting = True, False
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # A single disconnection may be an agent that is just ending; libzmq soon reconnects.
                self._failures += 1
                self.is_refused, self._is_greeting = self._failures > 1, False
            else:
                # A peer that disconnects during the greeting is not an agent.
                self.is_refused = self.is_refused or self._is_greeting
                self.is_open = self._is_greeting = False

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


class Caller(Generic[M]):
    """Sends requests to the agents of a cluster, one at a time."""

    def __init__(
        self,
        access: Access,
        codec: Codec[M],
        *,
        role: Role | None = None,
        sender: str = "",
        patience: float = 5.0,
    ) -> None:
        """Without `role`: the first of client, viewer and worker for which the access file has a key. `patience`:
        seconds to connect."""
        held = access.held()
        self._role = role or next(each for each in (Role.CLIENT, Role.VIEWER, Role.WORKER) if each in held)
        self._access = access
        self._codec = codec
        self._sender = sender[:NAME_LENGTH]
        self._patience = patience
        self._context: Context = zmq.Context()
        self._line: _Line | None = None
        self._serial = 0
        self._spare = list(access.spare)

    def __enter__(self) -> Caller[M]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._hang_up()
        self._context.destroy(linger=0)

    @property
    def agent(self) -> str | None:
        """The address of the agent that gets the requests."""
        return self._line.contact if self._line else None

    def learn(self, addresses: Iterable[str]) -> None:
        """Replaces the list of further agents that reply to clients."""
        self._spare = list(addresses)[:AT_ONCE]

    def ask(self, message: M, timeout: float = 30.0) -> M:
        """Sends a request; returns the first message of the reply. A late reply is not taken for that of the next
        request."""
        return next(self.listen(message, timeout))

    def listen(self, message: M, timeout: float | None = None) -> Iterator[M]:
        """Sends a request and yields every message of every reply; `timeout` bounds the silence before each of them.

        The request is sent when the first message is requested.
        """
        line = self._connected()
        self._serial += 1
        serial = self._serial
        packed = [self._codec.packed(message)]
        if not line.socket.poll(int(1000 * self._patience), zmq.POLLOUT):
            raise self._gone(line)
        line.socket.send(self._codec.frame(self._access.cluster, self._sender, serial, packed), zmq.NOBLOCK)
        while True:
            yield from self._answer(line, serial, timeout)

    def _answer(self, line: _Line, serial: int, timeout: float | None) -> list[M]:
        """Returns the messages of the next envelope with this serial; others are late, or belong to a stream that was
        left."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            ready = _poll([line.socket, line.monitor], deadline)
            if line.socket in ready:
                envelope = self._received(line)
                if envelope.serial == serial and envelope.cluster == self._access.cluster:
                    return envelope.messages
                continue
            line.hear()
            if not line.is_open:
                if line.socket.poll(0):
                    continue  # it replied and disconnected, both after the last look at the socket
                raise self._gone(line)
            if not ready:
                raise InputError(
                    f"the agent at {line.contact} did not reply within {timeout:g} s",
                    remedy="check whether it is overloaded, or allow more time",
                )

    def _received(self, line: _Line) -> Envelope[M]:
        try:
            return self._codec.decode(line.socket.recv())
        except OtherVersion as error:
            self._hang_up()
            raise VersionError(
                f"the agent at {line.contact} speaks version {error.version} of Shoal's protocol,"
                f" this program version {self._codec.version}",
                remedy="use the same Shoal on both sides",
            ) from None
        except BadFrame as error:
            self._hang_up()
            raise InputError(f"the agent at {line.contact} sends an invalid reply: {error}") from None

    def _gone(self, line: _Line) -> InputError:
        self._hang_up()
        return InputError(f"the agent at {line.contact} disconnected before it replied", remedy="try again")

    def _connected(self) -> _Line:
        """Returns the open connection, or a new one to the first agent that replies."""
        if self._line is not None:
            self._line.hear()
            if self._line.is_open:
                return self._line
            self._hang_up()
        contacts = self._access.contacts
        if not contacts:
            raise InputError(
                f"the access file of cluster {self._access.name!r} names no agent", remedy="start the cluster first"
            )
        groups = [contacts[begin : begin + AT_ONCE] for begin in range(0, len(contacts), AT_ONCE)]
        refusing: list[str] = []
        spare = [address for address in self._spare if address not in contacts]
        for group in groups:
            deadline = time.monotonic() + self._patience / len(groups)
            self._line, refused = self._race(group, deadline, spare if group is groups[-1] else ())
            if self._line is not None:
                return self._line
            refusing += refused
        raise _nobody(contacts, refusing)

    def _race(self, contacts: Sequence[str], deadline: float, spare: Sequence[str]) -> tuple[_Line | None, list[str]]:
        """Returns the first connection that opens, or none, and the contacts that rejected the key; `spare` join when
        the contacts are slow."""
        lines: list[_Line] = []
        winner: _Line | None = None
        waiting = list(contacts)
        until = time.monotonic() + min(SPARE_AFTER, self._patience / 2) if spare else deadline
        try:
            while winner is None:
                while waiting:
                    contact = waiting.pop(0)
                    lines.append(_Line(self._context, self._access, self._role, contact, self._codec.limit_bytes))
                has_news = not all(line.is_refused for line in lines)
                has_news = has_news and bool(_poll([line.monitor for line in lines], until))
                for line in lines:
                    line.hear()
                winner = next((line for line in lines if line.is_open), None)
                if not has_news and winner is None:
                    if not spare:
                        break
                    waiting, spare, until = list(spare), (), deadline
            return winner, [line.contact for line in lines if line.is_refused]
        finally:
            for line in lines:
                if line is not winner:
                    line.close()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _poll(sockets: list[zmq.Socket[bytes]], deadline: float | None) -> list[zmq.Socket[bytes]]:
    """Returns the readable sockets; none if the deadline has passed."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    left = None if deadline is None else max(0, int(1000 * (deadline - time.monotonic())) + 1)
    return [socket for socket, _ in poller.poll(left)]


def _nobody(contacts: Sequence[str], refusing: Sequence[str]) -> InputError:
    """Returns the error if no contact is usable."""
    silent = [contact for contact in contacts if contact not in refusing]
    if not refusing:
        return InputError(
            f"no reply from {_shown(silent)}",
            remedy="check that the cluster is running and its agents are reachable from this machine",
        )
    also = f", and no reply from {_shown(silent)}" if silent else ""
    return InputError(
        f"the key of this access file is refused at {_shown(refusing)}{also}",
        remedy="use the access file of the cluster that is running there now",
    )


def _shown(contacts: Sequence[str]) -> str:
    more = f" and {len(contacts) - _SHOWN} more" if len(contacts) > _SHOWN else ""
    return ", ".join(contact.removeprefix("tcp://") for contact in contacts[:_SHOWN]) + more
