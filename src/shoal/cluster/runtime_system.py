"""The runtime system: agents on machines, and a resource manager that knows the resources of these machines.

`bootstrap` starts agents, `add` registers the resources of an agent with the resource manager, `host_to_resource` lists
them by host. `look` detects lost agents, removes their resources from the manager, and notifies the holders of those
resources. `shoal.cluster` starts and ends the processes, `shoal.cluster.job_server` uses the resources.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from shoal.cluster import lifecycle
from shoal.cluster.agent.messages import make_codec
from shoal.cluster.home import MAIN, ClusterHome, GroupRecord
from shoal.cluster.messaging.access import Access, read
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.groups import drain_nodes, read_cluster, standings_of, starter_of
from shoal.cluster.nodes.machine import (
    LOOPBACK,
    host_of,
    is_loopback,
    own_address_for,
    own_address_for_hosts,
    shares_of_machine,
)
from shoal.cluster.nodes.remote_setup import real_names
from shoal.cluster.nodes.ssh import Ssh, parse_hosts
from shoal.cluster.nodes.starters import NodePhase
from shoal.core.resources import FRACTION, labels_as_text
from shoal.core.store.directory import NodeInfo
from shoal.errors import InputError, RunError
from shoal.execution.executor.executor import Executor
from shoal.execution.processes.topology import this_machine
from shoal.resources.machine import CORE, GPU, NODE, SOCKET, MachinePart
from shoal.resources.manager import ResourceManager
from shoal.resources.tickets import Happening

KINDS = ("local", "ssh", "slurm")

Say = Callable[[str], None]


class Strategy(msgspec.Struct, frozen=True):
    """How agents are started: the kind of a group of nodes, and its settings."""

    kind: str = "local"
    """`local`, `ssh` or `slurm`."""
    options: tuple[str, ...] = ()
    """Options of the batch system."""
    agent: tuple[str, ...] = ()
    """Further arguments of the agents, such as `--cores=2`."""
    labels: tuple[str, ...] = ()
    """Labels (`KEY=VALUE`) of all these agents."""
    ssh: tuple[str, ...] = ()
    """Options for every ssh command."""


def start_agents(
    home: ClusterHome, hosts: int | Sequence[str], how: Strategy, *, store: str | None, say: Say
) -> tuple[list[str], bool]:
    """Starts agents; returns their ids, and whether the cluster was started with them."""
    started = home.read_started()
    names = [group.name for group in started.groups]
    name = MAIN if not names else next(f"rts{at}" for at in range(1, len(names) + 2) if f"rts{at}" not in names)
    group, count = _group(name, hosts, how)
    is_new = started.head is None
    if is_new:
        lifecycle.start(home, count, group, None, store=store, host=_own_address(group), say=say)
    else:
        _check_reachable(home, group)
        lifecycle.add(home, count, group, None, say)
    return [handle.name for handle in home.read_started().group(name).nodes], is_new


def _group(name: str, hosts: int | Sequence[str], how: Strategy) -> tuple[GroupRecord, int]:
    """Returns the group to start, and the number of its nodes."""
    if how.kind not in KINDS:
        raise InputError(f"unknown strategy {how.kind!r}", remedy=f"use one of {', '.join(KINDS)}")
    group = GroupRecord(name, how.kind, list(how.options), list(how.agent), list(how.labels), list(how.ssh))
    count = hosts if isinstance(hosts, int) else len(hosts)
    if count < 1:
        raise InputError("no agent to start", remedy="give at least one host")
    if how.kind == "ssh":
        if isinstance(hosts, int):
            raise InputError("agents are started by ssh on hosts with names", remedy="give a list of hosts")
        group.options = list(hosts)
        count = sum(host.slots for host in parse_hosts("\n".join(hosts)))
    if how.kind == "local":
        group.agent += shares_of_machine(group.agent, count)
    return group, count


def _own_address(group: GroupRecord) -> str:
    """Returns the address where the head listens, so that these agents reach it; a batch system does not name its hosts
    in advance."""
    if group.kind == "local":
        return LOOPBACK
    if group.kind == "slurm":
        return own_address_for_hosts([])
    return own_address_for_hosts(real_names(Ssh(group.ssh), parse_hosts("\n".join(group.options))))


def _check_reachable(home: ClusterHome, group: GroupRecord) -> None:
    """Rejects agents on other machines if the head listens on this machine only."""
    contacts = read(home.access).contacts
    if group.kind == "local" or not contacts or not is_loopback(host_of(contacts[0])):
        return
    if not is_loopback(_own_address(group)):
        raise InputError(
            f"the head of {home.name!r} can be reached only from this machine",
            remedy="bootstrap the agents of other machines first",
        )


JOIN_SECONDS = 60.0
_PAUSE = 0.05

Hear = Callable[[Sequence[Happening]], None]


class RuntimeSystem:
    """The agents of one cluster, and a resource manager for their resources. Thread-safe."""

    def __init__(
        self,
        cluster: str,
        steward: ResourceManager | None = None,
        *,
        store: str | None = None,
        say: Say | None = None,
    ) -> None:
        """`cluster` is the name of a running cluster, or of one that the first `bootstrap` starts.

        `say` gets messages about starting agents, such as an unreachable host.
        """
        self.home = ClusterHome(cluster)
        self.steward = steward or ResourceManager()
        self.lock = threading.RLock()
        """Protects the resource manager."""
        self._store = store
        self._say = say or _silent
        self._is_ours = False
        self._nodes: dict[str, NodeInfo | None] = {}
        """By id; None as long as an agent has not joined."""
        self._machines: dict[str, str] = {}
        """The node of each machine in the resource manager."""
        self._hearing: dict[str, Hear] = {}

    # ---- agents ----------------------------------------------------------------------------------------------------

    def bootstrap(self, hosts: int | Sequence[str], strategy: str | Strategy = "local") -> list[str]:
        """Starts an agent on each of these hosts, or that many agents on any host; returns their ids.

        A `local` agent runs on this machine, whatever the name of its host. For `ssh` a host is `NAME` or `NAME COUNT`.
        """
        how = Strategy(strategy) if isinstance(strategy, str) else strategy
        found, is_new = start_agents(self.home, hosts, how, store=self._store, say=self._say)
        with self.lock:
            self._is_ours = self._is_ours or is_new
            self._nodes |= dict.fromkeys(found)
        return found

    def adopt(self) -> list[str]:
        """Takes over agents that are already running, started by any program; returns their ids."""
        found = [name for name in self._present() if name not in self._nodes]
        with self.lock:
            self._nodes |= dict.fromkeys(found)
        return found

    def teardown(self, ids: Sequence[str]) -> list[str]:
        """Ends agents when their running calls have ended; returns those that were ended."""
        for node in ids:
            self._known(node)
            self.remove(node)
        with self.home.locked():
            started = self.home.read_started()
            for group in started.groups:
                going = [handle for handle in group.nodes if handle.name in ids]
                if going:
                    group.leaving += drain_nodes(self.access, starter_of(self.home, group), going)
                    group.nodes = [handle for handle in group.nodes if handle not in going]
            self.home.write_started(started)
        with self.lock:
            for node in ids:
                self._nodes.pop(node, None)
        return list(ids)

    @property
    def nodes(self) -> list[str]:
        """Returns the ids of the agents, in the order in which they were started."""
        with self.lock:
            return list(self._nodes)

    def close(self) -> None:
        """Stops the cluster, if it was started here."""
        if self._is_ours:
            self._is_ours = False
            lifecycle.stop(self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def access(self) -> Access:
        return read(self.home.access)

    @property
    def own_address(self) -> str:
        """The address by which the agents reach this program."""
        return own_address_for(self.access.contacts)

    # ---- resources -------------------------------------------------------------------------------------------------

    def add(self, node: str, part: MachinePart | None = None) -> dict[str, str]:
        """Registers the resources of an agent: those that it offers, or a described part of a machine.

        Returns the address of the agent for each resource. Waits for an agent that has not joined yet. An agent reports
        how many processors and GPUs it offers, but not which. So nothing is pinned there, and no GPU is named to tasks,
        unless its parts are described or discovered.
        """
        info = self._joined(node)
        planted = part or part_of(node, info)
        with self.lock:
            self._tell(self.steward.add(planted))
            self._machines[planted.name] = node
            return dict.fromkeys(self._resources_of(planted.name), info.address)

    def discover(self, node: str) -> MachinePart:
        """Returns the hardware of an agent's machine, as detected by the agent; for agents that have a machine to
        themselves.

        Several agents on one machine would each claim all of its processors.
        """
        info = self._joined(node)
        with Executor(cluster=self.home.access) as executor:
            there = executor.with_options(requires=f"node={node}", cores=0)
            found: MachinePart = there.submit(this_machine, name=node, labels=labels_as_text(info.labels)).result()
        return found

    def remove(self, node: str, part: str | None = None) -> list[str]:
        """Removes the resource with this path, or all of an agent; returns the removed resources."""
        self._known(node)
        with self.lock:
            machines = [name for name, home in self._machines.items() if home == node]
            if part is not None and part.partition("/")[0] not in machines:
                raise InputError(f"agent {node} has no resource {part!r}")
            going = machines if part is None else [part]
            before = [path for name in machines for path in self._resources_of(name)]
            self._tell(self.steward.remove(*going))
            left = [path for name in machines for path in self._resources_of(name)]
            self._machines = {name: home for name, home in self._machines.items() if self.steward.forest.find(name)}
        return [path for path in before if path not in left]

    def host_to_resource(self) -> dict[str, list[str]]:
        """Returns the resources by host name, as the memory layer calls it."""
        with self.lock:
            found: dict[str, list[str]] = {}
            for machine, node in self._machines.items():
                info = self._nodes.get(node)
                if info is not None:
                    found.setdefault(info.name, []).extend(self._resources_of(machine))
            return found

    def node_of(self, machine: str) -> tuple[str, NodeInfo]:
        """Returns the agent to which a machine of the resource manager belongs."""
        with self.lock:
            node = self._machines.get(machine)
            info = self._nodes.get(node) if node is not None else None
        if node is None or info is None:
            raise InputError(f"the machine {machine!r} no longer exists")
        return node, info

    def address_of(self, machine: str) -> str:
        """Returns the host of an agent, by which others reach it."""
        return host_of(self.node_of(machine)[1].address)

    def hear(self, run: str, hear: Hear | None) -> None:
        """Registers the listener for events on tickets of a run; None removes it."""
        with self.lock:
            if hear is None:
                self._hearing.pop(run, None)
            else:
                self._hearing[run] = hear

    def tell(self, happenings: Sequence[Happening]) -> None:
        """Forwards events of the resource manager that another caller received."""
        with self.lock:
            self._tell(happenings)

    def look(self) -> list[str]:
        """Removes the resources of lost agents; returns the agents' ids."""
        gone = self._ended_here()
        try:
            present = self._present()
            gone += [node for node, info in list(self._nodes.items()) if info is not None and node not in present]
        except InputError:
            pass  # no reply: nothing may be concluded from that
        with self.lock:
            found = [node for node in dict.fromkeys(gone) if node in self._nodes]
            for node in found:
                self.remove(node)
                del self._nodes[node]
        return found

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _tell(self, happenings: Sequence[Happening]) -> None:
        by_run: dict[str, list[Happening]] = {}
        for happening in happenings:
            by_run.setdefault(happening.run, []).append(happening)
        for run, some in by_run.items():
            hear = self._hearing.get(run)
            if hear is not None:
                hear(some)

    def _resources_of(self, machine: str) -> list[str]:
        unit = self.steward.forest.find(machine)
        return [each.path() for each in unit.walk()] if unit is not None else []

    def _present(self) -> dict[str, NodeInfo]:
        """Returns the current agents, by the names under which they were started."""
        with Caller(self.access, make_codec()) as caller:
            nodes = read_cluster(caller).nodes
        return {info.labels["node"]: info for info in nodes.values() if "node" in info.labels}

    def _ended_here(self) -> list[str]:
        """Returns agents on this machine whose process has ended; others are detected when their lease expires."""
        groups = [group for group in self.home.read_started().groups if group.kind == "local"]
        standings, _ = standings_of(self.home, groups)
        return [handle.name for handle, standing in standings.items() if standing.phase is NodePhase.ENDED]

    def _known(self, node: str) -> None:
        if node not in self._nodes:
            raise InputError(f"there is no agent {node!r} here", remedy="use an id returned by bootstrap")

    def _joined(self, node: str) -> NodeInfo:
        self._known(node)
        deadline = time.monotonic() + JOIN_SECONDS
        while (info := self._nodes[node] or self._present().get(node)) is None:
            if node in self._ended_here():
                raise RunError(f"agent {node} has ended before it joined")
            if time.monotonic() > deadline:
                raise RunError(f"agent {node} has not joined within {JOIN_SECONDS:g} s")
            time.sleep(_PAUSE)
        with self.lock:
            self._nodes[node] = info
        return info


def part_of(node: str, info: NodeInfo) -> MachinePart:
    """Returns what an agent offers, as a machine with one socket.

    An agent reports how many processors and GPUs it offers, not which: they have no numbers here.
    """
    cores = max(1, info.resources.get("cores") // FRACTION)
    gpus = info.resources.get("gpus") // FRACTION
    others = [
        MachinePart(name, f"{name}{at}")
        for name, amount in info.resources.amounts
        if name not in ("cores", "gpus", "memory", "disk")
        for at in range(amount // FRACTION)
    ]
    socket = MachinePart(SOCKET, "socket0", tuple(MachinePart(CORE, f"core{at}") for at in range(cores)))
    devices = [MachinePart(GPU, f"gpu{at}") for at in range(gpus)]
    labels = tuple(labels_as_text(info.labels))
    return MachinePart(NODE, node, (socket, *devices, *others), info.resources.get("memory"), labels)


def _silent(text: str) -> None:
    """Drops the messages that cluster commands print on a terminal."""
