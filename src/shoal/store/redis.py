"""The store in Redis or Valkey, alone or in cluster mode: the operations of `shoal.store.base` as server-side scripts.

Keys, all with the hash tag `{RUN}`, so that a run lies in one slot and a script may use them together:

    shoal:{RUN}:rows       18 bytes per task: what changes (`columns.ROW`)
    shoal:{RUN}:spans      12 bytes per task: where its children, inputs and outputs begin
    shoal:{RUN}:children, :inputs, :outputs    4 bytes per edge
    shoal:{RUN}:files      17 bytes per file: where it is, who makes it, how large it is (`columns.FILE`)
    shoal:{RUN}:replicas   hash: further nodes that have a file
    shoal:{RUN}:lost       set: nodes that are gone for good
    shoal:{RUN}:recorded   hash: by giver, the last parcel
    shoal:{RUN}:counts     hash: tasks left, tasks ready
    shoal:{RUN}:leases     sorted set: by node, until when it is taken for alive (the server's milliseconds)
    shoal:{RUN}:replies    hash: by client, its last request and the answer
    shoal:{RUN}:work:*     further columns of the work, for those who join
    shoal:{RUN}:summary    name, size and categories; written last

How a lost connection is borne is in `link`, what the scripts do in the `.lua` files, the layout of rows in `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files as resource_files
from uuid import uuid4

import msgspec

from shoal.broker.peers import Ticket
from shoal.errors import InputError
from shoal.model.work import Work
from shoal.store.base import LEASE, NOBODY, Placeable, Standing
from shoal.store.columns import EXTRA, Summary, pack, summarize, unpack_rows, unpack_work
from shoal.store.link import Link, Script
from shoal.store.memory import MemoryStore

PARTS = (
    *("rows", "spans", "children", "inputs", "outputs", "files"),
    *("replicas", "lost", "recorded", "counts", "leases", "replies"),
)
"""Keys of the scripts, in their order."""
COLUMNS = (*PARTS[:6], *(f"work:{name}" for name in EXTRA))
PIECE = 4 << 20
"""Bytes of a column that are sent in one command."""
ROW_BYTES = 18
STANDING_AT = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


def _script(*names: str) -> Script:
    folder = resource_files("shoal.store")
    return Script("".join(folder.joinpath(f"{name}.lua").read_text() for name in (*names, "perform")))


class RedisStore:
    """The books of one run, shared by all who attach to it. Not for several threads."""

    def __init__(self, link: Link, run: str, summary: Summary, *, lease: float = LEASE) -> None:
        self.summary = summary
        self._link = link
        self._keys = [key_of(run, part) for part in PARTS]
        self._run = run
        self._lease = round(lease * 1000)
        self._client = uuid4().hex
        self._sequence = 0
        self._first = Placeable([], [])
        self._has_files = "1" if summary.has_files else "0"
        self._complete = _script("rows", "tasks")
        self._other = _script("rows", "tasks", "files", "operations")

    @classmethod
    def bring(
        cls,
        link: Link,
        run: str,
        work: Work,
        nodes: int,
        *,
        shared_files: bool = False,
        lease: float = LEASE,
    ) -> RedisStore:
        """A new run; what is ready in it is told by `begin`."""
        books = MemoryStore(work, nodes, shared_files=shared_files)
        first = books.begin()
        if link.call("EXISTS", key_of(run, "summary")):
            raise InputError(f"the store has a run {run!r} already", remedy="choose another name or forget that one")
        link.call("DEL", *(key_of(run, part) for part in (*PARTS, *COLUMNS)))
        for name, column in pack(books).items():
            key = key_of(run, name)
            for at in range(0, len(column), PIECE):
                link.call("SETRANGE", key, at, column[at : at + PIECE])
        summary = summarize(books)
        link.call("HSET", key_of(run, "counts"), "left", books.left, "ready", books.ready_count)
        link.call("SET", key_of(run, "summary"), _encode(summary))
        store = cls(link, run, summary, lease=lease)
        store._first = first
        return store

    @classmethod
    def attach(cls, link: Link, run: str, *, lease: float = LEASE) -> RedisStore:
        """A run that somebody has brought."""
        found = link.call("GET", key_of(run, "summary"))
        if found is None:
            raise InputError(f"the store has no run {run!r}")
        try:
            summary = msgspec.msgpack.decode(found, type=Summary)
        except msgspec.MsgspecError:
            raise InputError(f"the run {run!r} in the store was brought by another version of Shoal") from None
        return cls(link, run, summary, lease=lease)

    def work(self) -> Work:
        """The work, as it was brought."""
        return unpack_work(self.summary, {name: self._column(name) for name in COLUMNS})

    def forget(self) -> None:
        """Removes the run from the store, with all its keys."""
        parts = ("summary", *PARTS, *COLUMNS)
        self._link.call("UNLINK", *dict.fromkeys(key_of(self._run, part) for part in parts))

    def close(self) -> None:
        """This client asks for nothing any more."""
        self._link.call("HDEL", key_of(self._run, "replies"), self._client)
        self._link.close()

    def _column(self, name: str) -> bytes:
        return self._link.call("GET", key_of(self._run, name)) or b""

    def _ask(self, operation: str, given: Sequence[int], *, script: Script | None = None) -> list[int]:
        """One step that changes something: carried out once, however often it must be sent."""
        self._sequence += 1
        arguments = (self._client, self._sequence, self._has_files, operation, _encode(given))
        return _decode(self._link.run(script or self._other, self._keys, *arguments))

    def _look(self, operation: str, given: Sequence[int]) -> list[int]:
        return _decode(
            self._link.run(self._other, self._keys, self._client, 0, self._has_files, operation, _encode(given))
        )

    def _placeable(self, answer: list[int], at: int = 0) -> tuple[Placeable, int]:
        """Tickets and holdings as `tell_placeable` wrote them, and where they end."""
        placeable = Placeable([], [])
        count = answer[at]
        at += 1
        for _ in range(count):
            placeable.tickets.append(Ticket(answer[at], answer[at + 1]))
            at += 2
            if self.summary.has_files:
                holdings, at = _pairs(answer, at)
                placeable.holdings.append(holdings)
        return placeable, at

    # ---- tasks ---------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Tasks that are neither done nor given up."""
        return int(self._link.call("HGET", key_of(self._run, "counts"), "left"))

    @property
    def ready_count(self) -> int:
        """Tasks that could run or do."""
        return int(self._link.call("HGET", key_of(self._run, "counts"), "ready"))

    def begin(self) -> Placeable:
        """What is ready at the start, for whoever brought the run; others ask for what is `unowned`."""
        first, self._first = self._first, Placeable([], [])
        return first

    def complete(self, node: int, ended: Sequence[tuple[int, int]]) -> tuple[list[int], Placeable]:
        """Results (task, attempt) of a node: the tasks for which they count, and what became ready, which it takes."""
        given = [node]
        for pair in ended:
            given += pair
        answer = self._ask("complete", given, script=self._complete)
        accepted = answer[1 : 1 + answer[0]]
        return accepted, self._placeable(answer, 1 + len(accepted))[0]

    def give_up(self, task: int, attempt: int | None = None) -> list[int]:
        """The task has failed for good or is not wanted; what can never run because of that."""
        return self._ask("give_up", [task, -1 if attempt is None else attempt])[1:]

    def cancel(self, tasks: Iterable[int]) -> list[int]:
        """Removes tasks and all that needs them; returns those that some broker has and must be told of."""
        return self._ask("cancel", list(tasks))[1:]

    def standing_of(self, task: int) -> Standing:
        """Where a task stands."""
        at = task * ROW_BYTES + STANDING_AT
        return Standing(self._link.call("GETRANGE", key_of(self._run, "rows"), at, at)[0])

    def standings(self) -> bytes:
        """Where all tasks stand, a byte each."""
        return bytes(unpack_rows(self._column("rows"))["standing"].tobytes())

    # ---- who has what --------------------------------------------------------------------------------------------

    def owned(self, tasks: Iterable[int], node: int) -> None:
        """A broker has these tasks now, from the store itself; nothing happens if the node is lost."""
        self._ask("owned", [node, *tasks])

    def unowned(self, taker: int = NOBODY) -> Placeable:
        """Tasks that are ready and that nobody has: whoever should have placed them is gone."""
        return self._placeable(self._ask("unowned", [taker]))[0]

    def moved(self, tickets: Iterable[Ticket], giver: int, node: int, number: int = 0) -> Placeable:
        """One broker gives tasks to another; if that one is lost the giver takes them back, as a new generation."""
        given = [giver, node, number, *(ticket.task for ticket in tickets)]
        return self._placeable(self._ask("moved", given))[0]

    def recorded(self, giver: int) -> int:
        """The number of the last parcel that was recorded for a node."""
        return int(self._link.call("HGET", key_of(self._run, "recorded"), giver) or 0)

    def claim(self, node: int, tickets: Iterable[Ticket]) -> Placeable:
        """A node has not got these promised tasks; those that nobody else can have are placed anew by it."""
        given = [node]
        for ticket in tickets:
            given += (ticket.task, ticket.attempt)
        return self._placeable(self._ask("claim", given))[0]

    def hand_back(self, ticket: Ticket, taker: int = NOBODY) -> Ticket | None:
        """A broker cannot run a task and has let go of it: the ticket for another one, None if it does not count."""
        answer = self._ask("hand_back", [ticket.task, ticket.attempt, taker])
        return Ticket(ticket.task, answer[0], ticket.failures, ticket.losses) if answer else None

    def missing(self, ticket: Ticket, taker: int = NOBODY) -> Placeable:
        """A task found an input missing when it started: it waits for it, or is placed anew if it is there now."""
        return self._placeable(self._ask("missing", [ticket.task, ticket.attempt, taker]))[0]

    # ---- who is there --------------------------------------------------------------------------------------------

    def renew(self, node: int, now: float = 0.0) -> bool:
        """A node is alive for the length of a lease, by the server's clock; False: it was declared lost."""
        return bool(self._look("renew", [node, self._lease])[0])

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over, by the server's clock, and that nobody has declared lost yet, in order."""
        return sorted(self._look("expired", []))

    def lose(self, node: int, taker: int = NOBODY) -> tuple[Placeable, dict[int, list[Ticket]]]:
        """A node is gone with all it had: what is to be placed anew, and by owner what was on its way from there."""
        answer = self._ask("lose", [node, taker])
        placeable, at = self._placeable(answer)
        promised: dict[int, list[Ticket]] = {}
        for each in range(at, len(answer), 3):
            owner, task, attempt = answer[each : each + 3]
            promised.setdefault(owner, []).append(Ticket(task, attempt))
        return placeable, promised

    # ---- files ---------------------------------------------------------------------------------------------------

    def holdings(self, task: int) -> tuple[tuple[int, int], ...]:
        """Where a task's inputs are, as pairs of node and bytes."""
        return _pairs(self._look("holdings", [task]), 0)[0] if self.summary.has_files else ()

    def copies(self, file: int) -> list[int]:
        """The nodes that have a file."""
        return self._look("copies", [file])

    def copied(self, file: int, node: int) -> None:
        """A node has got a copy."""
        self._ask("copied", [file, node])

    def dropped(self, file: int, node: int) -> None:
        """A node has let go of its copy; the last one is never let go of by choice."""
        self._ask("dropped", [file, node])


