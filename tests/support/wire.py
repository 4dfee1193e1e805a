"""Two ends of the wire for tests: messages, an agent that echoes in a thread, and waiting for a condition."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from shoal.cluster.messaging.access import Access
from shoal.cluster.messaging.envelope import Codec
from shoal.cluster.messaging.messenger import Messenger, Received, Route

DEADLINE = 60.0


class Note(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Says something, and may ask for several answers, or none."""

    text: str
    data: bytes = b""
    answers: int = 1


class Tally(msgspec.Struct, frozen=True, tag=True, array_like=True):
    numbers: list[int]
    names: dict[str, float] = {}


Message: TypeAlias = Note | Tally


def codec(version: int = 1, limit_bytes: int = 16 << 20) -> Codec[Message]:
    return Codec(Note | Tally, version=version, limit_bytes=limit_bytes)


def turn(post: Messenger[Message], milliseconds: int = 20) -> list[Received[Message]]:
    """One turn of an owner's loop, in which nothing is answered."""
    poll = select.poll()
    for fd in post.fds():
        poll.register(fd, select.POLLIN)
    poll.poll(milliseconds)
    received = post.receive()
    post.flush()
    return received


def heard(
    post: Messenger[Message],
    enough: Callable[[list[Received[Message]]], bool],
    others: Sequence[Messenger[Message]] = (),
) -> list[Received[Message]]:
    """What a post receives until it is enough; the others go on meanwhile."""
    received: list[Received[Message]] = []
    deadline = time.monotonic() + DEADLINE
    while not enough(received):
        assert time.monotonic() < deadline, f"waited in vain, received {received}"
        received += turn(post)
        for other in others:
            turn(other, 0)
    return received


def texts(received: Sequence[Received[Message]]) -> list[str]:
    return [message.text for one in received for message in one.messages if isinstance(message, Note)]


class Echo:
    """An agent in a thread: answers each note with the role of its sender and the text, and remembers it."""

    def __init__(self, access: Access, *, bind: str = "tcp://127.0.0.1:0", version: int = 1) -> None:
        self._post = Messenger(access, codec(version), bind=bind, sender="echo")
        self.address = self._post.address
        self.port = int(self.address.rsplit(":", 1)[1])
        self.heard: list[Received[Message]] = []
        self.refused = self._post.refused
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poll = select.poll()
        for fd in (*self._post.fds(), self._stop):
            poll.register(fd, select.POLLIN)
        while not any(fd == self._stop for fd, _ in poll.poll()):
            for one in self._post.receive():
                self.heard.append(one)
                for message in one.messages:
                    self._answer(one, message, one.route)
            self._post.flush()
        self._post.close()

    def _answer(self, one: Received[Message], message: Message, route: Route) -> None:
        if isinstance(message, Note):
            for number in range(message.answers):
                self._post.answer(route, Note(f"{one.role}: {message.text} {number}"))

    def stop(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        os.close(self._stop)


@contextmanager
def echo(access: Access, *, bind: str = "tcp://127.0.0.1:0", version: int = 1) -> Iterator[Echo]:
    agent = Echo(access, bind=bind, version=version)
    try:
        yield agent
    finally:
        agent.stop()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again until it is so; `what` says what was waited for in vain."""
    deadline = time.monotonic() + DEADLINE
    never = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        never.wait(0.005)
