"""`shoal cluster`: start, look at, resize and end a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.extras import need_cluster_libraries
from shoal.cli.parser import CommandParser
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.cluster.factory import Bounds
    from shoal.cluster.home import ClusterHome, Group

SUMMARY = """Starts a cluster of agents, shows it, changes its size and ends it. The access file that 'start' writes
lets you run workflows on it ('shoal run --cluster NAME'); a narrowed copy of it ('access') lets others do so, or only
look. A cluster may have several groups of nodes ('add', 'remove'), each started in its own way and of its own size."""
USAGE = "start|add|status|scale|remove|stop|list|access|restart|factory [NAME] [N] [OPTION...]"
EXAMPLE = "shoal cluster start lab --local 2"
ACTIONS = ("start", "add", "status", "scale", "remove", "stop", "list", "access", "restart", "factory")
IDLE_SECONDS = 300.0
ROLES = ("worker", "client", "viewer")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cluster's name")
    parser.add_argument("count", metavar="N", nargs="?", help="for 'scale': how many nodes there should be")
    parser.add_argument(
        "--group", metavar="NAME", help="the group of nodes that is meant (default: the only one; for 'start': main)"
    )
    where = parser.add_argument_group("for 'start' and 'add': where the nodes are")
    where.add_argument("--local", metavar="N", help="so many agents on this machine, which share its cores and memory")
    where.add_argument("--ssh", metavar="HOSTS", help="hosts with commas between them, or a file of 'host [slots]'")
    where.add_argument(
        "--ssh-option", metavar="OPTION", action="append", default=[], help="an option for every ssh, such as -p2222"
    )
    where.add_argument(
        "--slurm", metavar="N", nargs="?", const="", help="so many jobs of Slurm (default: 1, with a factory 0)"
    )
    where.add_argument("--partition", metavar="NAME", help="the partition of Slurm")
    where.add_argument("--sbatch", metavar="OPTION", action="append", default=[], help="an option for sbatch")
    where.add_argument("--host", metavar="ADDRESS", help="the address of this machine that nodes can reach")
    where.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="a label of all these nodes")
    where.add_argument("--agent", metavar="OPTION", action="append", default=[], help="an option for every agent")
    store = parser.add_argument_group("for 'start'")
    store.add_argument("--redis", metavar="URL", help="keep the books in Redis or Valkey, not with the head")
    factory = parser.add_argument_group("for 'start', 'add' and 'scale': a factory, which changes the number of nodes")
    factory.add_argument("--min", metavar="A", help="never fewer nodes than this (default: 0)")
    factory.add_argument("--max", metavar="B", help="never more nodes than this")
    factory.add_argument("--idle", metavar="SECONDS", help="a node idle for so long is let go (default: 300)")
    more = parser.add_argument_group("for 'access'")
    more.add_argument("--role", choices=ROLES, default="client", help="what its holder may be")
    more.add_argument("-o", "--output", metavar="FILE", help="where to write the narrowed access file")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries(certificates=arguments.action in ("start", "restart"))  # of the head
    from shoal.cluster import manage
    from shoal.cluster.home import ClusterHome

    if arguments.action == "list":
        for name in manage.names():
            print(name)
        return 0
    if not arguments.name:
        raise InputError(f"'shoal cluster {arguments.action}' needs the name of a cluster")
    if arguments.action == "status":
        from shoal.cli.cluster_status import show

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
                raise InputError("say which group is to be removed", remedy="name it with --group NAME")
            manage.remove(home, arguments.group, print)
        case "restart":
            manage.restart(home, print)
        case "factory":
            from shoal.cluster.keeper import keep

            keep(home)
        case "stop":
            ended = manage.stop(home)
            print(f"ended {ended} node{'s' * (ended != 1)} and the head of {arguments.name}")
    return 0


def _start(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import manage
    from shoal.cluster.addresses import LOOPBACK, checked_host, own_address_for_hosts

    group, bounds, count = _group(arguments, beside=0)
    if arguments.host:
        host = checked_host(arguments.host)
    else:
        host = LOOPBACK if group.kind == "local" else own_address_for_hosts(_addresses(group))
    manage.start(home, count, group, bounds, store=arguments.redis, host=host, say=print)
    print(f"run a workflow on it with 'shoal run --cluster {arguments.name} FILE'")


def _add(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import manage
    from shoal.wire.access import read
    from shoal.wire.places import access_path

    if not arguments.group:
        raise InputError("the new group of nodes needs a name", remedy="give it with --group NAME")
    if arguments.redis:
        raise InputError("where the books are kept is said when the cluster is started, with 'shoal cluster start'")
    contacts = read(access_path(arguments.name)).contacts
    beside = [group for group in home.read_started().groups if group.kind == "local"]
    taken = sum(max(len(group.nodes), group.bounds.maximum if group.bounds else 0) for group in beside)
    group, bounds, count = _group(arguments, beside=taken)
    if group.kind != "local":
        _check_reach(arguments, contacts, group)
    manage.add(home, count, group, bounds, print)


def _check_reach(arguments: argparse.Namespace, contacts: list[str], group: Group) -> None:
    """Nodes elsewhere cannot join a cluster whose head listens only on this machine."""
    from shoal.cluster.addresses import checked_host, host_of, is_loopback, own_address_for_hosts

    if not contacts or not is_loopback(host_of(contacts[0])):
        return
    towards = checked_host(arguments.host) if arguments.host else own_address_for_hosts(_addresses(group))
    if not is_loopback(towards):
        raise InputError(
            f"the head of {arguments.name!r} can be reached only from this machine ({host_of(contacts[0])})",
            remedy=f"start the cluster with --host {towards}",
        )


def _group(arguments: argparse.Namespace, beside: int) -> tuple[Group, Bounds | None, int]:
    """The group that is asked for, its factory's bounds, and its nodes at first; `beside`: other local nodes."""
    from shoal.cluster.demand import GROUP, label_of
    from shoal.cluster.home import MAIN, Group
    from shoal.wire.places import checked_name

    ways = [way for way in ("local", "ssh", "slurm") if getattr(arguments, way) is not None]
    if len(ways) != 1:
        raise InputError("say where the nodes are", remedy="give one of --local N, --ssh HOSTS, --slurm N")
    (kind,) = ways
    group = Group(
        name=checked_name(arguments.group or MAIN, "a group"),
        kind=kind,
        agent=list(arguments.agent),
        labels=list(arguments.label),
        ssh=list(arguments.ssh_option),
    )
    if any(label_of(label)[0] == GROUP for label in group.labels):
        raise InputError("the label 'group' is the group's name", remedy="give it with --group NAME")
    if arguments.partition and kind != "slurm":
        raise InputError("--partition is for nodes of Slurm", remedy="give --slurm as well")
    bounds = _bounds(kind, arguments)
    if kind == "local":
        from shoal.cluster.machine import shares_of_machine

        count = _number(arguments.local, "--local")
        group.agent += shares_of_machine(group.agent, beside + max(count, bounds.maximum if bounds else 0))
    elif kind == "ssh":
        group.options = _hosts(arguments.ssh)
        count = bounds.minimum if bounds else _room(group)
    else:
        from shoal.cluster.slurm import check_options

        check_options(arguments.sbatch)
        partition = [f"--partition={arguments.partition}"] if arguments.partition else []
        group.options = [*partition, *arguments.sbatch]
        count = _number(arguments.slurm, "--slurm") if arguments.slurm else int(bounds is None)
    return group, bounds, count


