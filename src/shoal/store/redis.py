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
    shoal:{RUN}:about      hash: what is to be known of files that were made
    shoal:{RUN}:log        list: what was told of the run, for its submitter
    shoal:{RUN}:pieces     hash: by name, what else belongs to the run
    shoal:{RUN}:work:*     further columns of the work, for those who join
    shoal:{RUN}:summary    name, size and categories; written last

How a lost connection is borne is in `link`, what requests and answers look like in `asking`, what the scripts do in
the `.lua` files, the layout of rows in `columns`. What of a server's settings endangers a run is told by `worries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files as resource_files
from uuid import uuid4

import msgspec

from shoal.errors import InputError
from shoal.model.work import Work
from shoal.store.asking import AskingStore
from shoal.store.base import LEASE, GoneError, Standing, UnknownRunError
from shoal.store.columns import COLUMNS, PIECE, Summary, pack, summarize, unpack_rows, unpack_work
from shoal.store.link import GONE, Link, Script
from shoal.store.memory import MemoryStore

PARTS = (
    *("rows", "spans", "children", "inputs", "outputs", "files"),
    *("replicas", "lost", "recorded", "counts", "leases", "replies", "log", "about"),
)
"""Keys of the scripts, in their order."""
ROW_BYTES = 18
STANDING_AT = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


def _script(*names: str) -> Script:
    folder = resource_files("shoal.store")
    return Script("".join(folder.joinpath(f"{name}.lua").read_text() for name in (*names, "once", "perform")))


class RedisStore(AskingStore):
    """The books of one run, shared by all who attach to it. Not for several threads."""

    def __init__(self, link: Link, run: str, summary: Summary, *, lease: float = LEASE) -> None:
        self._link = link
        self._keys = [key_of(run, part) for part in PARTS]
        self._run = run
        self._lease = round(lease * 1000)
        self._client = uuid4().hex
        self._sequence = 0
        self._has_files = "1" if summary.has_files else "0"
        self._complete = _script("rows", "tasks")
        self._other = _script("rows", "tasks", "files", "operations")
        counts = link.call("HMGET", key_of(run, "counts"), "left", "ready")
        if None in counts:
            raise GoneError(GONE)
        super().__init__(summary, *(int(count) for count in counts))

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
        link.call("DEL", *_keys_of(run))
        token = uuid4().hex
        link.call("HSET", key_of(run, "counts"), "token", token)
        for name, column in pack(books).items():
            key = key_of(run, name)
            for at in range(0, len(column), PIECE):
                link.call("SETRANGE", key, at, column[at : at + PIECE])
        summary = summarize(books)
        link.call("HSET", key_of(run, "counts"), "left", books.left, "ready", books.ready_count)
        link.call("SET", key_of(run, "summary"), _encode(summary))
        if link.call("HGET", key_of(run, "counts"), "token") != token.encode():
            # The server was started without its data while the columns were sent: some of them are missing.
            link.call("DEL", *_keys_of(run))
            raise GoneError(GONE)
        store = cls(link, run, summary, lease=lease)
        store._first = first
        return store

    @classmethod
    def attach(cls, link: Link, run: str, *, lease: float = LEASE) -> RedisStore:
        """A run that somebody has brought."""
        found = link.call("GET", key_of(run, "summary"))
        if found is None:
            raise UnknownRunError(f"the store has no run {run!r}")
        try:
            summary = msgspec.msgpack.decode(found, type=Summary)
        except msgspec.MsgspecError:
            raise InputError(f"the run {run!r} in the store was brought by another version of Shoal") from None
        return cls(link, run, summary, lease=lease)

    def work(self) -> Work:
        """The work, as it was brought."""
        columns = {name: self._column(name) for name in COLUMNS}
        self._counted("left")  # columns that are not there count as empty: make sure that the run still is
        return unpack_work(self.summary, columns)

    def forget(self) -> None:
        """Removes the run from the store, with all its keys."""
        self._link.call("UNLINK", *_keys_of(self._run))

    def close(self) -> None:
        """This client asks for nothing any more."""
        self._link.call("HDEL", key_of(self._run, "replies"), self._client)
        self._link.close()

    def _column(self, name: str) -> bytes:
        return self._link.call("GET", key_of(self._run, name)) or b""

    def _request(self, operation: str, given: Sequence[int], entries: Sequence[bytes], *, changes: bool) -> list[int]:
        self._sequence += changes
        sequence = self._sequence if changes else 0
        script = self._complete if operation == "complete" else self._other
        who = (self._client, sequence, self._has_files)
        return _decode(self._link.run(script, self._keys, *who, operation, _encode(given), *entries))

    @property
    def left(self) -> int:
        """Tasks that are neither done nor given up."""
        return self._counted("left")

    @property
    def ready_count(self) -> int:
        """Tasks that could run or do."""
        return self._counted("ready")

    def _counted(self, name: str) -> int:
        found = self._link.call("HGET", key_of(self._run, "counts"), name)
        if found is None:
            raise GoneError(GONE)
        return int(found)

    def standing_of(self, task: int) -> Standing:
        """Where a task stands."""
        at = task * ROW_BYTES + STANDING_AT
        found = self._link.call("GETRANGE", key_of(self._run, "rows"), at, at)
        if not found:
            raise GoneError(GONE)
        return Standing(found[0])

    def standings(self) -> bytes:
        """Where all tasks stand, a byte each."""
        return bytes(unpack_rows(self._column("rows"))["standing"].tobytes())

    def recorded(self, giver: int) -> int:
        """The number of the last parcel that was recorded for a node."""
        return int(self._link.call("HGET", key_of(self._run, "recorded"), giver) or 0)

    def renew(self, node: int, now: float = 0.0) -> bool:
        """A node is alive for the length of a lease, by the server's clock; False: it was declared lost."""
        return bool(self._look("renew", [node, self._lease])[0])

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """The entries from number `start` on, as far as there are any."""
        return list(self._link.call("LRANGE", key_of(self._run, "log"), start, start + most - 1)) if most > 0 else []

    def about_of(self, file: int) -> bytes | None:
        """What whoever made a file last wanted to be known of it."""
        found: bytes | None = self._link.call("HGET", key_of(self._run, "about"), file)
        return found

    def put_piece(self, name: str, data: bytes) -> None:
        """Something more that belongs to the run."""
        self._link.call("HSET", key_of(self._run, "pieces"), name, data)

    def get_piece(self, name: str) -> bytes | None:
        """What was put under a name."""
        found: bytes | None = self._link.call("HGET", key_of(self._run, "pieces"), name)
        return found


def key_of(run: str, part: str) -> str:
    return f"shoal:{{{run}}}:{part}"


def _keys_of(run: str) -> list[str]:
    """All keys of a run."""
    return [key_of(run, part) for part in dict.fromkeys(("summary", *PARTS, "pieces", *COLUMNS))]


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
