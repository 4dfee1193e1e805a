"""The run-time system: agents on machines, and their resources with a steward.

`bootstrap` starts agents, `add` makes resources of one known to the steward, `host_to_resource` tells which are where.
An agent that is no longer there is found by `look`, and what it had is taken from the steward; whoever held something
of it is told. Starting and ending processes is left to `shoal.cluster`, using the resources to
`shoal.cluster.job_servers.job_server`.
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
from shoal.cluster.nodes.groups import let_go, standings_of, starter_of, told
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
    """How agents are started: the kind of a group of nodes, and what such a group is told."""

    kind: str = "local"
    """`local`, `ssh` or `slurm`."""
    options: tuple[str, ...] = ()
    """Of the batch system."""
    agent: tuple[str, ...] = ()
    """Further words of the agents' command line, such as `--cores=2`."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE` each, for all these agents."""
    ssh: tuple[str, ...] = ()
    """Options for every ssh."""


def start_agents(
    home: ClusterHome, hosts: int | Sequence[str], how: Strategy, *, store: str | None, say: Say
) -> tuple[list[str], bool]:
    """The ids of agents that were started, and whether the cluster was started with them."""
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
    """What is to be started, and how many."""
    if how.kind not in KINDS:
        raise InputError(f"there is no strategy {how.kind!r}", remedy=f"use one of {', '.join(KINDS)}")
    group = GroupRecord(name, how.kind, list(how.options), list(how.agent), list(how.labels), list(how.ssh))
    count = hosts if isinstance(hosts, int) else len(hosts)
    if count < 1:
        raise InputError("no agent is to be started", remedy="give at least one host")
    if how.kind == "ssh":
        if isinstance(hosts, int):
            raise InputError("agents are started by ssh on hosts with names", remedy="give a list of hosts")
        group.options = list(hosts)
        count = sum(host.slots for host in parse_hosts("\n".join(hosts)))
    if how.kind == "local":
        group.agent += shares_of_machine(group.agent, count)
    return group, count


def _own_address(group: GroupRecord) -> str:
    """Where the head listens, so that these agents reach it; a batch system tells nothing of its hosts before."""
    if group.kind == "local":
        return LOOPBACK
    if group.kind == "slurm":
        return own_address_for_hosts([])
    return own_address_for_hosts(real_names(Ssh(group.ssh), parse_hosts("\n".join(group.options))))


