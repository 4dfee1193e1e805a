"""Every kind of store and directory for tests of what they promise: in memory, in a real Redis and a real cluster of
it, and behind a server that is thrown away and made again from its journals all the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

from shoal.cluster.stores.redis import RedisDirectory, RedisLink, RedisStore, directory_key, key_of
from shoal.cluster.stores.server import RemoteDirectory, RemoteStore, StoreServer, read_request
from shoal.core.peer_messages import ReadyTask
from shoal.core.resources import Resources
from shoal.core.store.directory import Directory, MemoryDirectory
from shoal.core.store.interface import ReadyBatch, Store
from shoal.core.store.memory import MemoryStore
from shoal.core.task import Profile
from shoal.core.work import Work, assemble
from support.redis_servers import cluster_of_three, one_server

KINDS = ("memory", "redis", "cluster", "remote")
PROFILES = [Profile("task", Resources.parse({"cores": 1})), Profile("nothing", Resources())]
NODES = 3
SHORT_LEASE = 0.05
PATIENCE = 60.0
RESTARTS_EVERY, ANSWERS_LOST_EVERY = 3, 11

Opened = Callable[[Work], Store]
OpenedDirectory = Callable[[], Directory]
_numbers = count(1)
T = TypeVar("T")


class RestlessServer:
    """A transport to a server that is made again from its journals before every third request that changes something,
    and of which some answers get lost."""

    def __init__(self, path: Path, lease: float) -> None:
        self._path, self._lease = str(path), lease
        self.server = StoreServer(self._path, lease=lease)
        self._changes = 0
        self._lost = b""

    def restart(self) -> None:
        self.server.close()
        self.server = StoreServer(self._path, lease=self._lease)

    def ask(self, request: bytes) -> bytes:
        self._changes += read_request(request).sequence > 0
        if self._changes % RESTARTS_EVERY == 0:
            self._changes += 1  # requests that only look do not lead to the next one
            self.restart()
        answer = self.server.perform(request, time.monotonic())
        if self._changes % ANSWERS_LOST_EVERY == 0 and request != self._lost:
            self._lost = request
            raise TimeoutError
        return answer


@contextmanager
def _addresses(kind: str, folder: Path) -> Iterator[list[str]]:
    if kind == "redis":
        with one_server(folder) as server:
            yield [server.address]
    else:
        with cluster_of_three(folder) as servers:
            yield [server.address for server in servers]


@contextmanager
def opened_stores(kind: str, folder: Path) -> Iterator[Opened]:
    """Makes stores of one kind around some work."""
    if kind == "memory":
        yield lambda work: MemoryStore(work, NODES, lease=SHORT_LEASE)
    elif kind == "remote":
        transport = RestlessServer(folder, SHORT_LEASE)
        yield lambda work: RemoteStore.bring(transport, f"run-{next(_numbers)}", work, NODES)
        transport.server.close()
    else:
        with _addresses(kind, folder) as addresses, ExitStack() as stack:

            def bring(work: Work) -> Store:
                run = f"run-{next(_numbers)}"
                store = RedisStore.bring(RedisLink(addresses, key_of(run, "rows")), run, work, NODES, lease=SHORT_LEASE)
                stack.callback(store.close)
                return store

            yield bring


@contextmanager
def opened_directories(kind: str, folder: Path) -> Iterator[OpenedDirectory]:
    """Makes empty directories of one kind."""
    if kind == "memory":
        yield lambda: MemoryDirectory(lease=SHORT_LEASE)
    elif kind == "remote":
        with ExitStack() as stack:

            def serve() -> Directory:
                transport = RestlessServer(folder / str(next(_numbers)), SHORT_LEASE)
                stack.callback(lambda: transport.server.close())
                return RemoteDirectory(transport)

            yield serve
    else:
        with _addresses(kind, folder) as addresses, ExitStack() as stack:

            def connect() -> Directory:
                cluster = f"cluster-{next(_numbers)}"
                directory = RedisDirectory(RedisLink(addresses, directory_key(cluster)), cluster, lease=SHORT_LEASE)
                stack.callback(directory.close)
                return directory

            yield connect


def within_a_lease(deed: Callable[[], T]) -> T:
    """What something that begins with a renewal returns when all of it took less than a lease.

    On a busy machine the lease may end in between; then nothing follows from the answer, and it is done again.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        begun = time.monotonic()
        answer = deed()
        if time.monotonic() - begun < SHORT_LEASE:
            return answer
        assert time.monotonic() < deadline, f"it never took less than {SHORT_LEASE} s"


def diamond() -> Work:
    """0 makes two files, of which 1 and 2 read one each; 3 reads what these make."""
    return assemble("diamond", [1.0] * 4, [[4], [0], [1], [2, 3]], [[0, 1], [2], [3], []], [10, 20, 30, 40, 50])


def started(store: Store, node: int = 0) -> list[ReadyTask]:
    """Begins, and gives everything to a node."""
    tickets = store.begin().tickets
    store.owned([ticket.task for ticket in tickets], node)
    return tickets


def tasks(placeable: ReadyBatch) -> list[int]:
    return [ticket.task for ticket in placeable.tickets]
