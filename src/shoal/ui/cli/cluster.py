"""`shoal cluster`: starts, shows, resizes and stops a cluster of agents."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, need_cluster_libraries

if TYPE_CHECKING:
    from shoal.cluster.agent.messages import ClusterNodeFacts, ClusterReply
    from shoal.cluster.home import ClusterHome, ClusterRecord, GroupRecord
    from shoal.cluster.nodes.factory import Bounds
    from shoal.core.store.directory import NodeInfo


SUMMARY = """Starts a cluster of agents, shows it, resizes it and stops it. The access file that 'start' writes lets you
run workflows on it ('shoal run --cluster NAME'); a restricted copy of it ('access') lets others do so, or only view it.
A cluster may have several groups of nodes ('add', 'remove'), each with its own way of starting and its own size."""
USAGE = "start|add|status|scale|remove|stop|list|access|restart|factory [NAME] [N] [OPTION...]"
EXAMPLE = "shoal cluster start lab --local 2"
ACTIONS = ("start", "add", "status", "scale", "remove", "stop", "list", "access", "restart", "factory")
IDLE_SECONDS = 300.0
ROLES = ("worker", "client", "viewer")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cluster's name")
    parser.add_argument("count", metavar="N", nargs="?", help="for 'scale': the new number of nodes")
    parser.add_argument("--group", metavar="NAME", help="the group of nodes (default: the only one; for 'start': main)")
    where = parser.add_argument_group("for 'start' and 'add': where the nodes are")
    where.add_argument("--local", metavar="N", help="number of agents on this machine; they share its cores and memory")
    where.add_argument("--ssh", metavar="HOSTS", help="comma-separated hosts, or a file with lines 'host [slots]'")
    where.add_argument(
        "--ssh-option",
        metavar="OPTION",
        action="append",
        default=[],
        help="an option for every ssh command, such as -p2222",
    )
    where.add_argument(
        "--slurm", metavar="N", nargs="?", const="", help="number of Slurm jobs (default: 1, with a factory 0)"
    )
    where.add_argument("--partition", metavar="NAME", help="the Slurm partition")
    where.add_argument("--sbatch", metavar="OPTION", action="append", default=[], help="an option for sbatch")
    where.add_argument("--host", metavar="ADDRESS", help="the address at which nodes reach this machine")
    where.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="a label for all these nodes")
    where.add_argument("--agent", metavar="OPTION", action="append", default=[], help="an option for every agent")
    store = parser.add_argument_group("for 'start'")
    store.add_argument("--redis", metavar="URL", help="keep the run store in Redis or Valkey instead of at the head")
    factory = parser.add_argument_group("for 'start', 'add' and 'scale': a factory, which adapts the number of nodes")
    factory.add_argument("--min", metavar="A", help="minimum number of nodes (default: 0)")
    factory.add_argument("--max", metavar="B", help="maximum number of nodes")
    factory.add_argument("--idle", metavar="SECONDS", help="release a node after this idle time (default: 300)")
    more = parser.add_argument_group("for 'access'")
    more.add_argument("--role", choices=ROLES, default="client", help="the role that the file grants")
    more.add_argument("-o", "--output", metavar="FILE", help="where to write the restricted access file")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries(certificates=arguments.action in ("start", "restart"))  # of the head
    from shoal.cluster import lifecycle
    from shoal.cluster.home import ClusterHome

    if arguments.action == "list":
        for name in lifecycle.names():
            print(name)
        return 0
    if not arguments.name:
        raise InputError(f"'shoal cluster {arguments.action}' needs a cluster name")
    if arguments.action == "status":
        show(arguments.name)
        return 0
    if arguments.action == "access":
        _access(arguments)
        return 0
    home = ClusterHome(arguments.name)
    match arguments.action:
        case "start":
            _start(home, arguments)
        case "add":
            _add(home, arguments)
        case "scale":
            _scale(home, arguments)
        case "remove":
            if not arguments.group:
                raise InputError("'remove' needs the group to remove", remedy="name it with --group NAME")
            lifecycle.remove(home, arguments.group, print)
        case "restart":
            lifecycle.restart(home, print)
        case "factory":
            from shoal.cluster.nodes.factory_process import keep

            keep(home)
        case "stop":
            ended = lifecycle.stop(home)
            print(f"ended {ended} node{'s' * (ended != 1)} and the head of {arguments.name}")
    return 0


def _start(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import lifecycle
    from shoal.cluster.nodes.machine import LOOPBACK, checked_host, own_address_for_hosts

    group, bounds, count = _group(arguments, beside=0)
    if arguments.host:
        host = checked_host(arguments.host)
    else:
        host = LOOPBACK if group.kind == "local" else own_address_for_hosts(_addresses(group))
    lifecycle.start(home, count, group, bounds, store=arguments.redis, host=host, say=print)
    print(f"run a workflow on it with 'shoal run --cluster {arguments.name} FILE'")


def _add(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import lifecycle
    from shoal.cluster.messaging.access import access_path, read

    if not arguments.group:
        raise InputError("the new group of nodes needs a name", remedy="give it with --group NAME")
    if arguments.redis:
        raise InputError("--redis is an option of 'shoal cluster start': the store cannot be changed later")
    contacts = read(access_path(arguments.name)).contacts
    beside = [group for group in home.read_started().groups if group.kind == "local"]
    taken = sum(max(len(group.nodes), group.bounds.maximum if group.bounds else 0) for group in beside)
    group, bounds, count = _group(arguments, beside=taken)
    if group.kind != "local":
        _check_reach(arguments, contacts, group)
    lifecycle.add(home, count, group, bounds, print)


def _check_reach(arguments: argparse.Namespace, contacts: list[str], group: GroupRecord) -> None:
    """Checks that remote nodes can reach the head. They cannot join if it listens on the loopback interface only."""
    from shoal.cluster.nodes.machine import checked_host, host_of, is_loopback, own_address_for_hosts

    if not contacts or not is_loopback(host_of(contacts[0])):
        return
    towards = checked_host(arguments.host) if arguments.host else own_address_for_hosts(_addresses(group))
    if not is_loopback(towards):
        raise InputError(
            f"the head of {arguments.name!r} can be reached only from this machine ({host_of(contacts[0])})",
            remedy=f"start the cluster with --host {towards}",
        )


def _group(arguments: argparse.Namespace, beside: int) -> tuple[GroupRecord, Bounds | None, int]:
    """Returns the requested group, its factory's bounds and its initial number of nodes.

    `beside`: number of other local nodes, which share the machine.
    """
    from shoal.cluster.home import MAIN, GroupRecord
    from shoal.cluster.messaging.access import checked_name
    from shoal.cluster.nodes.demand import GROUP, label_of

    ways = [way for way in ("local", "ssh", "slurm") if getattr(arguments, way) is not None]
    if len(ways) != 1:
        raise InputError("the nodes need a place to run", remedy="give one of --local N, --ssh HOSTS, --slurm N")
    (kind,) = ways
    group = GroupRecord(
        name=checked_name(arguments.group or MAIN, "a group"),
        kind=kind,
        agent=list(arguments.agent),
        labels=list(arguments.label),
        ssh=list(arguments.ssh_option),
    )
    if any(label_of(label)[0] == GROUP for label in group.labels):
        raise InputError("the label 'group' is reserved for the group's name", remedy="give it with --group NAME")
    if arguments.partition and kind != "slurm":
        raise InputError("--partition applies to Slurm nodes only", remedy="give --slurm as well")
    bounds = _bounds(kind, arguments)
    if kind == "local":
        from shoal.cluster.nodes.machine import shares_of_machine

        count = _number(arguments.local, "--local")
        group.agent += shares_of_machine(group.agent, beside + max(count, bounds.maximum if bounds else 0))
    elif kind == "ssh":
        group.options = _hosts(arguments.ssh)
        count = bounds.minimum if bounds else _slot_count(group)
    else:
        from shoal.cluster.nodes.slurm import check_options

        check_options(arguments.sbatch)
        partition = [f"--partition={arguments.partition}"] if arguments.partition else []
        group.options = [*partition, *arguments.sbatch]
        count = _number(arguments.slurm, "--slurm") if arguments.slurm else int(bounds is None)
    return group, bounds, count


def _slot_count(group: GroupRecord) -> int:
    """Number of nodes that the hosts may run."""
    from shoal.cluster.nodes.ssh import parse_hosts

    return sum(host.slots for host in parse_hosts("\n".join(group.options)))


def _addresses(group: GroupRecord) -> list[str]:
    """Addresses of the hosts; empty for nodes that a batch system will choose."""
    if group.kind != "ssh":
        return []
    from shoal.cluster.nodes.remote_setup import real_names
    from shoal.cluster.nodes.ssh import Ssh, parse_hosts

    return real_names(Ssh(group.ssh), parse_hosts("\n".join(group.options)))


def _bounds(kind: str, arguments: argparse.Namespace) -> Bounds | None:
    """Bounds of the factory; None without a factory."""
    if arguments.max is None:
        if arguments.min is not None or arguments.idle is not None:
            raise InputError("a factory needs a maximum number of nodes", remedy="give it with --max B")
        return None
    from shoal.cluster.nodes.factory_process import bounds_of

    try:
        idle = float(arguments.idle) if arguments.idle is not None else IDLE_SECONDS
    except ValueError:
        raise InputError(f"--idle must be a number of seconds, not {arguments.idle!r}") from None
    return bounds_of(kind, _number(arguments.min or "0", "--min"), _number(arguments.max, "--max"), idle)


def _scale(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import lifecycle

    started = home.read_started()
    if started.head is None:
        raise lifecycle.nowhere(home)
    bounds = _bounds(started.group(arguments.group).kind, arguments)
    if bounds is None:
        lifecycle.scale(home, _number(arguments.count, "N"), print, arguments.group)
    else:
        lifecycle.set_bounds(home, bounds, print, arguments.group)


def _hosts(text: str) -> list[str]:
    import os

    if os.path.exists(text):
        with open(text, encoding="utf-8") as file:
            return [line.strip() for line in file if line.strip() and not line.startswith("#")]
    return [host for host in text.split(",") if host]


def _number(text: str | None, what: str) -> int:
    if text is None or not text.isdigit() or len(text) > 6:
        raise InputError(f"{what} must be a number of nodes, not {text!r}")
    return int(text)


def _access(arguments: argparse.Namespace) -> None:
    from shoal.cluster.messaging.access import Role, access_path, narrowed, read, write

    path = arguments.output or f"{arguments.name}.{arguments.role}.json"
    write(narrowed(read(access_path(arguments.name)), Role(arguments.role)), path)
    print(f"{path}: access file with role {arguments.role} for {arguments.name}; keep it secret when you pass it on")


OTHERS = ""
"""Heading of nodes that belong to no group because they were started by hand."""


def show(name: str) -> None:
    """Prints the state of a cluster. Missing nodes are known only on the machine that started the cluster."""
    from shoal.cluster.agent.messages import make_codec
    from shoal.cluster.home import ClusterHome, ClusterRecord
    from shoal.cluster.messaging.access import access_path, read
    from shoal.cluster.messaging.caller import Caller
    from shoal.cluster.nodes.groups import read_cluster
    from shoal.ui.cli.text import printable

    path = access_path(name)
    with Caller(read(path), make_codec()) as caller:
        found = read_cluster(caller)
    home = ClusterHome(name) if path != name else None
    started = home.read_started() if home is not None else ClusterRecord()
    lines = {} if home is None else _missing_by_group(home, started, found)
    for line in described(found, started, lines):
        print(printable(line))


def _missing_by_group(home: ClusterHome, started: ClusterRecord, found: ClusterReply) -> dict[str, list[str]]:
    """By group: nodes that were requested and are missing, and the state of the group's factory."""
    from shoal.cluster.lifecycle import absent, factory_state
    from shoal.cluster.nodes.starters import NodePhase

    missing = absent(home, started, found)
    lines: dict[str, list[str]] = {}
    for group in started.groups:
        words = lines.setdefault(group.name, [])
        for handle, standing in missing[group.name]:
            if group.closing and standing.phase is NodePhase.ENDED:
                continue
            job = getattr(handle, "job", "")
            which = f"job {job}" if job else handle.name
            words.append(f"  {standing.phase.value}  {which}  {standing.reason}".rstrip())
        factory = factory_state(home, started, group)
        if factory:
            words.append(f"  {factory}")
    return lines


