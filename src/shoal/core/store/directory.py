"""The directory of a cluster: nodes with leases, and submitted runs; its interface and its implementation in memory.

A node *joins* and gets a number that is never used again. A directory that has lost its data starts counting again, so
a number alone does not identify a node. Therefore a node chooses a random *incarnation* each time it joins, and only a
caller that knows the incarnation of a number can renew its lease or remove it. A node is alive while its lease lasts,
by the clock of the directory (the implementation in memory is given the time). A node whose lease has expired stays
listed until an agent removes it. The agent that detects the expiry first requeues the node's tasks in the run stores; a
node that was only slow may renew its lease until then. A removed node learns of it when it renews, and must terminate
or join again.

A run is *waiting* after its submission, *active* once an agent begins it (exactly one caller of `begin` gets True), and
*ended* when its outcome is known. It stays listed until it is forgotten. The state of its tasks is not here but in its
run store.

Two counters are incremented with every change of the nodes and of the runs. They are part of every reply to `renew`, so
that nodes fetch the lists only after a change.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Protocol

import msgspec

from shoal.core.resources import Resources, carrying, labels_as_text
from shoal.core.store.interface import LEASE, NOBODY
from shoal.errors import InputError


class NodeInfo(msgspec.Struct, frozen=True):
    """Description of a node, provided by itself."""

    address: str
    name: str
    resources: Resources
    labels: dict[str, str]
    ends_at: float | None
    """End of its allocation in seconds since 1970; None: no end is set."""
    data: str
    """Address of its data port."""
    version: str
    incarnation: str = ""
    """Random text, chosen each time the node joins."""

    def capacity(self) -> Resources:
        """Capacity for tasks: its resources, and the labels that tasks may require."""
        return carrying(self.resources, labels_as_text(self.labels))


class Beat(msgspec.Struct, frozen=True):
    """Reply to a node that renews its lease."""

    alive: bool
    """False: the node was removed, or the number belongs to another incarnation."""
    nodes_version: int
    runs_version: int
    clock: float = 0.0
    """The directory's clock, in seconds since 1970."""


class SubmittedRunState(StrEnum):
    """State of a submitted run."""

    WAITING = "waiting"
    ACTIVE = "active"
    ENDED = "ended"


class RunInfo(msgspec.Struct, frozen=True):
    """A submitted run."""

    run: str
    state: SubmittedRunState
    about: bytes
    """Description by its submitter; opaque here."""
    outcome: str = ""
    """Outcome of an ended run."""


