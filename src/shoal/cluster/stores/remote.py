"""Store and directory of a cluster without Redis, as those see them who are not the head: requests over a transport.

A request is an array of client, sequence, scope, operation and arguments. The scope is the name of a run, or empty for
the directory. Every client counts the requests that change something, so that the server (`served`) carries each out
once, however often it is sent; those that only look count as 0. A transport that raises TimeoutError is asked again
with the very same request: whether the first one got there does not matter.
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
"""Scope of requests that are about no run."""

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Transport(Protocol):
    """Carries requests to the server."""

    def ask(self, request: bytes) -> bytes:
        """The answer; TimeoutError if there was none in time."""


class StoreAnswer(msgspec.Struct, array_like=True):
    """What comes back."""

    fault: str
    """Empty: `value` is what was asked for. `input`, `run`, `gone`: it is the message of such an error."""
    value: msgspec.Raw
    remedy: str = ""


_answer = msgspec.msgpack.Decoder(StoreAnswer)


class StoreClient:
    """Asks for one thing after the other, and for each until it has an answer. Not for several threads."""

    def __init__(self, transport: Transport, scope: str, patience: float = PATIENCE) -> None:
        self.scope = scope
        self._transport = transport
        self._patience = patience
        self._name = uuid4().hex
        self._sequence = 0

    def ask(self, kind: type[T], operation: str, *arguments: Any, changes: bool = True) -> T:
        """The answer to a request, as a value of a kind."""
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
        """The same for what changes nothing, or may be done several times."""
        return self.ask(kind, operation, *arguments, changes=False)

    def _persist(self, request: bytes) -> bytes:
        delay, since = FIRST_DELAY, time.monotonic()
        while True:
            try:
                return self._transport.ask(request)
            except TimeoutError as error:
                if time.monotonic() - since > self._patience:
                    raise RunError(f"the store has not answered for {self._patience:g} s") from error
            time.sleep(delay * (0.5 + random()))
            delay = min(delay * 2, LONGEST_DELAY)


class RemoteStore(RequestingStore):
    """The books of one run, which the server has. Not for several threads."""

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
        """A new run; what is ready in it is told by `begin`."""
        books = MemoryStore(work, nodes, shared_files=shared_files)
        client = StoreClient(transport, run, patience)
        client.ask(type(None), "open", [], [])
        for name, column in pack(books).items():
            if name != "rows":  # the server makes its own
                _send(client, "put_column", name, column)
        summary = summarize(books)
        client.ask(type(None), "bring", [nodes, int(shared_files)], [_encode(summary)])
        store = cls(client, summary)
        store._first = books.begin()
        return store

    @classmethod
    def attach(cls, transport: Transport, run: str, *, patience: float = PATIENCE) -> RemoteStore:
        """A run that somebody has brought."""
        client = StoreClient(transport, run, patience)
        found = client.look(list[bytes], "summary", [], [])
        if not found:
            raise UnknownRunError(f"the store has no run {run!r}")
        try:
            summary = msgspec.msgpack.decode(found[0], type=ColumnsSummary)
        except msgspec.MsgspecError:
            raise InputError(f"the run {run!r} in the store was brought by another version of Shoal") from None
        return cls(client, summary)

    def work(self) -> Work:
        """The work, as it was brought."""
        return unpack_work(self.summary, {name: self._fetch("get_column", name) or b"" for name in COLUMNS})

    def forget(self) -> None:
        """Removes the run from the server, with its journal."""
        self._client.ask(type(None), "forget", [], [])

    def close(self) -> None:
        """This client asks for nothing any more."""
        self._client.look(type(None), "leave", [], [])

    def _request(self, operation: str, given: Sequence[int], entries: Sequence[bytes], *, changes: bool) -> list[int]:
        return self._client.ask(list[int], operation, given, entries, changes=changes)

    @property
    def left(self) -> int:
        """Tasks that are neither done nor given up."""
        return self._look("counts", [])[0]

    @property
    def ready_count(self) -> int:
        """Tasks that could run or do."""
        return self._look("counts", [])[1]

    def standing_of(self, task: int) -> TaskStanding:
        """Where a task stands."""
        return TaskStanding(self._look("standing", [task])[0])

    def standings(self) -> bytes:
        """Where all tasks stand, a byte each."""
        return self._client.look(list[bytes], "standings", [], [])[0]

    def recorded(self, giver: int) -> int:
        """The number of the last parcel that was recorded for a node."""
        return self._look("recorded", [giver])[0]

    def renew(self, node: int, now: float = 0.0) -> bool:
        """A node is alive for the length of a lease, by the server's clock; False: it was declared lost."""
        return bool(self._look("renew", [node])[0])

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """The entries from number `start` on, as far as there are any."""
        return self._client.look(list[bytes], "log", [start, most], [])

    def about_of(self, file: int) -> bytes | None:
        """What whoever made a file last wanted to be known of it."""
        found = self._client.look(list[bytes], "about", [file], [])
        return found[0] if found else None

    def put_piece(self, name: str, data: bytes) -> None:
        """Something more that belongs to the run."""
        _send(self._client, "put_piece", name, data)

    def get_piece(self, name: str) -> bytes | None:
        """What was put under a name."""
        return self._fetch("get_piece", name)

    def _fetch(self, operation: str, name: str) -> bytes | None:
        """Something large, part by part; None: it is not there."""
        parts: list[bytes] = []
        while not parts or len(parts[-1]) == PIECE:
            found = self._client.look(list[bytes], operation, [len(parts) * PIECE], [name.encode()])
            if not found:
                return None
            parts += found
        return b"".join(parts)


def _send(client: StoreClient, operation: str, name: str, data: bytes) -> None:
    """Something large, part by part."""
    for at in range(0, max(1, len(data)), PIECE):
        client.ask(type(None), operation, [at], [name.encode(), data[at : at + PIECE]])


class RemoteDirectory:
    """The directory of the cluster, which the server has. Not for several threads."""

    def __init__(self, transport: Transport, *, patience: float = PATIENCE) -> None:
        self._client = StoreClient(transport, DIRECTORY, patience)

    def close(self) -> None:
        """This client asks for nothing any more."""
        self._client.look(type(None), "leave")

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """A new node: its number. Its lease begins, by the server's clock."""
        return self._client.ask(int, "join", info, above)

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """A node is alive for the length of a lease, by the server's clock, unless it was removed."""
        return self._client.look(Beat, "renew", number, note, incarnation)

    def notes(self) -> dict[int, bytes]:
        """What the nodes said last of how they are doing."""
        return self._client.look(dict[int, bytes], "notes")

    def update(self, number: int, info: NodeInfo) -> None:
        """A node tells of itself anew."""
        self._client.ask(type(None), "update", number, info)

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, in the order of their numbers."""
        return self._client.look(dict[int, NodeInfo], "nodes")

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over, by the server's clock, and that nobody has removed yet, in order."""
        return self._client.look(list[int], "expired")

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """A node is gone for good."""
        self._client.ask(type(None), "remove", number, incarnation)

    def submit(self, run: str, about: bytes) -> None:
        """A new run, waiting."""
        self._client.ask(type(None), "submit", run, about)

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in the order in which they were submitted."""
        return self._client.look(list[RunInfo], "runs")

    def begin(self, run: str) -> bool:
        """A waiting run becomes active; True for the one caller that made it so."""
        return self._client.ask(bool, "begin", run)

    def end(self, run: str, outcome: str) -> None:
        """A run has ended."""
        self._client.ask(type(None), "end", run, outcome)

    def forget(self, run: str) -> None:
        """A run is listed no more."""
        self._client.ask(type(None), "forget", run)
