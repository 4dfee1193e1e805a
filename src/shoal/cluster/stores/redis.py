"""The store and the directory of a cluster in Redis or Valkey (alone or in cluster mode), as server-side scripts.

Keys of a run all have the hash tag `{RUN}`, so they are in one slot and a script may use them together:

    shoal:{RUN}:rows       18 bytes per task: the changing part of its state (`packed_columns.ROW`)
    shoal:{RUN}:spans      12 bytes per task: where its children, inputs and outputs begin
    shoal:{RUN}:children, :inputs, :outputs    4 bytes per edge
    shoal:{RUN}:files      17 bytes per file: location, producer, size (`packed_columns.FILE`)
    shoal:{RUN}:replicas   hash: further nodes that have a file
    shoal:{RUN}:lost       set: lost nodes
    shoal:{RUN}:recorded   hash: by sender, the number of its last recorded transfer
    shoal:{RUN}:counts     hash: unfinished tasks, ready tasks
    shoal:{RUN}:leases     sorted set: by node, when its lease expires (the server's milliseconds)
    shoal:{RUN}:replies    hash: by client, its last request and the reply
    shoal:{RUN}:about      hash: descriptions of output files
    shoal:{RUN}:log        list: the log entries of the run, for its submitter
    shoal:{RUN}:pieces     hash: by name, other data of the run
    shoal:{RUN}:work:*     further columns of the work, for nodes that join
    shoal:{RUN}:summary    name, size and categories; written last

`RedisLink` survives lost connections, `shoal.core.store.requests` encodes requests and replies, the `.lua` files
contain the scripts. `worries` lists settings of a server that endanger a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files as resource_files
from random import random
from struct import Struct
from typing import Any
from uuid import uuid4

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry

from shoal.core.store.directory import Beat, NodeInfo, RunInfo, SubmittedRunState, name_is_taken, places_of
from shoal.core.store.interface import LEASE, NOBODY, GoneError, TaskStanding, UnknownRunError
from shoal.core.store.memory import MemoryStore
from shoal.core.store.packed_columns import COLUMNS, PIECE, ColumnsSummary, pack, summarize, unpack_rows, unpack_work
from shoal.core.store.requests import RequestingStore
from shoal.core.work import Work
from shoal.errors import InputError, RunError

FIRST_DELAY = 0.02
LONGEST_DELAY = 1.0
ANSWER_SECONDS = 30.0
"""Seconds without a reply after which the connection is replaced."""

GONE = "the Redis server no longer has this run: it was restarted without its data"
_REFUSALS = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
)
"""Errors that are temporary: outages, restarts, fail-overs, slots in migration."""


class Script:
    """A server-side script and the hash by which the server knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode()).hexdigest()


