"""Starting agents for a run-time system: a strategy and hosts become one more group of nodes of a cluster.

The first group brings the cluster itself, with its head on this machine. The processes are started by `shoal.cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.cluster import manage
from shoal.cluster.addresses import LOOPBACK, host_of, is_loopback, own_address_for_hosts
from shoal.cluster.home import MAIN, ClusterHome, Group
from shoal.cluster.lodging import real_names
from shoal.cluster.machine import shares_of_machine
from shoal.cluster.ssh import Ssh, parse_hosts
from shoal.errors import InputError
from shoal.wire.access import read

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
        manage.start(home, count, group, None, store=store, host=_own_address(group), say=say)
    else:
        _check_reachable(home, group)
        manage.add(home, count, group, None, say)
    return [handle.name for handle in home.read_started().group(name).nodes], is_new


def _group(name: str, hosts: int | Sequence[str], how: Strategy) -> tuple[Group, int]:
    """What is to be started, and how many."""
    if how.kind not in KINDS:
        raise InputError(f"there is no strategy {how.kind!r}", remedy=f"use one of {', '.join(KINDS)}")
    group = Group(name, how.kind, list(how.options), list(how.agent), list(how.labels), list(how.ssh))
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


def _own_address(group: Group) -> str:
    """Where the head listens, so that these agents reach it; a batch system tells nothing of its hosts before."""
    if group.kind == "local":
        return LOOPBACK
    if group.kind == "slurm":
        return own_address_for_hosts([])
    return own_address_for_hosts(real_names(Ssh(group.ssh), parse_hosts("\n".join(group.options))))


def _check_reachable(home: ClusterHome, group: Group) -> None:
    """Agents elsewhere cannot join a head that listens only on this machine."""
    contacts = read(home.access).contacts
    if group.kind == "local" or not contacts or not is_loopback(host_of(contacts[0])):
        return
    if not is_loopback(_own_address(group)):
        raise InputError(
            f"the head of {home.name!r} can be reached only from this machine",
            remedy="bootstrap the agents of other machines first",
        )
