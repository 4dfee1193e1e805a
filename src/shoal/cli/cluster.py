"""`shoal cluster`: start, look at, resize and end a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.extras import need_cluster_libraries
from shoal.cli.parser import CommandParser
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.cluster.home import ClusterHome

SUMMARY = """Starts a cluster of agents, shows it, changes its size and ends it. The access file that 'start' writes
lets you run workflows on it ('shoal run --cluster NAME'); a narrowed copy of it ('access') lets others do so, or only
look."""
USAGE = "start|status|scale|stop|list|access|restart [NAME] [N] [OPTION...]"
EXAMPLE = "shoal cluster start lab --local 2"
ACTIONS = ("start", "status", "scale", "stop", "list", "access", "restart")
ROLES = ("worker", "client", "viewer")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("name", metavar="NAME", nargs="?", help="the cluster's name")
    parser.add_argument("count", metavar="N", nargs="?", help="for 'scale': how many nodes there should be")
    where = parser.add_argument_group("for 'start': where the nodes are")
    where.add_argument("--local", metavar="N", help="so many agents on this machine, which share its cores")
    where.add_argument("--ssh", metavar="HOSTS", help="hosts with commas between them, or a file of 'host [slots]'")
    where.add_argument("--slurm", metavar="N", help="so many jobs of Slurm")
    where.add_argument("--sbatch", metavar="OPTION", action="append", default=[], help="an option for sbatch")
    where.add_argument("--redis", metavar="URL", help="keep the books in Redis or Valkey, not with the head")
    where.add_argument("--host", metavar="ADDRESS", help="the address of this machine that nodes can reach")
    where.add_argument("--agent", metavar="OPTION", action="append", default=[], help="an option for every agent")
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
            manage.scale(home, _number(arguments.count, "N"), print)
        case "restart":
            print("the head was started anew" if manage.restart_head(home) else "the head runs")
        case "access":
            _access(arguments)
        case "stop":
            print(f"ended {manage.stop(home)} nodes and the head of {arguments.name}")
    return 0


def _start(home: ClusterHome, arguments: argparse.Namespace) -> None:
    import os

    from shoal.cluster import manage
    from shoal.cluster.home import Started

    ways = [way for way in ("local", "ssh", "slurm") if getattr(arguments, way) is not None]
    if len(ways) != 1:
        raise InputError("say where the nodes are", remedy="give one of --local N, --ssh HOSTS, --slurm N")
    started = Started(kind=ways[0], agent=list(arguments.agent))
    host = arguments.host or manage.LOOPBACK
    if ways[0] == "local":
        count = _number(arguments.local, "--local")
        if not any(word.startswith("--cores") for word in started.agent):
            started.agent.append(f"--cores={max(1, len(os.sched_getaffinity(0)) // max(1, count))}")
    elif ways[0] == "ssh":
        started.options = _hosts(arguments.ssh)
        count = len(started.options)
        host = arguments.host or os.uname().nodename
    else:
        count = _number(arguments.slurm, "--slurm")
        started.options = list(arguments.sbatch)
        host = arguments.host or os.uname().nodename
    manage.start(home, count, started, store=arguments.redis, host=host, say=print)
    print(f"run a workflow on it with 'shoal run --cluster {arguments.name} FILE'")


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
    from shoal.agent.messages import make_codec
    from shoal.cluster.home import access_path
    from shoal.cluster.manage import told
    from shoal.model.resources import show_amount
    from shoal.wire.access import read
    from shoal.wire.caller import Caller

    with Caller(read(access_path(name)), make_codec()) as caller:
        found = told(caller)
    print(f"{len(found.nodes)} nodes")
    for number, node in found.nodes.items():
        offers = ", ".join(f"{what} {show_amount(what, amount)}" for what, amount in node.resources.amounts if amount)
        labels = " ".join(f"{key}={value}" for key, value in sorted(node.labels.items()) if key != "node")
        print(f"  {number:>4}  {node.name}  {node.address}  {offers}  {labels}")
    for run in found.runs:
        print(f"  run {run.run}  {run.name}  {run.state}  {run.tasks - run.left} of {run.tasks} tasks")


def _access(arguments: argparse.Namespace) -> None:
    from shoal.cluster.home import access_path
    from shoal.wire.access import Role, narrowed, read, write

    path = arguments.output or f"{arguments.name}.{arguments.role}.json"
    write(narrowed(read(access_path(arguments.name)), Role(arguments.role)), path)
    print(f"{path}: the access of a {arguments.role} to {arguments.name}; hand it over safely")
