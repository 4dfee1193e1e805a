"""The caller's side for commands: find an agent that answers, ask it, and say in one sentence why that fails.

All contacts of the access file are tried at once, and the first agent that lets us in is the one that is asked. CURVE
itself meets a wrong key with silence, so the sockets' monitors are listened to: they tell an agent that refuses our key
from a host where nobody is. After a failure the next question looks for an agent anew. When no contact answers soon,
those agents are tried that the access file names as spare, or that the caller has heard of while it was connected.
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
"""How many contacts are tried at the same time."""
SPARE_AFTER = 0.5
"""Seconds that contacts have to answer before others are tried as well."""
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
    """The agent that is asked speaks another version of the protocol: asking again does not help."""


class _Line:
    """A connection to one contact, being made or made."""

    def __init__(self, context: Context, access: Access, role: Role, contact: str, limit_bytes: int) -> None:
        self.contact = contact
        self.is_open = False
        self.is_refused = False
        self._is_greeting = False
        self._failures = 0
        self.socket = client_socket(context, access, role, limit_bytes)
        # With IMMEDIATE libzmq drops what has arrived and was not read yet when the other side hangs up: the last
        # answer of an agent that ends. Nothing is sent here before the connection is known to be open.
        self.socket.setsockopt(zmq.IMMEDIATE, 0)
        self.monitor = self.socket.get_monitor_socket(_EVENTS)
        try:
            self.socket.connect(contact)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"{contact!r} is not the address of an agent: {error.strerror}") from None

    def hear(self) -> None:
        """Take what the monitor has to tell."""
        while self.monitor.poll(0):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_CONNECTED:
                self._is_greeting = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_open, self._is_greeting = True, False
            elif event & _REFUSED:
                self.is_refused, self._is_greeting = True, False
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # One hang-up may be an agent that is just ending; libzmq tries again soon.
                self._failures += 1
                self.is_refused, self._is_greeting = self._failures > 1, False
            else:
                # Whoever hangs up before the greeting is over, without a word, is no agent of any kind.
                self.is_refused = self.is_refused or self._is_greeting
                self.is_open = self._is_greeting = False

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


class Caller(Generic[M]):
    """Somebody who asks the agents of a cluster, one question at a time."""

    def __init__(
        self,
        access: Access,
        codec: Codec[M],
        *,
        role: Role | None = None,
        sender: str = "",
        patience: float = 5.0,
    ) -> None:
        """Without `role`, the first of client, viewer and worker that the access has; `patience` is for connecting."""
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
        """The address of the agent that is being asked."""
        return self._line.contact if self._line else None

    def learn(self, addresses: Iterable[str]) -> None:
        """These agents of the cluster answer as well, from now on; no others than these and the contacts do."""
        self._spare = list(addresses)[:AT_ONCE]

    def ask(self, message: M, timeout: float = 30.0) -> M:
        """The first message of the answer. A late answer is not taken for that of the next question."""
        return next(self.listen(message, timeout))

    def listen(self, message: M, timeout: float | None = None) -> Iterator[M]:
        """Ask, and go on with every message of every answer; `timeout` bounds the silence before each of them.

        The question is sent when the first message is wanted.
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
        """The messages of the next envelope with this serial; those with others are late, or of a stream left alone."""
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
                    continue  # it answered and hung up, both after we had looked at the socket
                raise self._gone(line)
            if not ready:
                raise InputError(
                    f"the agent at {line.contact} did not answer within {timeout:g} s",
                    remedy="see whether it is overloaded, or give it more time",
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
            raise InputError(f"the agent at {line.contact} answers what is not understood: {error}") from None

    def _gone(self, line: _Line) -> InputError:
        self._hang_up()
        return InputError(f"the agent at {line.contact} has gone before it answered", remedy="ask again")

    def _connected(self) -> _Line:
        """The line in use, or one to whichever contact answers first."""
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
        """The first line that is open, or none and who refused us; `spare` joins when the contacts are slow."""
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
    """Those that can be read from; none if the deadline has passed."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    left = None if deadline is None else max(0, int(1000 * (deadline - time.monotonic())) + 1)
    return [socket for socket, _ in poller.poll(left)]


def _nobody(contacts: Sequence[str], refusing: Sequence[str]) -> InputError:
    """The sentence for contacts none of which can be asked."""
    silent = [contact for contact in contacts if contact not in refusing]
    if not refusing:
        return InputError(
            f"nobody answers at {_shown(silent)}",
            remedy="see that the cluster runs and that its agents can be reached from here",
        )
    also = f", and nobody answers at {_shown(silent)}" if silent else ""
    return InputError(
        f"the key of this access file is refused at {_shown(refusing)}{also}",
        remedy="use the access file of the cluster that runs there now",
    )


def _shown(contacts: Sequence[str]) -> str:
    more = f" and {len(contacts) - _SHOWN} more" if len(contacts) > _SHOWN else ""
    return ", ".join(contact.removeprefix("tcp://") for contact in contacts[:_SHOWN]) + more