def _room(group: Group) -> int:
    """How many nodes the hosts may run."""
    from shoal.cluster.ssh import parse_hosts

    return sum(host.slots for host in parse_hosts("\n".join(group.options)))


def _addresses(group: Group) -> list[str]:
    """The addresses of hosts; none are known of nodes that a batch system will choose."""
    if group.kind != "ssh":
        return []
    from shoal.cluster.lodging import real_names
    from shoal.cluster.ssh import Ssh, parse_hosts

    return real_names(Ssh(group.ssh), parse_hosts("\n".join(group.options)))


def _bounds(kind: str, arguments: argparse.Namespace) -> Bounds | None:
    """The bounds of a factory; None: there is to be none."""
    if arguments.max is None:
        if arguments.min is not None or arguments.idle is not None:
            raise InputError("a factory needs to know how many nodes there may be", remedy="give it with --max B")
        return None
    from shoal.cluster.keeper import bounds_of

    try:
        idle = float(arguments.idle) if arguments.idle is not None else IDLE_SECONDS
    except ValueError:
        raise InputError(f"--idle must be a number of seconds, not {arguments.idle!r}") from None
    return bounds_of(kind, _number(arguments.min or "0", "--min"), _number(arguments.max, "--max"), idle)


def _scale(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import manage

    started = home.read_started()
    if started.head is None:
        raise manage.nowhere(home)
    bounds = _bounds(started.group(arguments.group).kind, arguments)
    if bounds is None:
        manage.scale(home, _number(arguments.count, "N"), print, arguments.group)
    else:
        manage.set_bounds(home, bounds, print, arguments.group)


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
    from shoal.wire.access import Role, narrowed, read, write
    from shoal.wire.places import access_path

    path = arguments.output or f"{arguments.name}.{arguments.role}.json"
    write(narrowed(read(access_path(arguments.name)), Role(arguments.role)), path)
    print(f"{path}: the access of a {arguments.role} to {arguments.name}; hand it over safely")