def _check_reachable(home: ClusterHome, group: GroupRecord) -> None:
    """Agents elsewhere cannot join a head that listens only on this machine."""
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
    """The agents of one cluster, and a steward for their resources. May be used from several threads."""

    def __init__(
        self,
        cluster: str,
        steward: ResourceManager | None = None,
        *,
        store: str | None = None,
        say: Say | None = None,
    ) -> None:
        """`cluster` is the name of one that runs, or of one that the first `bootstrap` starts.

        `say` is told what a person would want to know of starting agents, such as a host that cannot be reached.
        """
        self.home = ClusterHome(cluster)
        self.steward = steward or ResourceManager()
        self.lock = threading.RLock()
        """Whoever uses the steward holds it."""
        self._store = store
        self._say = say or _silent
        self._is_ours = False
        self._nodes: dict[str, NodeInfo | None] = {}
        """By id; None as long as an agent has not been seen."""
        self._machines: dict[str, str] = {}
        """The node of each machine that the steward knows."""
        self._hearing: dict[str, Hear] = {}

    # ---- agents ----------------------------------------------------------------------------------------------------

    def bootstrap(self, hosts: int | Sequence[str], strategy: str | Strategy = "local") -> list[str]:
        """Starts an agent on each of these hosts, or so many wherever they find room; returns their ids.

        A `local` agent runs on this machine, whatever the name of its host. For `ssh` a host is `NAME` or `NAME COUNT`.
        """
        how = Strategy(strategy) if isinstance(strategy, str) else strategy
        found, is_new = start_agents(self.home, hosts, how, store=self._store, say=self._say)
        with self.lock:
            self._is_ours = self._is_ours or is_new
            self._nodes |= dict.fromkeys(found)
        return found

    def adopt(self) -> list[str]:
        """Takes in the agents that run already, whoever has started them; returns their ids."""
        found = [name for name in self._present() if name not in self._nodes]
        with self.lock:
            self._nodes |= dict.fromkeys(found)
        return found

    def teardown(self, ids: Sequence[str]) -> list[str]:
        """Ends agents when they have done what they have begun; returns those that were torn down."""
        for node in ids:
            self._known(node)
            self.remove(node)
        with self.home.locked():
            started = self.home.read_started()
            for group in started.groups:
                going = [handle for handle in group.nodes if handle.name in ids]
                if going:
                    group.leaving += let_go(self.access, starter_of(self.home, group), going)
                    group.nodes = [handle for handle in group.nodes if handle not in going]
            self.home.write_started(started)
        with self.lock:
            for node in ids:
                self._nodes.pop(node, None)
        return list(ids)

    @property
    def nodes(self) -> list[str]:
        """The ids of the agents, in the order in which they were started."""
        with self.lock:
            return list(self._nodes)

    def close(self) -> None:
        """Ends the cluster, if it was started here."""
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
        """By which the agents reach this program."""
        return own_address_for(self.access.contacts)

    # ---- resources -------------------------------------------------------------------------------------------------

    def add(self, node: str, part: MachinePart | None = None) -> dict[str, str]:
        """Makes resources of an agent known: those that it offers, or a described part of a machine.

        Returns the address of the agent for each resource. Waits for an agent that has not joined yet. An agent does
        not tell which processors and GPUs it offers, so nothing is pinned there, and no GPU is named to tasks, unless
        its parts are described or discovered.
        """
        info = self._joined(node)
        planted = part or part_of(node, info)
        with self.lock:
            self._tell(self.steward.add(planted))
            self._machines[planted.name] = node
            return dict.fromkeys(self._resources_of(planted.name), info.address)

    def discover(self, node: str) -> MachinePart:
        """What the machine of an agent is made of, as the agent finds it; for agents that have a machine to themselves.

        Several agents on one machine would each take its processors for their own.
        """
        info = self._joined(node)
        with Executor(cluster=self.home.access) as executor:
            there = executor.with_options(requires=f"node={node}", cores=0)
            found: MachinePart = there.submit(this_machine, name=node, labels=labels_as_text(info.labels)).result()
        return found

    def remove(self, node: str, part: str | None = None) -> list[str]:
        """Takes away the resource of this path, or all of an agent; returns what is no longer there."""
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
        """By name of host, as the memory layer calls it, the resources that are there."""
        with self.lock:
            found: dict[str, list[str]] = {}
            for machine, node in self._machines.items():
                info = self._nodes.get(node)
                if info is not None:
                    found.setdefault(info.name, []).extend(self._resources_of(machine))
            return found

    def node_of(self, machine: str) -> tuple[str, NodeInfo]:
        """The agent that a machine of the steward belongs to."""
        with self.lock:
            node = self._machines.get(machine)
            info = self._nodes.get(node) if node is not None else None
        if node is None or info is None:
            raise InputError(f"the machine {machine!r} is not there any more")
        return node, info

    def address_of(self, machine: str) -> str:
        """The host of an agent, by which others reach it."""
        return host_of(self.node_of(machine)[1].address)

    def hear(self, run: str, hear: Hear | None) -> None:
        """From now on this is called with what happens to tickets of a run; None: nobody is."""
        with self.lock:
            if hear is None:
                self._hearing.pop(run, None)
            else:
                self._hearing[run] = hear

    def tell(self, happenings: Sequence[Happening]) -> None:
        """Passes on what a steward told somebody else."""
        with self.lock:
            self._tell(happenings)

    def look(self) -> list[str]:
        """Takes away what agents had that are no longer there; returns their ids."""
        gone = self._ended_here()
        try:
            present = self._present()
            gone += [node for node, info in list(self._nodes.items()) if info is not None and node not in present]
        except InputError:
            pass  # nobody answers: nothing may be concluded from that
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
        """The agents that are there, by the names that they were started under."""
        with Caller(self.access, make_codec()) as caller:
            nodes = told(caller).nodes
        return {info.labels["node"]: info for info in nodes.values() if "node" in info.labels}

    def _ended_here(self) -> list[str]:
        """Agents on this machine whose process has ended; the others are missed when their lease is over."""
        groups = [group for group in self.home.read_started().groups if group.kind == "local"]
        standings, _ = standings_of(self.home, groups)
        return [handle.name for handle, standing in standings.items() if standing.phase is NodePhase.ENDED]

    def _known(self, node: str) -> None:
        if node not in self._nodes:
            raise InputError(f"there is no agent {node!r} here", remedy="bootstrap tells the ids of those it started")

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
    """What an agent offers, as a machine with one socket.

    An agent tells how many processors and GPUs it offers, not which: they have no numbers here.
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
    """What the cluster commands say to a person at a terminal."""
