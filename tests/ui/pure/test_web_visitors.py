"""Who goes when there is no room for another connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from shoal.ui.web.server import Visitors


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    found = [socket.socket() for _ in range(5)]
    yield found
    for one in found:
        one.close()


def enter(visitors: Visitors, *some: socket.socket) -> None:
    for one in some:
        assert visitors.admit(one)
        visitors.know(one)


def test_the_one_goes_that_asked_before_the_others(sockets: list[socket.socket]) -> None:
    """Threads that answer need not come back in the order in which they were asked."""
    first, second, third, *_ = sockets
    visitors = Visitors(3)
    enter(visitors, first, second, third)
    for one in (third, second, first):
        visitors.rest(one)
    visitors.know(first)
    visitors.rest(first)
    enter(visitors, sockets[3])
    assert visitors.known == 3 and visitors.idle == 2
    visitors.know(second)  # it has gone
    assert visitors.idle == 2
    enter(visitors, sockets[4])
    visitors.know(third)
    assert visitors.idle == 1, "the third has gone, too"


def test_a_stranger_goes_first_and_who_waits_for_an_answer_stays(sockets: list[socket.socket]) -> None:
    first, second, third, *_ = sockets
    visitors = Visitors(2)
    enter(visitors, first)
    visitors.rest(first)
    assert visitors.admit(second) and visitors.admit(third)
    visitors.know(second)  # it has gone
    visitors.know(third)
    assert (visitors.known, visitors.idle) == (2, 1)
    visitors.know(first)
    assert not visitors.admit(sockets[3])
    visitors.leave(first)
    assert visitors.admit(sockets[3])
