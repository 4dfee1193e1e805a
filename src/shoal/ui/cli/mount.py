"""`shoal mount`: shows memory objects as files, for programs that need paths."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser

if TYPE_CHECKING:
    from shoal.data.memory.handle import Memory

SUMMARY = """Shows the named objects of the memory layer as readable and writable files in DIR, until DIR is unmounted
('fusermount3 -u DIR') or this command ends. With --run it shows the objects of one run, otherwise a directory for each
run. A new or rewritten file becomes an object when it is closed."""
USAGE = "DIR [--run RUN] [--cluster NAME]"
EXAMPLE = "shoal mount /mnt/objects --cluster lab --run 20260101-120000"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help="an empty directory")
    parser.add_argument("--run", metavar="RUN", default="", help="show the objects of this run")
    parser.add_argument(
        "--cluster", metavar="NAME", help="the cluster, or its access file (default: the only one, or this task's)"
    )


def execute(arguments: argparse.Namespace) -> int:
    if not arguments.folder:
        raise InputError("a mount needs a directory", remedy="write 'shoal mount DIR'")
    from shoal.data.memory.mount import check_permitted, library, mount

    library()
    check_permitted(arguments.folder)
    memory = _memory(arguments.cluster, arguments.run)
    try:
        mount(memory, arguments.run, arguments.folder)
    finally:
        memory.close()
    return 0


def _memory(cluster: str | None, run: str) -> Memory:
    """The memory of this task or program, of a node on this machine, or of the cluster."""
    from shoal.data.memory.client import VARIABLE, attach

    if cluster is None and os.environ.get(VARIABLE):
        return attach()
    from shoal.ui.cli.parser import need_cluster_libraries

    need_cluster_libraries()
    from shoal.cluster.memory_access import ClusterMemory, node_here

    name = cluster or _only_cluster()
    return node_here(name, run) or ClusterMemory(name, run or f"mount-{os.getpid()}", visiting=True)


def _only_cluster() -> str:
    from shoal.cluster.messaging.access import cluster_folder

    base = os.path.dirname(cluster_folder("any"))
    names = sorted(os.listdir(base)) if os.path.isdir(base) else []
    if len(names) != 1:
        known = f"there are {', '.join(names)}" if names else "start one with 'shoal cluster start'"
        raise InputError("the cluster is ambiguous", remedy=f"name it with --cluster NAME; {known}")
    return names[0]
