"""The memory layer against its promises, each with what it is measured against in the same run.

    local      a get of 100 MB that lies on this node, against a copy of it
    remote     a get of 100 MB from another agent, against a plain socket (at least 0.7 of its rate)
    overlap    ranges that are fetched ahead while the one before is computed with (no promise)
    placement  blocked matrix products over 4 agents: bytes moved by placement where the data is, against placement at
               random (at most a fifth)
    mount      dd through `shoal mount`, 1 GB each way (at least 200 MB/s)

Agents are real processes on loopback (`shoal cluster start --local`). The socket's sender and the agents each have a
process of their own; all share the machine's cores with whatever else runs, so the best of several rounds counts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from shoal import memory as layer
from shoal.cluster.memory_access import ClusterMemory
from shoal.cluster.messaging.access import read
from shoal.data.memory.client import Attached
from shoal.data.memory.handle import Allocation
from shoal.data.memory.segments import SOCKET_NAME, folders_of
from shoal.resources.memory_layout import bytes_held, ranked

SHOAL = [sys.executable, "-m", "shoal"]
MB = 1_000_000
REMOTE_LEAST, MOVED_MOST, MOUNT_LEAST = 0.7, 0.2, 200.0
PATIENCE = 60.0


# ---- a cluster -------------------------------------------------------------------------------------------------------


class Lab:
    """Agents on this machine, and the doors of their memory services by number."""

    def __init__(self, access: str, count: int) -> None:
        self.access = access
        self.session = ClusterMemory(access, "bench")
        deadline = time.monotonic() + PATIENCE
        while len(self.session.room()) < count:
            if time.monotonic() > deadline:
                raise SystemExit("the agents did not come")
            time.sleep(0.1)
        doors = [os.path.join(folder, SOCKET_NAME) for folder in folders_of(read(access).cluster)]
        self.tasks = {task.number: task for task in (Attached(socket_path, "bench") for socket_path in doors)}
        self.names = {number: place.name for number, place in self.session.nodes.items()}

    def close(self) -> None:
        for task in self.tasks.values():
            task.close()
        self.session.close()


@contextmanager
def cluster(count: int, *options: str) -> Iterator[Lab]:
    """So many agents, ended with the block."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as home:
        environment = {**os.environ, "SHOAL_HOME": home}
        words = ["cluster", "start", "bench", "--local", str(count), *options]
        subprocess.run([*SHOAL, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            lab = Lab(os.path.join(home, "clusters", "bench", "access.json"), count)
            try:
                yield lab
            finally:
                lab.close()
        finally:
            subprocess.run(
                [*SHOAL, "cluster", "stop", "bench"], env=environment, stdout=subprocess.DEVNULL, check=False
            )


def timed(deed: Callable[[], object]) -> float:
    """Seconds until it is done; letting go of what it returns is not part of it."""
    begin = time.perf_counter()
    result = deed()
    seconds = time.perf_counter() - begin
    del result
    return seconds


def rates(size: int, seconds: Sequence[float]) -> str:
    return " ".join(f"{size / each / MB:.0f}" for each in seconds)


# ---- local and remote ------------------------------------------------------------------------------------------------


def local(size: int, rounds: int) -> bool:
    memory = layer.local(str(2 * size))
    allocation = layer.alloc(size, os.urandom(MB) * (size // MB))
    gets = [timed(lambda: layer.get(allocation)) for _ in range(rounds)]
    copies = [timed(lambda: bytes(layer.get(allocation))) for _ in range(rounds)]
    memory.close()
    print(f"\nlocal get of {size // MB} MB: {1e6 * min(gets):.0f} us; with a copy {1e3 * min(copies):.1f} ms")
    return min(gets) * 20 < min(copies)


def plain_socket(size: int, *, reused: bool = False) -> float:
    """One `sendall` in another process, `recv_into` one buffer here: new memory, as a get returns it, or `reused`."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        connection, _ = listener.accept()
        data = bytearray(os.urandom(MB) * (size // MB))
        connection.sendall(b"x")
        connection.recv(1)
        connection.sendall(data)
        os._exit(0)
    with socket.create_connection(listener.getsockname()) as connection:
        connection.recv(1)

        before = bytearray(size if reused else 0)  # making it touches all its pages

        def take() -> None:
            connection.sendall(b"x")
            view, filled = memoryview(before if reused else bytearray(size)), 0
            while filled < size:
                filled += connection.recv_into(view[filled:])

        seconds = timed(take)
    listener.close()
    os.waitpid(child, 0)
    return seconds


def remote(size: int, rounds: int, *, encrypted: bool) -> float:
    """The ratio to a plain socket, of the best."""
    options = [] if encrypted else ["--agent=--data-plain"]
    with cluster(2, *options) as lab:
        here, there = sorted(lab.tasks)
        allocation = lab.tasks[there].alloc(size, spread="here", run="bench")
        lab.tasks[there].put(allocation, 0, os.urandom(MB) * (size // MB))
        assert lab.tasks[here].get(allocation, 0, 1000) == lab.tasks[there].get(allocation, 0, 1000)
        gets, plain, reused = [], [], []
        for _ in range(rounds):
            plain.append(plain_socket(size))
            reused.append(plain_socket(size, reused=True))
            gets.append(timed(lambda: lab.tasks[here].get(allocation, 0, size)))
    ratio, middle = min(plain) / min(gets), statistics.median(plain) / statistics.median(gets)
    print(f"\nremote get of {size // MB} MB between two agents, {'TLS 1.3' if encrypted else 'plain'}, MB/s")
    print(f"  plain socket, new memory     {rates(size, plain)}")
    print(f"  plain socket, reused memory  {rates(size, reused)}")
    print(f"  get                          {rates(size, gets)}")
    print(
        f"  ratio {ratio:.2f} of the best, {middle:.2f} of the medians; to reused memory {min(reused) / min(gets):.2f}"
    )
    return ratio


def overlap(size: int, rounds: int) -> None:
    """So many ranges from another node, each then computed with: fetched when needed, and fetched ahead."""

    def work(task: Attached, allocation: Allocation, *, early: bool) -> None:
        ranges = [(at, at + size // 10) for at in range(0, size, size // 10)]
        ahead = task.prefetch(allocation, ranges[:1]) if early else None
        for at, (begin, end) in enumerate(ranges):
            following = task.prefetch(allocation, ranges[at + 1 : at + 2]) if early and end < size else None
            hashlib.sha256(task.get(allocation, begin, end, ahead=ahead)).digest()
            ahead = following

    with cluster(2) as lab:
        here, there = sorted(lab.tasks)
        allocation = lab.tasks[there].alloc(size, spread="here", run="bench")
        late, soon = [], []
        for _ in range(rounds):
            late.append(timed(lambda: work(lab.tasks[here], allocation, early=False)))
            soon.append(timed(lambda: work(lab.tasks[here], allocation, early=True)))
    print(f"\noverlap: 10 ranges of {size // MB // 10} MB (TLS), each fetched and digested, s")
    gain = min(late) / min(soon)
    print(f"  one after the other {min(late):.2f}, fetched ahead {min(soon):.2f}: {gain:.2f} times as fast")


# ---- placement -------------------------------------------------------------------------------------------------------


def steps(workload: str, blocks: int) -> Iterator[tuple[list[tuple[str, int]], str, int]]:
    """Tasks as the blocks that they read, by matrix and number, and the one that they write."""
    for i in range(blocks):
        for k in range(blocks):
            if workload == "times vector":  # y[i] += A[i,k] x[k]
                yield [("A", i * blocks + k), ("x", k), ("y", i)], "y", i
                continue
            for j in range(blocks):  # C[i,j] += A[i,k] B[k,j]
                yield [("A", i * blocks + k), ("B", k * blocks + j), ("C", i * blocks + j)], "C", i * blocks + j


def moved_by(lab: Lab, workload: str, blocks: int, edge: int, *, seed: int | None, replicas: int = 1) -> int:
    """Bytes that travel between agents; without a seed every task goes where most of its bytes are.

    Matrices lie by rows of blocks, each in four equal shares. `replicas` are those of B, or of x; what it takes to
    write these counts as well.
    """
    block, strip = 8 * edge * edge, 8 * edge
    sizes = {"A": block * blocks * blocks}
    sizes |= (
        {"x": strip * blocks, "y": strip * blocks} if workload == "times vector" else {"B": sizes["A"], "C": sizes["A"]}
    )
    of = {"x": strip, "y": strip}
    many = {"B": replicas, "x": replicas}
    made = {name: lab.session.alloc(size, replicas=many.get(name, 1), run="bench") for name, size in sizes.items()}
    parts = {name: lab.session.partition(each) for name, each in made.items()}
    moved = sum((many.get(name, 1) - 1) * size for name, size in sizes.items())
    numbers = {name: number for number, name in lab.names.items()}
    draw = random.Random(seed)
    for reads, target, at in steps(workload, blocks):
        held = dict.fromkeys(sorted(numbers), 0)
        total = 0
        for name, number in [*reads, (target, at)]:
            length = of.get(name, block)
            total += length
            for host, amount in bytes_held(parts[name], [(number * length, (number + 1) * length)]).items():
                held[host] += amount
        chosen = draw.choice(sorted(numbers)) if seed is not None else ranked(held)[0]
        moved += total - held[chosen]
        task = lab.tasks[numbers[chosen]]
        for name, number in reads:
            length = of.get(name, block)
            task.get(made[name], number * length, (number + 1) * length)
        length = of.get(target, block)
        task.put(made[target], at * length, bytes(length))
    for each in made.values():
        lab.session.free(each)
    return moved


def placement(blocks: int, edge: int) -> bool:
    """Matrix times vector, and matrix times matrix with the second on all nodes (and, to compare, spread)."""
    kept = True
    with cluster(4, "--agent=--cores=1") as lab:
        print(f"\nplacement: {blocks} x {blocks} blocks of {8 * edge * edge >> 10} KiB over 4 agents, bytes moved")
        for workload, replicas, counts in (
            ("times vector", 1, True),
            ("times matrix", 4, True),
            ("times matrix", 1, False),
        ):
            near = moved_by(lab, workload, blocks, edge, seed=None, replicas=replicas)
            far = statistics.mean(moved_by(lab, workload, blocks, edge, seed=seed, replicas=1) for seed in range(2))
            kept = kept and (near <= MOVED_MOST * far or not counts)
            name = f"{workload}, {'second on all nodes' if replicas > 1 else 'all spread'}"
            print(f"  {name:<35} {near / MB:6.1f} MB against {far / MB:6.1f} at random: {100 * near / far:.0f} %")
    return kept


# ---- the mount -------------------------------------------------------------------------------------------------------


def mount(size: int, rounds: int) -> bool:
    memory = layer.local(str(3 * size))
    layer.alloc(size, name="object")
    kept = True
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        process = subprocess.Popen([*SHOAL, "mount", name, "--run", memory.run])
        try:
            while not folder.is_mount():
                if process.poll() is not None:
                    raise SystemExit("there is no mount")
                time.sleep(0.05)
            count = str(size // MB)
            ways = {
                "write in place": ["if=/dev/zero", f"of={name}/object", "conv=notrunc"],
                "read": [f"if={name}/object", "of=/dev/null"],
                "write anew": ["if=/dev/zero", f"of={name}/new"],
            }
            print(f"\nmount: dd of {size // MB} MB with bs=1M, MB/s")
            for way, words in ways.items():
                command = ["dd", *words, "bs=1MB", f"count={count}", "status=none"]
                seconds = [timed(partial(subprocess.run, command, check=True)) for _ in range(rounds)]
                print(f"  {way:<15} {rates(size, seconds)}")
                kept = kept and size / statistics.median(seconds) / MB >= MOUNT_LEAST
        finally:
            subprocess.run(["fusermount3", "-u", name], check=False)
            process.wait()
    memory.close()
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["local", "remote", "overlap", "placement", "mount"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--mount-megabytes", type=int, default=1000)
    options = parser.parse_args()
    size, kept = options.megabytes * MB, True
    if "local" in options.what:
        kept = local(size, options.rounds) and kept
    if "remote" in options.what:
        kept = remote(size, options.rounds, encrypted=False) >= REMOTE_LEAST and kept
        remote(size, options.rounds, encrypted=True)
    if "overlap" in options.what:
        overlap(size, options.rounds)
    if "placement" in options.what:
        kept = placement(8, 96) and kept
    if "mount" in options.what:
        kept = mount(options.mount_megabytes * MB, max(2, options.rounds // 2)) and kept
    print(f"\nload {os.getloadavg()[0]:.1f}; {'all promises kept' if kept else 'NOT all promises kept'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