class RedisLink:
    """A connection to the server that has the slot of `key`, re-established when it breaks."""

    def __init__(self, addresses: Sequence[str], key: str, *, patience: float = 60.0) -> None:
        """`addresses` are URLs (`redis://`, `rediss://`, `unix://`); an outage of more than `patience` seconds raises
        an error."""
        self._addresses = [self._parsed(address) for address in addresses]
        self._key = key
        self._patience = patience
        self._turn = 0
        self._moved_to: tuple[str, int] | None = None
        self._client: redis.Redis | None = None
        self.breaks = 0
        """Number of lost connections."""
        self._call_first(addresses)

    @staticmethod
    def _parsed(address: str) -> dict[str, Any]:
        try:
            return dict(parse_url(address))  # type: ignore[no-untyped-call]
        except ValueError:  # the message may contain a part of a password
            remedy = "write it as redis://:PASSWORD@HOST:PORT, with special characters of the password percent-encoded"
            raise InputError("this is not the address of a Redis server", remedy=remedy) from None

    def _call_first(self, addresses: Sequence[str]) -> None:
        """Connects once, so that a wrong address is reported at once."""
        shown = places_of(",".join(addresses), schemes=True)
        patience, self._patience = self._patience, min(self._patience, 5.0)
        try:
            self.call("PING")
            if self.info("cluster").get("cluster_enabled"):
                self.call("EXISTS", self._key)
        except RunError as error:
            raise InputError(f"no Redis server replies at {shown}", remedy=str(error.__cause__)) from None
        self._patience = patience

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    def _connected(self) -> redis.Redis:
        if self._client is None:
            options = dict(self._addresses[self._turn % len(self._addresses)])
            if self._moved_to is not None:
                options.pop("path", None)
                if options.get("connection_class") is redis.UnixDomainSocketConnection:
                    del options["connection_class"]
                options["host"], options["port"] = self._moved_to
            options.update(retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_SECONDS, socket_connect_timeout=5.0)
            self._client = redis.Redis(connection_pool=ConnectionPool(**options), single_connection_client=True)
        return self._client

    def _persist(self, action: Any) -> Any:
        """Calls `action` with a client until it succeeds, or the patience is over."""
        delay, since = FIRST_DELAY, 0.0
        while True:
            try:
                return action(self._connected())
            except redis.exceptions.MovedError as error:
                self.close()
                self._moved_to = (error.host or self._host(), error.port)
                cause: Exception = error
            except _REFUSALS as error:
                raise InputError(f"the Redis server rejects the login: {error}") from None
            except _PASSING as error:
                self.close()
                self._moved_to = None
                self._turn += 1
                self.breaks += 1
                cause = error
            now = time.monotonic()
            since = since or now
            if now - since > self._patience:
                raise RunError(f"the store has not replied for {self._patience:g} s") from cause
            if not isinstance(cause, redis.exceptions.MovedError) or delay > FIRST_DELAY:
                time.sleep(delay * (0.5 + random()))
            delay = min(delay * 2, LONGEST_DELAY)

    def _host(self) -> str:
        return str(self._addresses[self._turn % len(self._addresses)].get("host", "127.0.0.1"))

    def call(self, *words: str | bytes | int) -> Any:
        """Sends one command."""
        try:
            return self._persist(lambda client: client.execute_command(*words))
        except redis.ResponseError as error:
            raise _explained(error) from None

    def run(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> bytes:
        """Runs a script, by its hash if the server knows it."""
        rest = (len(keys), *keys, *arguments)
        try:
            return bytes(self._persist(lambda client: client.execute_command("EVALSHA", script.sha, *rest)))
        except redis.exceptions.NoScriptError:
            return bytes(self.call("EVAL", script.text, *rest))
        except redis.ResponseError as error:
            raise _explained(error) from None

    def info(self, section: str) -> dict[str, Any]:
        """Returns a section of the server's status."""
        return dict(self._persist(lambda client: client.info(section)))

    def setting(self, name: str) -> str | None:
        """Returns one of the server's settings; None if the server does not permit it."""
        try:
            return str(self._persist(lambda client: client.config_get(name)).get(name))
        except (redis.ResponseError, InputError):
            return None


def _explained(error: redis.ResponseError) -> RunError:
    """Translates an error of the server into a message."""
    if isinstance(error, redis.OutOfMemoryError):
        return RunError("the Redis server is out of memory (maxmemory): nothing more can be recorded")
    text = str(error)
    if text.startswith("NORUN"):
        return GoneError(GONE)
    if text.startswith("MISCONF"):
        return RunError(f"the Redis server cannot write to its disk: {text}")
    return RunError(f"the Redis server reports an error: {text}")


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
    folder = resource_files("shoal.cluster.stores")
    return Script("".join(folder.joinpath(f"{name}.lua").read_text() for name in (*names, "once", "perform")))


class RedisStore(RequestingStore):
    """The store of one run, shared by all clients that attach to it. Not thread-safe."""

    def __init__(self, link: RedisLink, run: str, summary: ColumnsSummary, *, lease: float = LEASE) -> None:
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
        link: RedisLink,
        run: str,
        work: Work,
        nodes: int,
        *,
        shared_files: bool = False,
        lease: float = LEASE,
    ) -> RedisStore:
        """Creates a new run; `begin` returns its ready tasks."""
        books = MemoryStore(work, nodes, shared_files=shared_files)
        first = books.begin()
        if link.call("EXISTS", key_of(run, "summary")):
            raise InputError(f"the store already has a run {run!r}", remedy="choose another name or forget that one")
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
            # The server was restarted without its data while the columns were sent: some of them are missing.
            link.call("DEL", *_keys_of(run))
            raise GoneError(GONE)
        store = cls(link, run, summary, lease=lease)
        store._first = first
        return store

    @classmethod
    def attach(cls, link: RedisLink, run: str, *, lease: float = LEASE) -> RedisStore:
        """Opens a run that was created before."""
        found = link.call("GET", key_of(run, "summary"))
        if found is None:
            raise UnknownRunError(f"the store has no run {run!r}")
        try:
            summary = msgspec.msgpack.decode(found, type=ColumnsSummary)
        except msgspec.MsgspecError:
            raise InputError(f"the run {run!r} in the store was submitted by another version of Shoal") from None
        return cls(link, run, summary, lease=lease)

    def work(self) -> Work:
        """Reads the work as it was submitted."""
        columns = {name: self._column(name) for name in COLUMNS}
        self._counted("left")  # missing columns count as empty: make sure that the run still exists
        return unpack_work(self.summary, columns)

    def forget(self) -> None:
        """Removes the run from the store, with all its keys."""
        self._link.call("UNLINK", *_keys_of(self._run))

    def close(self) -> None:
        """Closes the connection."""
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
        """Number of tasks that are neither done nor given up."""
        return self._counted("left")

    @property
    def ready_count(self) -> int:
        """Number of tasks that are ready or running."""
        return self._counted("ready")

    def _counted(self, name: str) -> int:
        found = self._link.call("HGET", key_of(self._run, "counts"), name)
        if found is None:
            raise GoneError(GONE)
        return int(found)

    def standing_of(self, task: int) -> TaskStanding:
        """Returns the state of a task."""
        at = task * ROW_BYTES + STANDING_AT
        found = self._link.call("GETRANGE", key_of(self._run, "rows"), at, at)
        if not found:
            raise GoneError(GONE)
        return TaskStanding(found[0])

    def standings(self) -> bytes:
        """Returns the states of all tasks, a byte each."""
        return bytes(unpack_rows(self._column("rows"))["standing"].tobytes())

    def recorded(self, giver: int) -> int:
        """Returns the number of the last recorded transfer of a node."""
        return int(self._link.call("HGET", key_of(self._run, "recorded"), giver) or 0)

    def renew(self, node: int, now: float = 0.0) -> bool:
        """Renews the lease of a node, by the server's clock; False: the node was declared lost."""
        return bool(self._look("renew", [node, self._lease])[0])

    def log(self, start: int, most: int = 1000) -> list[bytes]:
        """Returns entries of the log from number `start` on."""
        return list(self._link.call("LRANGE", key_of(self._run, "log"), start, start + most - 1)) if most > 0 else []

    def about_of(self, file: int) -> bytes | None:
        """Returns the description of a file's last version."""
        found: bytes | None = self._link.call("HGET", key_of(self._run, "about"), file)
        return found

    def put_piece(self, name: str, data: bytes) -> None:
        """Stores other data of the run under a name."""
        self._link.call("HSET", key_of(self._run, "pieces"), name, data)

    def get_piece(self, name: str) -> bytes | None:
        """Returns the data stored under a name."""
        found: bytes | None = self._link.call("HGET", key_of(self._run, "pieces"), name)
        return found


