"""Specification of a simulated cluster: nodes, links and storage, in bytes, bytes per second and seconds; with an
infinite rate, transfers take no time."""

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
    """0: unlimited. A node with a full disk starts no further tasks."""
    named: tuple[tuple[str, int], ...] = ()
    """Further resources, as in `Resources.amounts`."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE` each, for tasks that require or prefer them."""
    speed: float = 1.0
    link: float = 10 * GIGABIT
    """Rate of its network link, in each direction."""
    disk_rate: float = inf
    """Rate of its disk, for files that are not in the page cache."""
    page_cache: int = 0
    """Size of the page cache in bytes; the least recently used files are evicted. 0: no limit."""
    dirty: int = 0
    """Maximum bytes in memory that wait to be written to disk; 0: writers wait for the disk."""
    cache: int = 0
    """Maximum bytes of copies from other nodes that it keeps; 0: no limit; negative: it keeps none."""
    spool: int = 0
    """Bytes of disk for inputs and outputs of tasks; 0: unlimited."""
    contention: tuple[float, ...] = ()
    """Slowdown of computation with 1, 2, ... tasks on the node; the last value applies to more tasks."""

    def resources(self) -> Resources:
        amounts = {"cores": self.cores * FRACTION, **dict(self.named)}
        if self.memory:
            amounts["memory"] = self.memory
        if self.spool:
            amounts["disk"] = self.spool
        return carrying(Resources.of(amounts), self.labels)


class ClusterSpec(msgspec.Struct, frozen=True):
    """All nodes of a cluster, and their connections."""

    nodes: int = 1
    node: NodeSpec = NodeSpec()
    others: tuple[tuple[int, NodeSpec], ...] = ()
    """Numbers of nodes of other kinds; they have the highest node numbers."""
    latency: float = 0.0002
    """Latency of a message."""
    store_latency: float = 0.0
    """Latency of the store's replies; 0: the store replies immediately, as in a run on one node."""
    shared_files: bool = False
    """All nodes have access to all files, on a shared file system."""
    shared_rate: float = inf
    """Total rate of the shared file system. Source files come from it unless a node has them."""
    overhead: float = 0.0
    """Overhead of a core per task, in seconds."""

    def check(self) -> ClusterSpec:
        if self.nodes < 1:
            raise InputError(f"a cluster needs at least one node, not {self.nodes}", remedy="use --nodes 1 or more")
        for kind in [self.node, *(kind for _, kind in self.others)]:
            if kind.cores < 1:
                raise InputError(f"a node needs at least one core, not {kind.cores}", remedy="use --cores 1 or more")
            if kind.speed <= 0 or kind.link <= 0 or kind.disk_rate <= 0:
                raise InputError("speeds and rates of a node must be greater than 0")
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
