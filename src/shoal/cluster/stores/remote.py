"""Clients of the head's store: run store and directory of a cluster without Redis, as requests over a transport.

A request is an array of client, sequence, scope, operation and arguments. The scope is the name of a run, or empty for
the directory. Every client numbers the requests that change something, so the server executes each once, however often
it is sent; read-only requests have the number 0. When a transport raises TimeoutError, the same request is sent again:
whether the first one has arrived does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import random
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from shoal.core.store.directory import Beat, NodeInfo, RunInfo
from shoal.core.store.interface import NOBODY, GoneError, TaskStanding, UnknownRunError
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import COLUMNS, PIECE, ColumnsSummary, pack, summarize, unpack_work
from shoal.core.store.requests import RequestingStore
from shoal.core.work import Work
from shoal.errors import InputError, RunError

PATIENCE = 60.0
FIRST_DELAY = 0.02
LONGEST_DELAY = 1.0
DIRECTORY = ""
"""Scope of requests to the directory."""

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Transport(Protocol):
    """Sends requests to the server."""

    def ask(self, request: bytes) -> bytes:
        """Returns the reply; TimeoutError if there was none in time."""


class StoreAnswer(msgspec.Struct, array_like=True):
    """A reply of the server."""

    fault: str
    """Empty: `value` is the result. `input`, `run`, `gone`: it is the message of such an error."""
    value: msgspec.Raw
    remedy: str = ""


_answer = msgspec.msgpack.Decoder(StoreAnswer)


class StoreClient:
    """Sends one request at a time and repeats it until there is a reply. Not thread-safe."""

    def __init__(self, transport: Transport, scope: str, patience: float = PATIENCE) -> None:
        self.scope = scope
        self._transport = transport
        self._patience = patience
        self._name = uuid4().hex
        self._sequence = 0

    def ask(self, kind: type[T], operation: str, *arguments: Any, changes: bool = True) -> T:
        """Sends a request; returns the result, decoded as `kind`."""
        self._sequence += changes
        request = _encode((self._name, self._sequence if changes else 0, self.scope, operation, arguments))
        answer = _answer.decode(self._persist(request))
        if not answer.fault:
            return msgspec.msgpack.decode(answer.value, type=kind)
        message = msgspec.msgpack.decode(answer.value, type=str)
        if answer.fault == "input":
            raise InputError(message, remedy=answer.remedy or None)
        raise (GoneError if answer.fault == "gone" else RunError)(message)

    def look(self, kind: type[T], operation: str, *arguments: Any) -> T:
        """Sends a request that changes nothing, or may be executed several times."""
        return self.ask(kind, operation, *arguments, changes=False)

    def _persist(self, request: bytes) -> bytes:
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            try:
                return self._transport.ask(request)
            except TimeoutError as error:
                if time.monotonic() - since > self._patience:
                    raise RunError(f"the store has not replied for {self._patience:g} s") from error
            time.sleep(delay * (0.5 + random()))
            delay = min(delay * 2, LONGEST_DELAY)


class RemoteStore(RequestingStore):
    """The store of one run, at the server. Not thread-safe."""

    def __init__(self, client: StoreClient, summary: ColumnsSummary) -> None:
        self._client = client
        left, ready = client.look(list[int], "counts", [], [])
        super().__init__(summary, left, ready)

    @classmethod
    def bring(
        cls,
        transport: Transport,
        run: str,
        work: Work,
        nodes: int,
        *,
        shared_files: bool = False,
        patience: float = PATIENCE,
    ) -> RemoteStore:
        """Creates a new run; `begin` returns its ready tasks."""
        books = MemoryStore(work, nodes, shared_files=shared_files)
        client = StoreClient(transport, run, patience)
        client.ask(type(None), "open", [], [])
        for name, column in pack(books).items():
            if name != "rows":  # the server makes this column itself
                _send(client, "put_column", name, column)
        summary = summarize(books)
        client.ask(type(None), "bring", [nodes, int(shared_files)], [_encode(summary)])
        store = cls(client, summary)
        store._first = books.begin()
        return store

    @classmethod
    def attach(cls, transport: Transport, run: str, *, patience: float = PATIENCE) -> RemoteStore:
        """Opens a run that was created before."""
        client = StoreClient(transport, run, patience)
        found = client.look(list[bytes], "summary", [], [])
        if not found:
            raise UnknownRunError(f"the store has no run {run!r}")
        try:
            summary = msgspec.msgpack.decode(found[0], type=ColumnsSummary)
        except msgspec.MsgspecError:
            raise InputError(f"the run {run!r} in the store was submitted by another version of Shoal") from None
        return cls(client, summary)

    def work(self) -> Work:
        """Reads the work as it was submitted."""
        return unpack_work(self.summary, {name: self._fetch("get_column", name) or b"" for name in COLUMNS})

    def forget(self) -> None:
        """Removes the run from the server, with its journal."""
        self._client.ask(type(None), "forget", [], [])

    def close(self) -> None:
        """Tells the server that this client sends no further requests."""
        self._client.look(type(None), "leave", [], [])

    def _request(self, operation: str, given: Sequence[int], entries: Sequence[bytes], *, changes: bool) -> list[int]:
        return self._client.ask(list[int], operation, given, entries, changes=changes)

    @property
    def left(self) -> int:
        """Number of tasks that are neither done nor given up."""
        return self._look("counts", [])[0]

    @property
    def ready_count(self) -> int:
        """Number of tasks that are ready or running."""
        return self._look("counts", [])[1]

    def standing_of(self, task: int) -> TaskStanding:
        """Returns the state of a task."""
        return TaskStanding(self._look("standing", [task])[0])

    def standings(self) -> bytes:
        """Returns the states of all tasks, a byte each."""
        return self._client.look(list[bytes], "standings", [], [])[0]

    def recorded(self, giver: int) -> int:
        """Returns the number of the last recorded transfer of a node."""
        return self._look("recorded", [giver])[0]

    def renew(self, node: int, now: float = 0.0) -> bool:
        """Renews the lease of a node, by the server's clock; False: the node was declared lost."""
        return bool(self._look("renew", [node])[0])

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """Returns entries of the log from number `start` on."""
        return self._client.look(list[bytes], "log", [start, most], [])

    def about_of(self, file: int) -> bytes | None:
        """Returns the description of a file's last version."""
        found = self._client.look(list[bytes], "about", [file], [])
        return found[0] if found else None

    def put_piece(self, name: str, data: bytes) -> None:
        """Stores other data of the run under a name."""
        _send(self._client, "put_piece", name, data)

    def get_piece(self, name: str) -> bytes | None:
        """Returns the data stored under a name."""
        return self._fetch("get_piece", name)

    def _fetch(self, operation: str, name: str) -> bytes | None:
        """Reads large data part by part; None if it does not exist."""
        parts: list[bytes] = []
        while not parts or len(parts[-1]) == PIECE:
            found = self._client.look(list[bytes], operation, [len(parts) * PIECE], [name.encode()])
            if not found:
                return None
            parts += found
        return b"".join(parts)


