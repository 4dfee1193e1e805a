"""Where clusters are kept: a folder each, with the access file, what was started, logs, and the head's books.

The folder is `~/.shoal/clusters/NAME`, or in `SHOAL_HOME` if that is set. Nothing here starts or asks anything.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shoal.cluster.factory import Bounds
from shoal.cluster.starters import Handle, Lodging
from shoal.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


class Started(msgspec.Struct):
    """What has been started for a cluster, and how."""

    head: Handle | None = None
    nodes: list[Handle] = []
    leaving: list[Handle] = []
    """Nodes that were asked to end when they have done what they have begun."""
    kind: str = "local"
    """How nodes are started: `local`, `ssh` or `slurm`."""
    options: list[str] = []
    """For that: hosts, or options of the batch system."""
    agent: list[str] = []
    """Further words of the agents' command line."""
    ssh: list[str] = []
    """Options for every ssh."""
    lodgings: dict[str, Lodging] = {}
    """By host, what was brought there."""
    factory: Handle | None = None
    bounds: Bounds | None = None
    """The process that changes the number of nodes, and within which bounds."""


class ClusterHome:
    """The folder of one cluster."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{name!r} cannot be the name of a cluster", remedy="use letters, digits, dots, dashes and underscores"
            )
        base = os.environ.get("SHOAL_HOME") or os.path.join(os.path.expanduser("~"), ".shoal")
        self.name = name
        self.folder = os.path.join(base, "clusters", name)
        self.access = os.path.join(self.folder, "access.json")
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

    def read_started(self) -> Started:
        """What was started; nothing if there is no such cluster."""
        try:
            with open(self.started, "rb") as file:
                return msgspec.json.decode(file.read(), type=Started)
        except FileNotFoundError:
            return Started()
        except msgspec.MsgspecError:
            raise InputError("the list of what was started is damaged", file=self.started) from None

    def write_started(self, started: Started) -> None:
        fresh = f"{self.started}.new"
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(started))
        os.replace(fresh, self.started)


def access_path(name_or_path: str) -> str:
    """The access file of a cluster: by its name, or by the path of a file that somebody gave us."""
    if os.sep in name_or_path or name_or_path.endswith(".json"):
        return name_or_path
    path = ClusterHome(name_or_path).access
    if not os.path.exists(path):
        raise InputError(
            f"there is no cluster {name_or_path!r} here",
            remedy=f"start it with 'shoal cluster start {name_or_path} --local 2', or give the path of an access file",
        )
    return path