def key_of(run: str, part: str) -> str:
    return f"shoal:{{{run}}}:{part}"


def _keys_of(run: str) -> list[str]:
    """All keys of a run."""
    return [key_of(run, part) for part in dict.fromkeys(("summary", *PARTS, "pieces", *COLUMNS))]


def worries(link: RedisLink) -> dict[str, str]:
    """Returns, by setting, messages about server settings that endanger a run."""
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


DIRECTORY_PARTS = ("nodes", "leases", "runs", "counts", "replies", "notes")
"""Keys of the script, in their order."""
_HEAD = "local NODES, LEASES, RUNS, COUNTS, REPLIES, NOTES = unpack(KEYS)\n"
_RUN = Struct("<qBI")
"""Number in the order of submission, state, length of the outcome."""
_STATES = (SubmittedRunState.WAITING, SubmittedRunState.ACTIVE, SubmittedRunState.ENDED)

_encode_directory = msgspec.msgpack.Encoder().encode
_node = msgspec.msgpack.Decoder(NodeInfo)
_numbers = msgspec.msgpack.Decoder(list[int])


def directory_key(cluster: str, part: str = "nodes") -> str:
    """Returns one of the directory's keys. All keys of a Shoal cluster are in the same Redis hash slot, so a
    `RedisLink` may use any of them to find the server."""
    return f"shoal:{{{cluster}}}:directory:{part}"


