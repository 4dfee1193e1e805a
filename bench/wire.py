"""The wire between two processes over loopback: messages a second, alone and in batches, with CURVE and without.

`python bench/wire.py [--messages N] [--trips N]` writes a table to stdout. The rows named "post" go through
`shoal.cluster.messaging.messenger` (typed messages, authenticated, encrypted); those named "bare" send the same frames
over plain ZeroMQ sockets, encoded and decoded alike but neither encrypted nor authenticated. The difference is the
price of both and of the post's own queues, which are not told apart here. In a batch of one every message is an
envelope of its own. Clocks of a shared machine are noisy: look at ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import select
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec
import zmq

from shoal.cluster.messaging.access import Access, make_access
from shoal.cluster.messaging.envelope import Codec
from shoal.cluster.messaging.messenger import Messenger

BATCHES = (1, 10, 100, 1000)
AHEAD = 20_000
"""So many messages may be on their way before one of them is answered."""


class Work(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """About as large as a message that hands over a task."""

    number: int
    load: int = 0
    wants_answer: bool = False
    text: str = "a task and where its data is"


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    count: int


Message: TypeAlias = Work | Done


def new_codec() -> Codec[Message]:
    return Codec(Work | Done)


class PostEnd:
    """One end over `Messenger`."""

    def __init__(self, access: Access) -> None:
        self._post = Messenger(access, new_codec())
        self._poll = select.poll()
        for fd in self._post.fds():
            self._poll.register(fd, select.POLLIN)
        self.address = self._post.address

    def send(self, address: str, messages: list[Message]) -> None:
        for message in messages:
            self._post.send(address, message)
        self._post.flush()

    def receive(self, waits: bool) -> list[Message]:
        self._poll.poll(None if waits else 0)
        found = [message for one in self._post.receive() for message in one.messages]
        self._post.flush()
        return found

    def close(self) -> None:
        self._post.close(linger=1.0)


class BareEnd:
    """One end over plain sockets, to compare with."""

    def __init__(self, access: Access) -> None:
        self._cluster = access.cluster
        self._codec = new_codec()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:0")
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self.address = str(self._router.get_string(zmq.LAST_ENDPOINT))

    def send(self, address: str, messages: list[Message]) -> None:
        if address not in self._dealers:
            self._dealers[address] = self._context.socket(zmq.DEALER)
            self._dealers[address].sndhwm = 0
            self._dealers[address].connect(address)
        packed = [self._codec.packed(message) for message in messages]
        self._dealers[address].send(self._codec.frame(self._cluster, "", 1, packed))

    def receive(self, waits: bool) -> list[Message]:
        found: list[Message] = []
        if self._router.poll(None if waits else 0):
            while True:
                try:
                    parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                found += self._codec.decode(parts[1].buffer).messages
        return found

    def close(self) -> None:
        self._context.destroy(linger=1000)


End: TypeAlias = PostEnd | BareEnd
ENDS: dict[str, Callable[[Access], End]] = {"bare": BareEnd, "post": PostEnd}


def answer(kind: str, access: Access, pipe: Connection) -> None:
    """The other process: counts what comes and tells so when it is asked."""
    end = ENDS[kind](access)
    pipe.send(end.address)
    asker = pipe.recv()
    count = 0
    while asker:
        for message in end.receive(waits=True):
            if isinstance(message, Done):
                asker = ""
            else:
                count += 1
                if message.wants_answer:
                    end.send(asker, [Done(count)])
    end.close()


def trip(end: End, other: str) -> None:
    """One question and its answer."""
    end.send(other, [Work(0, wants_answer=True)])
    while not end.receive(waits=True):
        pass


def rate(end: End, other: str, messages: int, batch: int) -> float:
    """Messages a second from one to the other, with an answer now and then that lets the next ones go."""
    window = max(1, AHEAD // batch // 2)
    begin = time.perf_counter()
    owed = 0
    for number in range(0, messages, batch):
        chosen: list[Message] = [Work(number + each) for each in range(batch)]
        if number // batch % window == window - 1 or number + batch >= messages:
            chosen[-1] = Work(number, wants_answer=True)
            owed += 1
        end.send(other, chosen)
        while owed > 1:
            owed -= len(end.receive(waits=True))
    while owed:
        owed -= len(end.receive(waits=True))
    return messages / (time.perf_counter() - begin)


def measure(kind: str, messages: int, trips: int) -> list[str]:
    """One row of the table."""
    access = make_access("bench")
    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer, args=(kind, access, far))
    process.start()
    end = ENDS[kind](access)
    try:
        other = near.recv()
        near.send(end.address)
        for _ in range(20):
            trip(end, other)
        times = []
        for _ in range(trips):
            begin = time.perf_counter()
            trip(end, other)
            times.append(time.perf_counter() - begin)
        rates = [rate(end, other, messages // (4 if batch == 1 else 1), batch) for batch in BATCHES]
        end.send(other, [Done(0)])
        process.join(30)
    finally:
        process.kill()
        end.close()
    return [f"{1e6 * statistics.median(times):,.0f}", *(f"{found:,.0f}" for found in rates)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000, help="how many for each rate")
    parser.add_argument("--trips", type=int, default=2_000, help="how many round trips")
    options = parser.parse_args()
    heads = ["", "round trip, median µs", *(f"messages/s, {batch} at a time" for batch in BATCHES)]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for kind, name in (("bare", "bare, no CURVE"), ("post", "post, CURVE")):
        print("| " + " | ".join([name, *measure(kind, options.messages, options.trips)]) + " |", flush=True)


if __name__ == "__main__":
    main()
