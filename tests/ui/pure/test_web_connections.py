"""Which connection is closed when the limit is reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from shoal.ui.web.server import ConnectionLimit


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    found = [socket.socket() for _ in range(5)]
    yield found
    for one in found:
        one.close()


def enter(connections: ConnectionLimit, *some: socket.socket) -> None:
    for one in some:
        assert connections.admit(one)
        connections.mark_busy(one)


def test_the_longest_idle_connection_is_closed_first(sockets: list[socket.socket]) -> None:
    """Requests need not complete in the order in which they arrived."""
    first, second, third, *_ = sockets
    connections = ConnectionLimit(3)
    enter(connections, first, second, third)
    for one in (third, second, first):
        connections.mark_idle(one)
    connections.mark_busy(first)
    connections.mark_idle(first)
    enter(connections, sockets[3])
    assert connections.authorised == 3 and connections.idle == 2
    connections.mark_busy(second)  # already closed
    assert connections.idle == 2
    enter(connections, sockets[4])
    connections.mark_busy(third)
    assert connections.idle == 1, "the third was closed, too"


def test_unauthorised_connections_are_closed_first_and_busy_ones_never(sockets: list[socket.socket]) -> None:
    first, second, third, *_ = sockets
    connections = ConnectionLimit(2)
    enter(connections, first)
    connections.mark_idle(first)
    assert connections.admit(second) and connections.admit(third)
    connections.mark_busy(second)  # already closed
    connections.mark_busy(third)
    assert (connections.authorised, connections.idle) == (2, 1)
    connections.mark_busy(first)
    assert not connections.admit(sockets[3])
    connections.remove(first)
    assert connections.admit(sockets[3])
