"""`shoal cluster`: start, look at, resize and end a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.extras import need_cluster_libraries
from shoal.cli.parser import CommandParser
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.agent.messages import ClusterTold, NodeNote
    from shoal.cluster.factory import Bounds
    from shoal.cluster.home import ClusterHome, Started

SUMMARY = """Starts a cluster of agents, shows it, changes its size and ends it. The access file that 'start' writes
lets you run workflows on it ('shoal run --cluster NAME'); a narrowed copy of it ('access') lets others do so, or only
look."""
USAGE = "start|status|scale|stop|list|access|restart|factory [NAME] [N] [OPTION...]"
EXAMPLE = "shoal cluster start lab --local 2"
ACTIONS = ("start", "status", "scale", "stop", "list", "access", "restart", "factory")
IDLE_SECONDS = 300.0
ROLES = ("worker", "client", "viewer")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cluster's name")
    parser.add_argument("count", metavar="N", nargs="?", help="for 'scale': how many nodes there should be")
    where = parser.add_argument_group("for 'start': where the nodes are")
    where.add_argument("--local", metavar="N", help="so many agents on this machine, which share its cores")
    where.add_argument("--ssh", metavar="HOSTS", help="hosts with commas between them, or a file of 'host [slots]'")
    where.add_argument(
        "--ssh-option", metavar="OPTION", action="append", default=[], help="an option for every ssh, such as -p2222"
    )
    where.add_argument(
        "--slurm", metavar="N", nargs="?", const="", help="so many jobs of Slurm (default: 1, with a factory 0)"
    )
    where.add_argument("--sbatch", metavar="OPTION", action="append", default=[], help="an option for sbatch")
    where.add_argument("--redis", metavar="URL", help="keep the books in Redis or Valkey, not with the head")
    where.add_argument("--host", metavar="ADDRESS", help="the address of this machine that nodes can reach")
    where.add_argument("--agent", metavar="OPTION", action="append", default=[], help="an option for every agent")
    factory = parser.add_argument_group("for 'start' and 'scale': a factory, which changes the number of nodes")
    factory.add_argument("--min", metavar="A", help="never fewer nodes than this (default: 0)")
    factory.add_argument("--max", metavar="B", help="never more nodes than this")
    factory.add_argument("--idle", metavar="SECONDS", help="a node idle for so long is let go (default: 300)")
    more = parser.add_argument_group("for 'access'")
    more.add_argument("--role", choices=ROLES, default="client", help="what its holder may be")
    more.add_argument("-o", "--output", metavar="FILE", help="where to write the narrowed access file")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries()
    from shoal.cluster import manage
    from shoal.cluster.home import ClusterHome

    if arguments.action == "list":
        for name in manage.names():
            print(name)
        return 0
    if not arguments.name:
        raise InputError(f"'shoal cluster {arguments.action}' needs the name of a cluster")
    if arguments.action == "status":
        _status(arguments.name)
        return 0
    home = ClusterHome(arguments.name)
    match arguments.action:
        case "start":
            _start(home, arguments)
        case "scale":
            _scale(home, arguments)
        case "restart":
            manage.restart(home, print)
        case "factory":
            from shoal.cluster.keeper import keep

            keep(home)
        case "access":
            _access(arguments)
        case "stop":
            print(f"ended {manage.stop(home)} nodes and the head of {arguments.name}")
    return 0


def _start(home: ClusterHome, arguments: argparse.Namespace) -> None:
    from shoal.cluster import manage
    from shoal.cluster.addresses import LOOPBACK, checked_host, own_address_for_hosts
    from shoal.cluster.home import Started

    ways = [way for way in ("local", "ssh", "slurm") if getattr(arguments, way) is not None]
    if len(ways) != 1:
        raise InputError("say where the nodes are", remedy="give one of --local N, --ssh HOSTS, --slurm N")
    (kind,) = ways
    started = Started(kind=kind, agent=list(arguments.agent), ssh=list(arguments.ssh_option))
    started.bounds = _bounds(kind, arguments)
    hosts: list[str] = []
    if kind == "local":
        count = _number(arguments.local, "--local")
        _share_cores(started, max(count, started.bounds.maximum if started.bounds else 0))
    elif kind == "ssh":
        started.options = _hosts(arguments.ssh)
        room, hosts = _room(started)
        count = started.bounds.minimum if started.bounds else room
    else:
        from shoal.cluster.slurm import check_options

        check_options(arguments.sbatch)
        started.options = list(arguments.sbatch)
        count = _number(arguments.slurm, "--slurm") if arguments.slurm else int(started.bounds is None)
    if arguments.host:
        host = checked_host(arguments.host)
    else:
        host = LOOPBACK if kind == "local" else own_address_for_hosts(hosts)
    manage.start(home, count, started, store=arguments.redis, host=host, say=print)
    print(f"run a workflow on it with 'shoal run --cluster {arguments.name} FILE'")


def _share_cores(started: Started, count: int) -> None:
    """Agents on one machine share its cores, unless somebody says how many each has."""
    import os

    if not any(word.startswith("--cores") for word in started.agent):
        started.agent.append(f"--cores={max(1, len(os.sched_getaffinity(0)) // max(1, count))}")


def _room(started: Started) -> tuple[int, list[str]]:
    """How many nodes the hosts may run, and the addresses of these hosts."""
    from shoal.cluster.lodging import real_names
    from shoal.cluster.ssh import Ssh, parse_hosts

    hosts = parse_hosts("\n".join(started.options))
    return sum(host.slots for host in hosts), real_names(Ssh(started.ssh), hosts)


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

    bounds = _bounds(home.read_started().kind, arguments)
    if bounds is None:
        manage.scale(home, _number(arguments.count, "N"), print)
    else:
        manage.set_bounds(home, bounds, print)


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


def _status(name: str) -> None:
    from shoal.agent.messages import NodeNote, make_codec
    from shoal.cluster.home import access_path
    from shoal.cluster.manage import told
    from shoal.model.resources import show_amount
    from shoal.wire.access import read
    from shoal.wire.caller import Caller

    path = access_path(name)
    with Caller(read(path), make_codec()) as caller:
        found = told(caller)
    print(f"{len(found.nodes)} nodes")
    for number, node in found.nodes.items():
        offers = ", ".join(f"{what} {show_amount(what, amount)}" for what, amount in node.resources.amounts if amount)
        labels = " ".join(f"{key}={value}" for key, value in sorted(node.labels.items()) if key != "node")
        doing = _doing(found.notes.get(number, NodeNote()), node.ends_at)
        print(f"  {number:>4}  {node.name}  {node.address}  {offers}  {labels}  {doing}")
    if path != name:  # it was started from here
        _status_of_starts(name, found)
    for run in found.runs:
        print(f"  run {run.run}  {run.name}  {run.state}  {run.tasks - run.left} of {run.tasks} tasks")


def _doing(note: NodeNote, ends_at: float | None) -> str:
    """What a node does, in words."""
    import time

    words = f"{note.running} run, {note.shared + note.local} wait"
    if note.idle_seconds is not None:
        words = f"idle for {note.idle_seconds:.0f} s"
    if note.draining:
        words += ", starts nothing more"
    if ends_at is not None:
        words += f", there for {max(0.0, ends_at - time.time()):.0f} s"
    return f"({words})"


def _status_of_starts(name: str, found: ClusterTold) -> None:
    """What has been asked for and is not there, and who decides how much is asked for."""
    from shoal.cluster.home import ClusterHome
    from shoal.cluster.manage import absent, factory_says

    home = ClusterHome(name)
    for handle, standing in absent(home, found):
        job = getattr(handle, "job", "")
        print(f"  {standing.phase.value}  {f'job {job}' if job else handle.name}  {standing.reason}".rstrip())
    factory = factory_says(home)
    if factory:
        print(f"  {factory}")


def _access(arguments: argparse.Namespace) -> None:
    from shoal.cluster.home import access_path
    from shoal.wire.access import Role, narrowed, read, write

    path = arguments.output or f"{arguments.name}.{arguments.role}.json"
    write(narrowed(read(access_path(arguments.name)), Role(arguments.role)), path)
    print(f"{path}: the access of a {arguments.role} to {arguments.name}; hand it over safely")