def _send(client: StoreClient, operation: str, name: str, data: bytes) -> None:
    """Sends large data part by part."""
    for at in range(0, max(1, len(data)), PIECE):
        client.ask(type(None), operation, [at], [name.encode(), data[at : at + PIECE]])


class RemoteDirectory:
    """The directory of the cluster, at the server. Not thread-safe."""

    def __init__(self, transport: Transport, *, patience: float = PATIENCE) -> None:
        self._client = StoreClient(transport, DIRECTORY, patience)

    def close(self) -> None:
        """Tells the server that this client sends no further requests."""
        self._client.look(type(None), "leave")

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """Adds a node; returns its number. Its lease begins, by the server's clock."""
        return self._client.ask(int, "join", info, above)

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """Renews the lease of a node, by the server's clock, unless the node was removed."""
        return self._client.look(Beat, "renew", number, note, incarnation)

    def notes(self) -> dict[int, bytes]:
        """Returns the last status of each node."""
        return self._client.look(dict[int, bytes], "notes")

    def update(self, number: int, info: NodeInfo) -> None:
        """Replaces the description of a node."""
        self._client.ask(type(None), "update", number, info)

    def nodes(self) -> dict[int, NodeInfo]:
        """Returns all nodes that were not removed, in the order of their numbers."""
        return self._client.look(dict[int, NodeInfo], "nodes")

    def expired(self, now: float = 0.0) -> list[int]:
        """Returns nodes whose lease has expired, by the server's clock, and that were not removed yet, in order."""
        return self._client.look(list[int], "expired")

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """Removes a node."""
        self._client.ask(type(None), "remove", number, incarnation)

    def submit(self, run: str, about: bytes) -> None:
        """Adds a waiting run."""
        self._client.ask(type(None), "submit", run, about)

    def runs(self) -> list[RunInfo]:
        """Returns all runs that were not forgotten, in the order of submission."""
        return self._client.look(list[RunInfo], "runs")

    def begin(self, run: str) -> bool:
        """Makes a waiting run active; True for the one caller that did it."""
        return self._client.ask(bool, "begin", run)

    def end(self, run: str, outcome: str) -> None:
        """Ends a run."""
        self._client.ask(type(None), "end", run, outcome)

    def forget(self, run: str) -> None:
        """Removes a run from the list."""
        self._client.ask(type(None), "forget", run)
