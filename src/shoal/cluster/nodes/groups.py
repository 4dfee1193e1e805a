"""Groups of nodes: their starter, the state of their nodes, and draining or ending them.

All nodes of one batch system are queried with one request, whatever group they belong to. `shoal.cluster.lifecycle`
(user commands) and the factories decide which nodes are started and ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from shoal.cluster.agent.messages import (
    ClusterReply,
    ClusterRequest,
    RefusedReply,
    StopCommand,
    WireMessage,
    make_codec,
)
from shoal.cluster.home import MAIN, ClusterHome, ClusterRecord, GroupRecord
from shoal.cluster.messaging.access import Access
from shoal.cluster.messaging.caller import Caller
from shoal.cluster.nodes.demand import GROUP
from shoal.cluster.nodes.local import LocalStarter
from shoal.cluster.nodes.starters import Handle, NodePhase, NodeStatus, NotAnsweringError, Starter
from shoal.errors import InputError


def agent_command(home: ClusterHome, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "shoal", "agent", "--access", home.access, *words]


def agent_words(group: GroupRecord) -> list[str]:
    """Returns the arguments for the agents of a group, besides the access file."""
    return [*group.agent, *(f"--label={label}" for label in group.labels), f"--label={GROUP}={group.name}"]


def starter_of(home: ClusterHome, group: GroupRecord) -> Starter:
    """Returns the starter for the nodes of this group."""
    command = agent_command(home, *agent_words(group))
    if group.kind == "ssh":
        from shoal.cluster.nodes.ssh import Ssh, SshStarter, parse_hosts

        hosts = parse_hosts("\n".join(group.options))
        usable = [host for host in hosts if host.name in group.lodgings]
        return SshStarter(usable, command, home.logs, ssh=Ssh(group.ssh), lodgings=group.lodgings)
    if group.kind == "slurm":
        from shoal.cluster.nodes.slurm import SlurmStarter

        name = f"shoal-{home.name}" if group.name == MAIN else f"shoal-{home.name}-{group.name}"
        return SlurmStarter(command, home.logs, group.options, job_name=name)
    return LocalStarter(command, home.logs)


def standings_of(
    home: ClusterHome, groups: Sequence[GroupRecord], wanted: Mapping[str, Sequence[Handle]] | None = None
) -> tuple[dict[Handle, NodeStatus], dict[str, str]]:
    """Returns the status of nodes, and by group a message if its starter does not reply.

    `wanted`: by group, the nodes to ask for; without it, all nodes.
    """
    together: dict[str, list[GroupRecord]] = {}
    for group in groups:
        # One request to Slurm covers all groups; every group with ssh has options and hosts of its own.
        together.setdefault(group.kind if group.kind != "ssh" else f"ssh {group.name}", []).append(group)
    standings: dict[Handle, NodeStatus] = {}
    silent: dict[str, str] = {}
    for some in together.values():
        handles = [each for group in some for each in (group.all_nodes if wanted is None else wanted[group.name])]
        if not handles:
            continue
        try:
            standings |= starter_of(home, some[0]).poll(handles)
        except NotAnsweringError as error:
            silent |= {group.name: str(error) for group in some}
    return standings, silent


def are_gone(standings: Mapping[Handle, NodeStatus], handles: Iterable[Handle]) -> bool:
    """Whether all of these nodes are known to have ended."""
    return all(handle in standings and standings[handle].phase is NodePhase.ENDED for handle in handles)


def drop_ended(group: GroupRecord, standings: Mapping[Handle, NodeStatus]) -> None:
    """Drops the nodes of a group that have ended, and marks those that are ending as leaving."""
    ending = [each for each in group.nodes if each in standings and standings[each].is_ending]
    group.nodes = [each for each in group.nodes if each not in ending and not are_gone(standings, [each])]
    group.leaving = [each for each in group.leaving if not are_gone(standings, [each])] + ending


def forget_closed(started: ClusterRecord) -> None:
    """Drops removed groups whose nodes have ended."""
    for group in started.groups:
        if group.closing and not group.all_nodes:
            clean_hosts(group)
    started.groups = [group for group in started.groups if group.all_nodes or not group.closing]


def clean_hosts(group: GroupRecord) -> None:
    """Deletes the files that were copied to the hosts of a group."""
    if group.lodgings:
        from shoal.cluster.nodes.remote_setup import clear_hosts
        from shoal.cluster.nodes.ssh import Ssh

        clear_hosts(Ssh(group.ssh), group.lodgings)


def read_cluster(caller: Caller[WireMessage], timeout: float = 30.0) -> ClusterReply:
    """Returns the nodes and runs of a cluster."""
    answer = caller.ask(ClusterRequest(), timeout)
    if isinstance(answer, RefusedReply):
        raise InputError(f"the cluster refuses: {answer.why}")
    assert isinstance(answer, ClusterReply)
    return answer


def drain_nodes(access: Access, starter: Starter, handles: Sequence[Handle]) -> list[Handle]:
    """Asks nodes to end when their running tasks have ended; nodes whose agent has not joined are ended at once."""
    try:
        with Caller(access, make_codec()) as caller:
            nodes = read_cluster(caller).nodes
    except InputError:
        nodes = {}
    address_of = {node.labels.get("node", ""): node.address for node in nodes.values()}
    leaving: list[Handle] = []
    unreachable: list[Handle] = []
    for handle in handles:
        address = address_of.get(handle.name)
        heard = address is not None and ask_to_end(access, address, at_once=False)
        (leaving if heard else unreachable).append(handle)
    if unreachable:
        starter.stop(unreachable)
    return leaving


def ask_to_end(access: Access, address: str, *, at_once: bool) -> bool:
    """Asks one agent to end; returns whether it has received the request. With `at_once` the wait is short, since the
    starter then ends the node. Otherwise the agent may be busy with tasks, and gets more time to reply."""
    patience, answer = (2.0, 5.0) if at_once else (10.0, 20.0)
    try:
        with Caller(access.at([address]), make_codec(), patience=patience) as caller:
            return not isinstance(caller.ask(StopCommand(at_once), answer), RefusedReply)
    except InputError:
        return False