def described(found: ClusterReply, started: ClusterRecord, more: Mapping[str, list[str]]) -> list[str]:
    """Lines of the output. A single group with the default name needs no heading."""
    from shoal.cluster.agent.messages import ClusterNodeFacts
    from shoal.cluster.home import MAIN

    groups: dict[str, list[int]] = {group.name: [] for group in started.groups}
    for number, node in found.nodes.items():
        groups.setdefault(node.labels.get("group", OTHERS), []).append(number)
    kept = {group.name: group for group in started.groups}
    shown = [name for name in groups if groups[name] or more.get(name) or not (name in kept and kept[name].closing)]
    plain = not {*shown} - {MAIN, OTHERS} or shown == [OTHERS]
    lines = [f"{len(found.nodes)} node{'s' * (len(found.nodes) != 1)}"]
    for name in sorted(shown, key=lambda name: name == OTHERS):
        if not plain:
            kind = f", {kept[name].kind}" if name in kept else ""
            closing = ", is being removed" if name in kept and kept[name].closing else ""
            count = len(groups[name])
            title = f"group {name}{kind}{closing}" if name != OTHERS else "in no group"
            lines.append(f"  {title}: {count} {'node' if count == 1 else 'nodes'}")
        for number in groups[name]:
            lines.append(_row(number, found.nodes[number], found))
            lines += [f"        throttle: {words}" for words in found.notes.get(number, ClusterNodeFacts()).throttle]
        lines += [line if plain else f"  {line}" for line in more.get(name, [])]
    lines += [
        f"  run {run.run}  {run.name}  {run.state}  {run.tasks - run.left} of {run.tasks} tasks" for run in found.runs
    ]
    return lines


