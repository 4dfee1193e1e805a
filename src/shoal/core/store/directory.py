"""Who and what there is in a cluster: its nodes, and the runs that were submitted to it; protocol and form in memory.

A node *joins* and gets a number that nobody had before it and nobody gets after it. A directory that has lost its data
counts from the beginning again, so a number alone does not name a node: each time it joins, a node makes up an
*incarnation*, and only who knows that of a number can renew its lease or give it up. It is alive while its lease lasts,
by the clock of the directory (the form in memory is told the time). A node whose lease is over stays listed until
somebody removes it: whoever finds it expired first puts the books of the runs in order, and a node that was only slow
may renew its lease until then. A node that was removed is told so when it renews, and must end or join anew.

A run is *waiting* when it was submitted, *active* from when somebody begins it (exactly one caller is told that it is
the one), and *ended* when its outcome is known. It stays listed until it is forgotten. The books of a run are not here
but in its store.

Two counters go up with every change of the nodes and of the runs. They come with every beat, so that a node looks at
the lists only when there is something new in them.
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
    """What a node tells of itself."""

    address: str
    name: str
    resources: Resources
    labels: dict[str, str]
    ends_at: float | None
    """When its allocation ends, in seconds since 1970; None: nobody has set an end."""
    data: str
    """Address of its data port."""
    version: str
    incarnation: str = ""
    """Made up at random whenever it joins."""

    def capacity(self) -> Resources:
        """What it has for tasks: its resources, and the labels that they may require."""
        return carrying(self.resources, labels_as_text(self.labels))


class Beat(msgspec.Struct, frozen=True):
    """What a node hears when it renews its lease."""

    alive: bool
    """False: it was removed, or the number is that of another incarnation."""
    nodes_version: int
    runs_version: int
    clock: float = 0.0
    """What the directory's clock shows, in seconds since 1970."""


class SubmittedRunState(StrEnum):
    """How far a run is."""

    WAITING = "waiting"
    ACTIVE = "active"
    ENDED = "ended"


class RunInfo(msgspec.Struct, frozen=True):
    """A run that was submitted."""

    run: str
    state: SubmittedRunState
    about: bytes
    """What its submitter says of it; not looked at here."""
    outcome: str = ""
    """How it ended."""


class Directory(Protocol):
    """The nodes and runs of one cluster. Every operation is one step, carried out once however often it is sent."""

    def join(self, info: NodeInfo, now: float = 0.0, above: int = NOBODY) -> int:
        """A new node: its number, counted from 0 and greater than `above`. Its lease begins.

        With the greatest number that it has heard of, a node keeps a directory that has lost its data from giving the
        same numbers to others.
        """

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """A node is alive, from now on for the length of a lease, unless it was removed.

        With a `note` it says how it is doing; without, what it said last stands.
        """

    def notes(self) -> dict[int, bytes]:
        """What the nodes said last of how they are doing, in the order of their numbers. Lost with the server."""

    def update(self, number: int, info: NodeInfo) -> None:
        """A node tells of itself anew; nothing happens if it was removed."""

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, in the order of their numbers."""

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over and that nobody has removed yet, in order."""

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """A node is gone for good. Nothing happens if an incarnation is given and the number is that of another."""

    def submit(self, run: str, about: bytes) -> None:
        """A new run, waiting; an InputError if there is one of that name."""

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in the order in which they were submitted."""

    def begin(self, run: str) -> bool:
        """A waiting run becomes active; True for the one caller that made it so."""

    def end(self, run: str, outcome: str) -> None:
        """A run has ended; what is said of one that has ended already changes nothing."""

    def forget(self, run: str) -> None:
        """A run is listed no more; its name may be used again."""


class MemoryDirectory:
    """The directory of a cluster in which nobody else needs to see it."""

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
        """A new node: its number. Its lease begins."""
        number = max(self._next, above + 1)
        self._next = number + 1
        self._nodes[number] = info
        self._alive_until[number] = now + self._lease
        self._nodes_version += 1
        return number

    def renew(self, number: int, now: float = 0.0, note: bytes = b"", incarnation: str = "") -> Beat:
        """A node is alive, from now on for the length of a lease, unless it was removed."""
        is_there = number in self._nodes and self._nodes[number].incarnation == incarnation
        if is_there:
            self._alive_until[number] = now + self._lease
            if note:
                self._notes[number] = note
        return Beat(is_there, self._nodes_version, self._runs_version, now)

    def notes(self) -> dict[int, bytes]:
        """What the nodes said last of how they are doing."""
        return dict(sorted(self._notes.items()))

    def update(self, number: int, info: NodeInfo) -> None:
        """A node tells of itself anew."""
        if number in self._nodes:
            self._nodes[number] = info
            self._nodes_version += 1

    def nodes(self) -> dict[int, NodeInfo]:
        """All nodes that were not removed, in the order of their numbers."""
        return dict(self._nodes)

    def expired(self, now: float = 0.0) -> list[int]:
        """Nodes whose lease is over and that nobody has removed yet, in order."""
        return [number for number in self._nodes if self._alive_until[number] < now]

    def remove(self, number: int, incarnation: str | None = None) -> None:
        """A node is gone for good."""
        found = self._nodes.get(number)
        if found is not None and incarnation in (None, found.incarnation):
            del self._nodes[number]
            del self._alive_until[number]
            self._notes.pop(number, None)
            self._nodes_version += 1

    def start_leases(self, now: float) -> None:
        """Every node gets a new lease: the time until now was told by another clock."""
        self._alive_until = dict.fromkeys(self._nodes, now + self._lease)

    # ---- runs ----------------------------------------------------------------------------------------------------

    def submit(self, run: str, about: bytes) -> None:
        """A new run, waiting."""
        if run in self._runs:
            raise name_is_taken(run)
        self._set(RunInfo(run, SubmittedRunState.WAITING, about))

    def runs(self) -> list[RunInfo]:
        """All runs that were not forgotten, in the order in which they were submitted."""
        return list(self._runs.values())

    def begin(self, run: str) -> bool:
        """A waiting run becomes active; True for the one caller that made it so."""
        found = self._runs.get(run)
        if found is None or found.state is not SubmittedRunState.WAITING:
            return False
        self._set(RunInfo(run, SubmittedRunState.ACTIVE, found.about))
        return True

    def end(self, run: str, outcome: str) -> None:
        """A run has ended."""
        found = self._runs.get(run)
        if found is not None and found.state is not SubmittedRunState.ENDED:
            self._set(RunInfo(run, SubmittedRunState.ENDED, found.about, outcome))

    def forget(self, run: str) -> None:
        """A run is listed no more."""
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
    """The hosts and ports of addresses, without the names, passwords and options that they may hold.

    What is not written as it should be is not shown at all: an `@` further on may end a password that begins before.
    """
    addresses = _NEXT.split(url)
    found = []
    for number, address in enumerate(addresses):
        parts = _SERVER.fullmatch(address) or _SOCKET.fullmatch(address)
        torn = "@" not in address and any("@" in later for later in addresses[number + 1 :])
        found.append(UNSHOWN if parts is None or torn else parts["scheme"] * schemes + parts["place"])
    return ", ".join(found)
