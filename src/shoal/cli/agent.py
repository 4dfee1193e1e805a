"""`shoal agent`: one node of a cluster; started by `shoal cluster start`, or by hand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.extras import need_cluster_libraries
from shoal.cli.parser import CommandParser
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.store.directory import NodeInfo

SUMMARY = """Runs one node of a cluster until it is told to end. It is started by 'shoal cluster start'; by hand, give
it the access file of a running cluster. What the node offers is found out, limited by the batch job it runs in, or
declared here or by CORES, MEMORY, DISK and GPUS in the environment."""
USAGE = "--access FILE [OPTION...]"
EXAMPLE = "shoal agent --access ~/.shoal/clusters/lab/access.json --cores 4 --memory 8000"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--access", metavar="FILE", help="the access file of the cluster")
    parser.add_argument(
        "--bind", metavar="ADDRESS", default="tcp://127.0.0.1:0", help="where to listen, tcp://HOST:PORT"
    )
    parser.add_argument("--spool", metavar="DIR", help="where running tasks keep their output (default: a new one)")
    offer = parser.add_argument_group("what this node offers")
    offer.add_argument("--cores", metavar="N", help="cores, or 'all'")
    offer.add_argument("--memory", metavar="MB", help="memory in megabytes, or with a unit")
    offer.add_argument("--disk", metavar="MB", help="disk in megabytes, or with a unit")
    offer.add_argument("--gpus", metavar="N", help="GPUs")
    offer.add_argument("--resource", metavar="NAME=N", action="append", default=[], help="any other resource")
    offer.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="what tasks may ask for")
    head = parser.add_argument_group("for the head of a cluster")
    head.add_argument("--head", action="store_true", help="run no tasks; hold the books and answer clients")
    head.add_argument("--store", metavar="DIR", help="where the head keeps its books")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries()
    if not arguments.access:
        raise InputError("an agent needs the access file of its cluster", remedy="give it with --access FILE")
    from shoal.wire.access import read

    access = read(arguments.access)
    if arguments.head:
        return _head(arguments)
    from shoal.agent.agent import Agent
    from shoal.agent.books import books_of
    from shoal.agent.messages import make_codec
    from shoal.wire.post import Post

    info, spool = _offer(arguments)
    books = books_of(access)
    post = Post(access, make_codec(), bind=arguments.bind, sender=info.name)
    import msgspec

    Agent(post, books, msgspec.structs.replace(info, address=post.address), spool).serve()
    return 0


def _offer(arguments: argparse.Namespace) -> tuple[NodeInfo, str]:
    import os
    import sys
    import tempfile

    from shoal import __version__
    from shoal.cluster.machine import this_machine
    from shoal.cluster.offer import Declared, offer
    from shoal.cluster.starters import NODE_NAME
    from shoal.store.directory import NodeInfo

    spool = arguments.spool or tempfile.mkdtemp(prefix="shoal-agent-")
    declared = Declared(
        arguments.cores,
        arguments.memory,
        arguments.disk,
        arguments.gpus,
        tuple(arguments.resource),
        tuple(arguments.label),
    )
    found = offer(os.environ, this_machine(spool), declared)
    for warning in found.warnings:
        print(f"shoal agent: {warning}", file=sys.stderr)
    name = os.environ.get(NODE_NAME, "")
    labels = {"host": os.uname().nodename, **dict(found.labels), **({"node": name} if name else {})}
    info = NodeInfo("", f"{os.uname().nodename}/{os.getpid()}", found.resources, labels, found.ends_at, "", __version__)
    return info, spool


def _head(arguments: argparse.Namespace) -> int:
    from shoal.agent.books import Here, ServedBooks, books_of
    from shoal.agent.head import Head
    from shoal.agent.messages import make_codec
    from shoal.agent.share import Clock
    from shoal.wire.access import read, write
    from shoal.wire.post import Post

    access = read(arguments.access)
    post = Post(access, make_codec(), bind=arguments.bind, sender="head")
    if access.store is None:
        if not arguments.store:
            raise InputError("the head needs a place for its books", remedy="give it with --store DIR")
        from shoal.store.served import StoreServer

        server = StoreServer(arguments.store)
        head = Head(post, ServedBooks(Here(server, Clock())), server)
    else:
        head = Head(post, books_of(access), None)
    write(access.at([post.address]), arguments.access)
    head.serve()
    return 0
