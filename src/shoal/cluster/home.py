"""Where clusters are kept: a folder each, with the access file, what was started, logs, and the head's books.

The folder is `~/.shoal/clusters/NAME`, or in `SHOAL_HOME` if that is set. Nothing here starts or asks anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shoal.cluster.messaging.access import ACCESS_FILE, checked_name, cluster_folder
from shoal.cluster.nodes.factory import Bounds
from shoal.cluster.nodes.starters import Handle, RemoteSetup
from shoal.core.resources import Resources
from shoal.errors import InputError

MAIN = "main"
"""The group of those who name none."""


class GroupRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Nodes of one kind: how they are started, and which there are."""

    name: str = MAIN
    kind: str = "local"
    """How nodes are started: `local`, `ssh` or `slurm`."""
    options: list[str] = []
    """For that: hosts, or options of the batch system."""
    agent: list[str] = []
    """Further words of the agents' command line."""
    labels: list[str] = []
    """`KEY=VALUE` each, for all its nodes."""
    ssh: list[str] = []
    """Options for every ssh."""
    lodgings: dict[str, RemoteSetup] = {}
    """By host, what was brought there."""
    nodes: list[Handle] = []
    leaving: list[Handle] = []
    """Nodes that were asked to end when they have done what they have begun."""
    bounds: Bounds | None = None
    """Within which the factory changes the number of nodes; None: it does not."""
    offers: Resources | None = None
    """What its nodes offer, as far as one has been seen."""
    closing: bool = False
    """It was removed, and is forgotten when the last of its nodes has ended."""

    @property
    def everybody(self) -> list[Handle]:
        return [*self.nodes, *self.leaving]


class ClusterRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What has been started for a cluster, and how."""

    head: Handle | None = None
    factory: Handle | None = None
    """The process that changes the number of nodes, of all groups that have bounds."""
    groups: list[GroupRecord] = []

    @property
    def handles(self) -> list[Handle]:
        """The nodes of all groups."""
        return [handle for group in self.groups for handle in group.everybody]

    @property
    def has_bounds(self) -> bool:
        return any(group.bounds is not None for group in self.groups)

    def group(self, name: str | None, *, even_closing: bool = False) -> GroupRecord:
        """The group of a name; who has only one need not name it. Those that were removed are none any more."""
        groups = [group for group in self.groups if even_closing or not group.closing]
        known = ", ".join(group.name for group in groups)
        if name is None and len(groups) == 1:
            return groups[0]
        if name is None and groups:
            raise InputError(f"the cluster has several groups: {known}", remedy="say which one with --group NAME")
        found = next((group for group in groups if group.name == name), None)
        if found is None:
            which = "no group of nodes" if name is None else f"no group {name!r}"
            raise InputError(f"the cluster has {which}", remedy=f"it has: {known}" if known else "add one")
        return found


class ClusterHome:
    """The folder of one cluster."""

    def __init__(self, name: str) -> None:
        self.name = checked_name(name, "a cluster")
        self.folder = cluster_folder(name)
        self.access = os.path.join(self.folder, ACCESS_FILE)
        self.store = os.path.join(self.folder, "store")
        self.logs = os.path.join(self.folder, "logs")
        self.started = os.path.join(self.folder, "started.json")

    def make(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While this lasts nobody else changes what is started: neither another command nor the factory."""
        self.make()
        descriptor = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read_started(self) -> ClusterRecord:
        """What was started; nothing if there is no such cluster."""
        try:
            with open(self.started, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return ClusterRecord()
        try:
            return msgspec.json.decode(data, type=ClusterRecord)
        except msgspec.MsgspecError:
            return self._read_earlier(data)

    def _read_earlier(self, data: bytes) -> ClusterRecord:
        """Earlier versions knew no groups; their list counts only if nothing is in it."""
        try:
            earlier = msgspec.json.decode(data, type=_Earlier)
        except msgspec.MsgspecError:
            raise InputError("the list of what was started is damaged", file=self.started) from None
        if earlier.head is None and not earlier.nodes:
            return ClusterRecord()
        raise InputError(
            f"the cluster {self.name!r} was started by an earlier version of Shoal",
            file=self.started,
            remedy="end it with that version, or end its processes by hand and remove this file",
        )

    def write_started(self, started: ClusterRecord) -> None:
        fresh = f"{self.started}.new"
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(started))
        os.replace(fresh, self.started)


class _Earlier(msgspec.Struct):
    """What tells the list of an earlier version: it had one kind of nodes."""

    kind: str
    head: dict[str, object] | None = None
    nodes: list[dict[str, object]] = []
