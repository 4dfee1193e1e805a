"""What a modelled cluster consists of: in bytes, bytes per second and seconds; an infinite rate costs nothing."""

from __future__ import annotations

from math import inf

import msgspec

from shoal.core.resources import FRACTION, Resources, carrying
from shoal.errors import InputError

GIGABIT = 125e6
"""Bytes per second."""


class NodeSpec(msgspec.Struct, frozen=True):
    """One kind of node."""

    cores: int = 2
    memory: int = 0
    disk: int = 0
    """0: as much as is needed. A node whose disk is full starts nothing more."""
    named: tuple[tuple[str, int], ...] = ()
    """Further resources, as in `Resources.amounts`."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE` each, for tasks that require or prefer them."""
    speed: float = 1.0
    link: float = 10 * GIGABIT
    """Of its network link, in each direction."""
    disk_rate: float = inf
    """Of its disk, for what is not in the page cache."""
    page_cache: int = 0
    """Bytes of files that are read without the disk, those used last; 0: no limit."""
    dirty: int = 0
    """Bytes that may wait in memory until the disk has written them; 0: whoever writes waits for the disk."""
    cache: int = 0
    """Bytes of other nodes' files that it keeps; 0: no limit; negative: it keeps none."""
    spool: int = 0
    """Bytes of its disk for what its tasks read and have made; 0: as much as is needed."""
    contention: tuple[float, ...] = ()
    """By how much computing takes longer with 1, 2, ... tasks on the node; the last one holds for more."""

    def resources(self) -> Resources:
        amounts = {"cores": self.cores * FRACTION, **dict(self.named)}
        if self.memory:
            amounts["memory"] = self.memory
        if self.spool:
            amounts["disk"] = self.spool
        return carrying(Resources.of(amounts), self.labels)


class ClusterSpec(msgspec.Struct, frozen=True):
    """All nodes, and what is between them."""

    nodes: int = 1
    node: NodeSpec = NodeSpec()
    others: tuple[tuple[int, NodeSpec], ...] = ()
    """So many of the nodes are of another kind; they have the highest numbers."""
    latency: float = 0.0002
    """Of a message."""
    store_latency: float = 0.0
    """Until the store has answered; 0: it is asked without waiting, as in a run on one node."""
    shared_files: bool = False
    """All nodes see all files, on a shared file system."""
    shared_rate: float = inf
    """Of the shared file system, for all nodes together; source files come from there unless a node has them."""
    overhead: float = 0.0
    """Seconds a core spends on each task beside it."""

    def check(self) -> ClusterSpec:
        if self.nodes < 1:
            raise InputError(f"a cluster needs at least one node, not {self.nodes}", remedy="say --nodes 1 or more")
        for kind in [self.node, *(kind for _, kind in self.others)]:
            if kind.cores < 1:
                raise InputError(f"a node needs at least one core, not {kind.cores}", remedy="say --cores 1 or more")
            if kind.speed <= 0 or kind.link <= 0 or kind.disk_rate <= 0:
                raise InputError("speeds and rates of a node must be larger than zero")
        return self

    def kind(self, node: int) -> NodeSpec:
        last = self.nodes
        for count, kind in reversed(self.others):
            if node >= last - count:
                return kind
            last -= count
        return self.node

    def cores(self) -> int:
        return sum(self.kind(node).cores for node in range(self.nodes))