class Directory(Protocol):
    """The nodes and runs of one cluster. Every operation is atomic, and is executed once even if it is sent
    repeatedly."""

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """Registers a node and starts its lease. Returns its number, counted from 0 and greater than `above`.

        `above` is the greatest number that the node has seen. It prevents a directory that has lost its data from
        assigning numbers a second time.
        """

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """Renews the lease of a node, unless it was removed.

        `note` replaces the node's status report; an empty note keeps the last one.
        """

    def notes(self) -> dict[int, bytes]:
        """Latest status reports of the nodes, ordered by number. Not durable: lost with the server."""

    def update(self, number: int, info: NodeInfo) -> None:
        """Replaces the description of a node; has no effect if the node was removed."""

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, ordered by number."""

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes with an expired lease that were not removed yet, ordered by number."""

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """Removes a node for good. With an incarnation: only if the number belongs to it."""

    def submit(self, run: str, about: bytes) -> None:
        """Adds a waiting run; raises InputError if the name is taken."""

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in order of submission."""

    def begin(self, run: str) -> bool:
        """Activates a waiting run; True for exactly one caller."""

    def end(self, run: str, outcome: str) -> None:
        """Ends a run; has no effect if it has ended already."""

    def forget(self, run: str) -> None:
        """Removes a run from the list; its name may be used again."""


class MemoryDirectory:
    """The directory in memory, for clusters within one process."""

    def __init__(self, *, lease: float = LEASE) -> None:
        self._lease = lease
        self._nodes: dict[int, NodeInfo] = {}
        self._alive_until: dict[int, float] = {}
        self._notes: dict[int, bytes] = {}
        self._next = 0
        self._runs: dict[str, RunInfo] = {}
        self._nodes_version = 0
        self._runs_version = 0

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """Registers a node and starts its lease. Returns its number."""
        number = max(self._next, above + 1)
        self._next = number + 1
        self._nodes[number] = info
        self._alive_until[number] = now + self._lease
        self._nodes_version += 1
        return number

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """Renews the lease of a node, unless it was removed."""
        is_there = number in self._nodes and self._nodes[number].incarnation == incarnation
        if is_there:
            self._alive_until[number] = now + self._lease
            if note:
                self._notes[number] = note
        return Beat(is_there, self._nodes_version, self._runs_version, now)

    def notes(self) -> dict[int, bytes]:
        """Latest status reports of the nodes."""
        return dict(sorted(self._notes.items()))

    def update(self, number: int, info: NodeInfo) -> None:
        """Replaces the description of a node."""
        if number in self._nodes:
            self._nodes[number] = info
            self._nodes_version += 1

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, ordered by number."""
        return dict(self._nodes)

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes with an expired lease that were not removed yet, ordered by number."""
        return [number for number in self._nodes if self._alive_until[number] < now]

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """Removes a node for good."""
        found = self._nodes.get(number)
        if found is not None and incarnation in (None, found.incarnation):
            del self._nodes[number]
            del self._alive_until[number]
            self._notes.pop(number, None)
            self._nodes_version += 1

    def start_leases(self, now: float) -> None:
        """Restarts all leases: the times so far came from another clock."""
        self._alive_until = dict.fromkeys(self._nodes, now + self._lease)

    # ---- runs ----------------------------------------------------------------------------------------------------

    def submit(self, run: str, about: bytes) -> None:
        """Adds a waiting run."""
        if run in self._runs:
            raise name_is_taken(run)
        self._set(RunInfo(run, SubmittedRunState.WAITING, about))

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in order of submission."""
        return list(self._runs.values())

    def begin(self, run: str) -> bool:
        """Activates a waiting run; True for exactly one caller."""
        found = self._runs.get(run)
        if found is None or found.state is not SubmittedRunState.WAITING:
            return False
        self._set(RunInfo(run, SubmittedRunState.ACTIVE, found.about))
        return True

    def end(self, run: str, outcome: str) -> None:
        """Ends a run."""
        found = self._runs.get(run)
        if found is not None and found.state is not SubmittedRunState.ENDED:
            self._set(RunInfo(run, SubmittedRunState.ENDED, found.about, outcome))

    def forget(self, run: str) -> None:
        """Removes a run from the list."""
        if self._runs.pop(run, None) is not None:
            self._runs_version += 1

    def _set(self, info: RunInfo) -> None:
        self._runs[info.run] = info
        self._runs_version += 1


def name_is_taken(run: str) -> InputError:
    return InputError(f"the cluster has a run {run!r} already", remedy="choose another name or forget that one")


UNSHOWN = "a place that cannot be shown"
_NEXT = re.compile(r",(?=[a-z]+://)")
"""A comma may also be part of a password."""
_SERVER = re.compile(
    r"(?P<scheme>rediss?://)(?:[^/?#\[\]]*@)?(?P<place>(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{1,5})?)(?:/[0-9]*)?(?:\?[^@]*)?"
)
_SOCKET = re.compile(r"(?P<scheme>unix://)(?:[^/?#\[\]]*@)?(?P<place>/[^@?#]*)(?:\?[^@]*)?")


def places_of(url: str, *, schemes: bool = False) -> str:
    """The hosts and ports in addresses, without user names, passwords and options.

    A malformed address is not shown at all: a later `@` may end a password that begins earlier.
    """
    addresses = _NEXT.split(url)
    found = []
    for number, address in enumerate(addresses):
        parts = _SERVER.fullmatch(address) or _SOCKET.fullmatch(address)
        torn = "@" not in address and any("@" in later for later in addresses[number + 1 :])
        found.append(UNSHOWN if parts is None or torn else parts["scheme"] * schemes + parts["place"])
    return ", ".join(found)
