"""Directories of clusters and agents: the access file, the record of started nodes, logs, and the agents' spools.

A cluster has the directory `~/.shoal/clusters/NAME`, or one in `SHOAL_HOME` if that is set. An agent has a spool
directory for its temporary files. This module reads and writes files; it starts no process and sends no message.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shoal.cluster.messaging.access import ACCESS_FILE, checked_name, cluster_folder
from shoal.cluster.nodes.factory import Bounds
from shoal.cluster.nodes.starters import Handle, RemoteSetup
from shoal.core.resources import Resources
from shoal.errors import InputError
from shoal.execution.files.trees import remove_quietly

MAIN = "main"
"""Name of the default group of nodes."""


class GroupRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A group of nodes of one kind: how they are started, and the nodes that exist."""

    name: str = MAIN
    kind: str = "local"
    """How nodes are started: `local`, `ssh` or `slurm`."""
    options: list[str] = []
    """Arguments for the starter: hosts, or options of the batch system."""
    agent: list[str] = []
    """Further arguments of the agents' command line."""
    labels: list[str] = []
    """Labels (`KEY=VALUE`) of all its nodes."""
    ssh: list[str] = []
    """Options for every ssh command."""
    lodgings: dict[str, RemoteSetup] = {}
    """By host, the installation there."""
    nodes: list[Handle] = []
    leaving: list[Handle] = []
    """Nodes that end when their running tasks have ended."""
    bounds: Bounds | None = None
    """Within these bounds the factory changes the number of nodes; None: it does not."""
    offers: Resources | None = None
    """Resources of one node, known once a node has joined."""
    closing: bool = False
    """The group was removed, and is dropped when the last of its nodes has ended."""

    @property
    def all_nodes(self) -> list[Handle]:
        return [*self.nodes, *self.leaving]


class ClusterRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The processes that were started for a cluster, and how."""

    head: Handle | None = None
    factory: Handle | None = None
    """The process that changes the number of nodes of all groups that have bounds."""
    groups: list[GroupRecord] = []

    @property
    def handles(self) -> list[Handle]:
        """Returns the nodes of all groups."""
        return [handle for group in self.groups for handle in group.all_nodes]

    @property
    def has_bounds(self) -> bool:
        return any(group.bounds is not None for group in self.groups)

    def group(self, name: str | None, *, even_closing: bool = False) -> GroupRecord:
        """Returns the group of this name. The name may be omitted if there is one group only. Removed groups do not
        count."""
        groups = [group for group in self.groups if even_closing or not group.closing]
        known = ", ".join(group.name for group in groups)
        if name is None and len(groups) == 1:
            return groups[0]
        if name is None and groups:
            raise InputError(f"the cluster has several groups: {known}", remedy="choose one with --group NAME")
        found = next((group for group in groups if group.name == name), None)
        if found is None:
            which = "no group of nodes" if name is None else f"no group {name!r}"
            raise InputError(f"the cluster has {which}", remedy=f"it has: {known}" if known else "add one")
        return found


class ClusterHome:
    """The directory of one cluster."""

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
        """Holds a lock: no other command, and not the factory, changes the record meanwhile."""
        self.make()
        descriptor = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read_started(self) -> ClusterRecord:
        """Reads the record; it is empty if there is no such cluster."""
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
        """Versions before groups wrote another format; such a record is accepted only if it is empty."""
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
    """The fields that identify the record of an earlier version, which had one kind of nodes."""

    kind: str
    head: dict[str, object] | None = None
    nodes: list[dict[str, object]] = []


PREFIX = "shoal-agent-"
"""Prefix of directories that are made for one agent and removed with it."""
MARK = "shoal-spool"
"""Marks a directory that Shoal has made. A directory without it is never removed, not even an empty one whose agent was
killed before it wrote the mark."""
LOCK = os.path.join("depot", "cache", "lock")
YOUNG_SECONDS = 60.0
"""Seconds within which an agent that starts creates its lock; it takes the lock at once."""
_AT_ONCE = 1.0


def make_spool() -> str:
    """Creates a directory for one agent."""
    path = tempfile.mkdtemp(prefix=PREFIX)
    os.close(os.open(os.path.join(path, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return path


def give_spool(path: str) -> None:
    """Creates the directory that the user chose for an agent, if it does not exist. It is never removed: an existing
    mark is deleted."""
    if os.path.basename(path).startswith(PREFIX) and _is_ours(path):
        os.unlink(os.path.join(path, MARK))
    os.makedirs(path, mode=0o700, exist_ok=True)


def remove_spool(path: str) -> None:
    """Removes the directory of an agent that ends; a directory that the user chose stays."""
    if os.path.basename(path).startswith(PREFIX) and _is_ours(path):
        remove_quietly(path)


def remove_dead() -> list[str]:
    """Removes directories of this user's agents that no longer run, and returns them."""
    removed = []
    folder = tempfile.gettempdir()
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        try:
            if not entry.name.startswith(PREFIX) or not _is_ours(entry.path):
                continue
            if _is_used(entry.path, time.time() - entry.stat(follow_symlinks=False).st_ctime):
                continue
        except OSError:
            continue  # another process is removing it
        remove_quietly(entry.path)
        removed.append(entry.path)
    return removed


def _is_ours(path: str) -> bool:
    """Whether this user's Shoal made the directory: directory and mark belong to the user, and neither is a link."""
    try:
        folder, mark = os.lstat(path), os.lstat(os.path.join(path, MARK))
    except OSError:
        return False
    is_made = stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(mark.st_mode)
    return is_made and folder.st_uid == mark.st_uid == os.geteuid()


def _is_used(path: str, age: float) -> bool:
    """Whether an agent uses the directory, or may be about to."""
    try:
        descriptor = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return age < YOUNG_SECONDS
    try:
        if time.time() - os.fstat(descriptor).st_ctime < _AT_ONCE:
            return True
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
