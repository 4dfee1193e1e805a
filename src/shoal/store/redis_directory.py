"""The directory of a cluster in Redis or Valkey: the operations of `shoal.store.directory` as a server-side script.

Keys, all with the hash tag `{CLUSTER}`:

    shoal:{CLUSTER}:directory:nodes     hash: by number, what the node tells of itself (msgpack)
    shoal:{CLUSTER}:directory:leases    sorted set: by number, until when it is alive (the server's milliseconds)
    shoal:{CLUSTER}:directory:runs      hash: by name, the run (`_RUN`, then its outcome, then what is said about it)
    shoal:{CLUSTER}:directory:counts    hash: nodes and runs there ever were, and the versions of both lists
    shoal:{CLUSTER}:directory:replies   hash: by client, its last request and the answer
    shoal:{CLUSTER}:directory:notes     hash: by number, what the node said last of how it is doing

How a lost connection is borne is in `link`. The books of the runs are in `redis`, under keys of their own.
"""

from __future__ import annotations

from importlib.resources import files as resource_files
from struct import Struct
from uuid import uuid4

import msgspec

from shoal.store.base import LEASE, NOBODY
from shoal.store.directory import Beat, NodeInfo, RunInfo, RunState, name_is_taken
from shoal.store.link import Link, Script

PARTS = ("nodes", "leases", "runs", "counts", "replies", "notes")
"""Keys of the script, in their order."""
_HEAD = "local NODES, LEASES, RUNS, COUNTS, REPLIES, NOTES = unpack(KEYS)\n"
_RUN = Struct("<qBI")
"""Number in the order of submission, state, length of the outcome."""
_STATES = (RunState.WAITING, RunState.ACTIVE, RunState.ENDED)

_encode = msgspec.msgpack.Encoder().encode
_node = msgspec.msgpack.Decoder(NodeInfo)
_numbers = msgspec.msgpack.Decoder(list[int])


def directory_key(cluster: str, part: str = "nodes") -> str:
    """One of the keys; all of a cluster lie in one slot, so any of them does for a `Link`."""
    return f"shoal:{{{cluster}}}:directory:{part}"


class RedisDirectory:
    """The nodes and runs of one cluster, shared by all who have a link. Not for several threads."""

    def __init__(self, link: Link, cluster: str, *, lease: float = LEASE) -> None:
        self._link = link
        self._cluster = cluster
        self._lease = round(lease * 1000)
        self._client = uuid4().hex
        self._sequence = 0
        self._keys = [directory_key(cluster, part) for part in PARTS]
        folder = resource_files("shoal.store")
        self._script = Script(
            _HEAD + "".join(folder.joinpath(name).read_text() for name in ("once.lua", "directory.lua"))
        )

    def close(self) -> None:
        """This client asks for nothing any more."""
        self._link.call("HDEL", directory_key(self._cluster, "replies"), self._client)
        self._link.close()

    def erase(self) -> None:
        """Removes the directory of a cluster that is no more; the books of its runs are not touched."""
        self._link.call("UNLINK", *self._keys)

    def _ask(self, operation: str, *given: str | bytes | int) -> list[int]:
        """A step that changes something: carried out once, however often it must be sent."""
        self._sequence += 1
        return _numbers.decode(
            self._link.run(self._script, self._keys, self._client, self._sequence, operation, *given)
        )

    def _look(self, operation: str, *given: str | bytes | int) -> list[int]:
        return _numbers.decode(self._link.run(self._script, self._keys, self._client, 0, operation, *given))

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """A new node: its number. Its lease begins, by the server's clock."""
        return self._ask("join", _encode(info), self._lease, above)[0]

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """A node is alive for the length of a lease, by the server's clock, unless it was removed."""
        found = self._look("renew", number, self._lease, note, incarnation)
        alive, nodes_version, runs_version, clock = found
        return Beat(bool(alive), nodes_version, runs_version, clock / 1000)

    def notes(self) -> dict[int, bytes]:
        """What the nodes said last of how they are doing."""
        found = self._link.call("HGETALL", directory_key(self._cluster, "notes"))
        return dict(sorted((int(key), bytes(each)) for key, each in found.items()))

    def update(self, number: int, info: NodeInfo) -> None:
        """A node tells of itself anew."""
        self._ask("update", number, _encode(info))

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, in the order of their numbers."""
        found = self._link.call("HGETALL", directory_key(self._cluster, "nodes"))
        return {number: _node.decode(info) for number, info in sorted((int(key), each) for key, each in found.items())}

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over, by the server's clock, and that nobody has removed yet, in order."""
        return sorted(self._look("expired"))

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """A node is gone for good."""
        self._ask("remove", number, *(() if incarnation is None else (incarnation,)))

    # ---- runs ----------------------------------------------------------------------------------------------------

    def submit(self, run: str, about: bytes) -> None:
        """A new run, waiting."""
        if self._ask("submit", run, about) == [0]:
            raise name_is_taken(run)

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in the order in which they were submitted."""
        found = []
        for name, text in self._link.call("HGETALL", directory_key(self._cluster, "runs")).items():
            serial, state, length = _RUN.unpack_from(text)
            outcome, about = text[_RUN.size : _RUN.size + length], text[_RUN.size + length :]
            found.append((serial, RunInfo(name.decode(), _STATES[state], about, outcome.decode())))
        return [info for _, info in sorted(found, key=lambda each: each[0])]

    def begin(self, run: str) -> bool:
        """A waiting run becomes active; True for the one caller that made it so."""
        return self._ask("begin", run) == [1]

    def end(self, run: str, outcome: str) -> None:
        """A run has ended."""
        self._ask("end", run, outcome)

    def forget(self, run: str) -> None:
        """A run is listed no more."""
        self._ask("forget", run)