def _row(number: int, node: NodeInfo, found: ClusterReply) -> str:
    from shoal.cluster.agent.messages import ClusterNodeFacts
    from shoal.core.resources import show_amount

    offers = ", ".join(f"{what} {show_amount(what, amount)}" for what, amount in node.resources.amounts if amount)
    labels = " ".join(f"{key}={value}" for key, value in sorted(node.labels.items()) if key not in ("node", "group"))
    doing = _doing(found.notes.get(number, ClusterNodeFacts()), node.ends_at)
    return f"  {number:>4}  {node.name}  {node.address}  {offers}  {labels}  {doing}"


def _doing(note: ClusterNodeFacts, ends_at: float | None) -> str:
    """The activity of a node in words."""
    from shoal.core.quantities import show_bytes, show_seconds

    words = f"{note.running} run, {note.shared + note.local} wait"
    if note.idle_seconds is not None:
        words = f"idle for {show_seconds(round(note.idle_seconds))}"
    if note.draining:
        words += ", starts nothing more"
    if note.ahead:
        words += f", its clock is {show_seconds(round(abs(note.ahead)))} {'ahead' if note.ahead > 0 else 'behind'}"
    if note.fetched:
        words += f", {show_bytes(note.fetched)} fetched"
    if ends_at is not None:
        words += f", there for {show_seconds(round(max(0.0, ends_at - time.time())))}"
    return f"({words})"
