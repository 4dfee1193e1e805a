"""`shoal agent`: runs the agent of one cluster node; started by `shoal cluster start` or by hand."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser, need_cluster_libraries

if TYPE_CHECKING:
    from shoal.cluster.agent.node_cache import NodeCache
    from shoal.cluster.messaging.access import Access
    from shoal.core.store.directory import NodeInfo

SUMMARY = """Runs the agent of one cluster node until it is told to stop. 'shoal cluster start' starts it; by hand, give
it the access file of a running cluster. The resources of the node are detected, limited by the batch job it runs in, or
declared here or by CORES, MEMORY, DISK and GPUS in the environment."""
USAGE = "--access FILE [OPTION...]"
EXAMPLE = "shoal agent --access ~/.shoal/clusters/lab/access.json --cores 4 --memory 8000"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--access", metavar="FILE", help="the access file of the cluster")
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        help="where to listen, tcp://HOST:PORT (default: the address that the head can reach)",
    )
    parser.add_argument("--spool", metavar="DIR", help="directory for the output of running tasks (default: a new one)")
    offer = parser.add_argument_group("what this node offers")
    offer.add_argument("--cores", metavar="N", help="cores, or 'all'")
    offer.add_argument("--memory", metavar="MB", help="memory in megabytes, or with a unit")
    offer.add_argument("--disk", metavar="MB", help="disk in megabytes, or with a unit")
    offer.add_argument(
        "--shared-memory", metavar="AMOUNT", help="limit of shared-memory allocations, such as 2G (default: a quarter)"
    )
    offer.add_argument("--gpus", metavar="N", help="GPUs")
    offer.add_argument("--resource", metavar="NAME=N", action="append", default=[], help="any other resource")
    offer.add_argument(
        "--label", metavar="KEY=VALUE", action="append", default=[], help="a label that tasks may require"
    )
    parser.add_argument("--data-plain", action="store_true", help="send files unencrypted, on a network that you trust")
    head = parser.add_argument_group("for the head of a cluster")
    head.add_argument("--head", action="store_true", help="run no tasks; keep the run store and serve clients")
    head.add_argument("--store", metavar="DIR", help="directory of the head's run store")


def execute(arguments: argparse.Namespace) -> int:
    need_cluster_libraries(certificates=not arguments.data_plain)
    if not arguments.access:
        raise InputError("an agent needs the access file of its cluster", remedy="give it with --access FILE")
    from shoal.cluster.messaging.access import read
    from shoal.execution.process_limits import raise_limit

    raise_limit()  # each peer needs several file descriptors
    access = read(arguments.access)
    if arguments.head:
        return _head(arguments)
    import os

    import msgspec

    from shoal.cluster.agent.agent import Agent
    from shoal.cluster.agent.messages import make_codec
    from shoal.cluster.agent.node_cache import NodeCache
    from shoal.cluster.agent.run_store import check_version, stores_of
    from shoal.cluster.memory_access import limit_of, open_node
    from shoal.cluster.messaging.messenger import Messenger
    from shoal.cluster.nodes.machine import host_of, own_address_for

    check_version(access)
    info, spool = _offer(arguments)
    bind = arguments.bind or f"tcp://{own_address_for(access.contacts)}:0"
    limit = limit_of(arguments.shared_memory, info.resources.get("memory"))
    store = stores_of(access)
    messenger = Messenger(access, make_codec(), bind=bind, sender=info.name)
    cache = NodeCache(
        os.path.join(spool, "depot"),
        access,
        host_of(bind),
        limit_bytes=info.resources.get("disk") or None,
        encrypted=not arguments.data_plain,
    )
    node = msgspec.structs.replace(info, address=messenger.address, data=cache.address)
    memory = open_node(access.cluster, cache.listener, limit)
    Agent(messenger, store, node, spool, cache, memory).serve()
    return 0


def _offer(arguments: argparse.Namespace) -> tuple[NodeInfo, str]:
    import os
    import sys

    from shoal import __version__
    from shoal.cluster.home import give_spool, make_spool, remove_dead
    from shoal.cluster.nodes.machine import this_machine
    from shoal.cluster.nodes.offer import Declared, offer
    from shoal.cluster.nodes.starters import NODE_NAME
    from shoal.core.store.directory import NodeInfo

    spool = os.path.abspath(arguments.spool) if arguments.spool else ""
    try:
        if spool:
            give_spool(spool)
        remove_dead()
        spool = spool or make_spool()
    except OSError as error:
        where = spool or error.filename
        raise InputError(f"cannot create {where!r}: {error.strerror}", remedy="choose another --spool") from None
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


def _cache_of_head(arguments: argparse.Namespace, access: Access, host: str) -> NodeCache:
    """Starts the head's object cache on its previous port, because agents know it by that address."""
    import os

    from shoal.cluster.agent.node_cache import NodeCache

    if not arguments.store:
        raise InputError("the head needs a directory for its run store", remedy="give it with --store DIR")
    port_file = os.path.join(arguments.store, "port")
    try:
        with open(port_file, encoding="utf-8") as file:
            port = int(file.read())
    except (OSError, ValueError):
        port = 0
    folder = os.path.join(arguments.store, "depot")
    cache = NodeCache(folder, access, host, port=port, encrypted=not arguments.data_plain)
    with open(port_file, "w", encoding="utf-8") as file:
        file.write(str(cache.listener.port))
    return cache


def _head(arguments: argparse.Namespace) -> int:
    from functools import partial

    from shoal.cluster.agent.head import HeadAgent
    from shoal.cluster.agent.messages import AgentClock, make_codec
    from shoal.cluster.agent.run_store import LocalTransport, ServedStores, stores_of
    from shoal.cluster.messaging.access import publish_nodes, read, write
    from shoal.cluster.messaging.messenger import Messenger
    from shoal.cluster.nodes.machine import LOOPBACK, host_of

    access = read(arguments.access)
    messenger = Messenger(access, make_codec(), bind=arguments.bind or f"tcp://{LOOPBACK}:0", sender="head")
    cache = _cache_of_head(arguments, access, host_of(messenger.address))
    if access.store is None:
        from shoal.cluster.stores.server import StoreServer

        server = StoreServer(arguments.store)
        head = HeadAgent(messenger, ServedStores(LocalTransport(server, AgentClock())), server, cache)
    else:
        head = HeadAgent(
            messenger, stores_of(access), None, cache, partial(publish_nodes, arguments.access, access.cluster)
        )
    write(access.at([messenger.address]), arguments.access)
    head.serve()
    return 0