class RedisDirectory:
    """The nodes and runs of one cluster, shared by all clients with a link. Not thread-safe."""

    def __init__(self, link: RedisLink, cluster: str, *, lease: float = LEASE) -> None:
        self._link = link
        self._cluster = cluster
        self._lease = round(lease * 1000)
        self._client = uuid4().hex
        self._sequence = 0
        self._keys = [directory_key(cluster, part) for part in DIRECTORY_PARTS]
        folder = resource_files("shoal.cluster.stores")
        self._script = Script(
            _HEAD + "".join(folder.joinpath(name).read_text() for name in ("once.lua", "directory.lua"))
        )

    def close(self) -> None:
        """Closes the connection."""
        self._link.call("HDEL", directory_key(self._cluster, "replies"), self._client)
        self._link.close()

    def erase(self) -> None:
        """Removes the directory of a cluster that was stopped; the stores of its runs stay."""
        self._link.call("UNLINK", *self._keys)

    def _ask(self, operation: str, *given: str | bytes | int) -> list[int]:
        """Sends a request that changes something: it is executed once, however often it is sent."""
        self._sequence += 1
        return _numbers.decode(
            self._link.run(self._script, self._keys, self._client, self._sequence, operation, *given)
        )

    def _look(self, operation: str, *given: str | bytes | int) -> list[int]:
        return _numbers.decode(self._link.run(self._script, self._keys, self._client, 0, operation, *given))

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """Adds a node; returns its number. Its lease begins, by the server's clock."""
        return self._ask("join", _encode_directory(info), self._lease, above)[0]

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """Renews the lease of a node, by the server's clock, unless the node was removed."""
        found = self._look("renew", number, self._lease, note, incarnation)
        alive, nodes_version, runs_version, clock = found
        return Beat(bool(alive), nodes_version, runs_version, clock / 1000)

    def notes(self) -> dict[int, bytes]:
        """Returns the last status of each node."""
        found = self._link.call("HGETALL", directory_key(self._cluster, "notes"))
        return dict(sorted((int(key), bytes(each)) for key, each in found.items()))

    def update(self, number: int, info: NodeInfo) -> None:
        """Replaces the description of a node."""
        self._ask("update", number, _encode_directory(info))

    def nodes(self) -> dict[int, NodeInfo]:
        """Returns all nodes that were not removed, in the order of their numbers."""
        found = self._link.call("HGETALL", directory_key(self._cluster, "nodes"))
        return {number: _node.decode(info) for number, info in sorted((int(key), each) for key, each in found.items())}

    def expired(self, now: float = 0.0) -> list[int]:
        """Returns nodes whose lease has expired, by the server's clock, and that were not removed yet, in order."""
        return sorted(self._look("expired"))

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """Removes a node."""
        self._ask("remove", number, *(() if incarnation is None else (incarnation,)))

    # ---- runs ----------------------------------------------------------------------------------------------------

    def submit(self, run: str, about: bytes) -> None:
        """Adds a waiting run."""
        if self._ask("submit", run, about) == [0]:
            raise name_is_taken(run)

    def runs(self) -> list[RunInfo]:
        """Returns all runs that were not forgotten, in the order of submission."""
        found = []
        for name, text in self._link.call("HGETALL", directory_key(self._cluster, "runs")).items():
            serial, state, length = _RUN.unpack_from(text)
            outcome, about = text[_RUN.size : _RUN.size + length], text[_RUN.size + length :]
            found.append((serial, RunInfo(name.decode(), _STATES[state], about, outcome.decode())))
        return [info for _, info in sorted(found, key=lambda each: each[0])]

    def begin(self, run: str) -> bool:
        """Makes a waiting run active; True for the one caller that did it."""
        return self._ask("begin", run) == [1]

    def end(self, run: str, outcome: str) -> None:
        """Ends a run."""
        self._ask("end", run, outcome)

    def forget(self, run: str) -> None:
        """Removes a run from the list."""
        self._ask("forget", run)