def key_of(run: str, part: str) -> str:
    return f"shoal:{{{run}}}:{part}"


def _pairs(answer: list[int], at: int) -> tuple[tuple[tuple[int, int], ...], int]:
    end = at + 1 + 2 * answer[at]
    return tuple((answer[each], answer[each + 1]) for each in range(at + 1, end, 2)), end


def worries(link: Link) -> dict[str, str]:
    """What of the server's settings endangers a run, by setting, in a sentence each; empty: nothing."""
    found: dict[str, str] = {}
    persistence, memory, server = link.info("persistence"), link.info("memory"), link.info("server")
    if int(str(server.get("redis_version", "0")).split(".")[0]) < 6:
        found["version"] = f"The Redis server is version {server.get('redis_version')}; it should be 6 or later."
    if not int(persistence.get("aof_enabled", 0)):
        found["appendonly"] = (
            "The Redis server keeps no append-only file: if it ends, runs that are under way are"
            " lost; set 'appendonly yes'."
        )
    elif link.setting("appendfsync") in ("everysec", "no"):
        found["appendfsync"] = (
            "The Redis server does not wait for its disk: if its machine fails, the results of the last second or two"
            " may be forgotten; 'appendfsync always' rules that out."
        )
    if persistence.get("aof_last_write_status", "ok") != "ok":
        found["aof_last_write_status"] = "The Redis server could not write its append-only file the last time."
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found["maxmemory-policy"] = (
            f"The Redis server forgets data when its memory is full ('{policy}'); set 'maxmemory-policy noeviction'."
        )
    if int(memory.get("maxmemory", 0)):
        free = max(0, int(memory["maxmemory"]) - int(memory.get("used_memory", 0)))
        found["maxmemory"] = (
            f"The Redis server may use {free >> 20} MiB more (maxmemory); a run needs about 200 bytes per task."
        )
    return found
