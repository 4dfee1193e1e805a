"""A task on two nodes at once, as an MPI program is: rank 0 and rank 1 share the work and talk over a socket.

    python two_nodes.py [COUNT]

starts a small cluster of two agents on this machine, runs the task, prints the sum of the squares below COUNT, and ends
the cluster. The task gets both nodes or waits; each of its processes is told hosts and rank by its environment.
"""

from __future__ import annotations

import os
import socket
import sys

from shoal import Net, take
from shoal.petri import NetFlow
from shoal.runtime import RuntimeSystem, Strategy, meet, simple


def sum_of_squares(count: int) -> int:
    """Runs as two processes, one on each node; what rank 0 returns is the result of the task."""
    rank, ranks = int(os.environ["SHOAL_RANK"]), int(os.environ["SHOAL_RANKS"])
    own = sum(number * number for number in range(rank, count, ranks))
    addresses = os.environ["SHOAL_ADDRESSES"].split(",")
    with socket.create_server((addresses[0], 0)) if rank == 0 else socket.socket() as meeting_point:
        ports = meet(meeting_point.getsockname()[1] if rank == 0 else None)
        if rank > 0:
            meeting_point.connect((addresses[0], ports[0]))
            meeting_point.sendall(own.to_bytes(16, "big"))
            return own
        for _ in range(1, ranks):
            other, _ = meeting_point.accept()
            with other, other.makefile("rb") as stream:
                own += int.from_bytes(stream.read(16), "big")
    return own


def build(count: int) -> Net:
    """A net with one task, which asks for two nodes."""
    net = Net("two nodes")
    counts, sums = net.place("counts", [count]), net.place("sums")
    net.task(count=take(counts), put=sums, nodes=2, cores=1)(sum_of_squares)
    net.step(total=take(sums), name="finish")(lambda total: net.result(total))
    return net


def main(words: list[str]) -> None:
    count = int(words[0]) if words else 1000
    with RuntimeSystem("two-nodes") as runtime:
        for node in runtime.bootstrap(2, Strategy("local", agent=("--cores=1",))):
            runtime.add(node)
        print(simple(NetFlow(build(count)), runtime).run())


if __name__ == "__main__":
    main(sys.argv[1:])
