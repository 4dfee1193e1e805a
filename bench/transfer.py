"""The depot's transfers: one large object and many small ones between two processes over loopback.

`python bench/transfer.py [--quick] [--rounds N] [--directory DIR]` prints a table. Beside it, in the same run and in
turn with it, a plain copy: a process that sends a file with `sendfile` and one that takes it with `recv_into` and
`write`, without checksum, proof or cache; and iperf3, which touches no file, where that is installed. Ratios are those
of the medians to the plain copy's, and of the best rounds. The promises: a large object at 0.7 of the plain copy, 1,000
of 1 MB at 0.5 (both without encryption, whose cost stands in the table); the exit status is 1 if one is not kept,
except with `--quick`, which is over too soon to judge. The wall clock on a shared machine is noisy and the disk more
so: the processor time of both sides is given as well. Nothing is written to results.

Every way finds the same state: the files read once, nothing left to be written to the disk, and as much free memory as
it will fill just used and given back. On a virtual machine the last makes most of the difference: memory that was free
for two seconds goes back to the host, and getting a gigabyte of it again costs up to 2.5 s of processor time, ten times
what it takes to write that much. And nothing is deleted before the end: for each file it makes ext4 passes over every
inode that was deleted in the last minutes, one by one, which cost more than the transfer of 1 MB after a few rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoal.data.cache import Cache
from shoal.data.fetch import Fetcher
from shoal.data.listener import DataListener, Lender, ObjectServer
from shoal.data.shelf import ObjectDescription
from shoal.data.transfer_messages import DataGrant

MB = 1_000_000
BUFFER_BYTES = 1 << 20
PATIENCE = 600.0
LEAST = {"one large object": 0.7, "many small objects": 0.5}

Sample = tuple[float, float]
"""Seconds by the clock, and of processors on both sides."""


def make_files(folder: Path, count: int, size: int) -> list[Path]:
    """Files of random bytes; one block of them over and over is enough, as nothing here compresses."""
    folder.mkdir()
    block = secrets.token_bytes(MB)
    paths = []
    for number in range(count):
        path = folder / f"{number:04}"
        with path.open("wb") as file:
            for _ in range(size // MB):
                file.write(block)
        paths.append(path)
    return paths


def warm(folder: Path, total: int) -> None:
    """Has as much memory at hand as the files that are to be written will take."""
    block = bytes(MB)
    path = folder / "warm"
    with path.open("wb", buffering=0) as file:
        for _ in range(total // MB):
            file.write(block)
    path.unlink()


def empty(folder: Path) -> None:
    """Gives back the space of all files below, and keeps the files."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            os.truncate(path, 0)


def beside(work: Callable[[int], None], use: Callable[[int], None]) -> Sample:
    """Runs `work` in a child and, when that has told its port, `use` here with it; times `use` and adds the child's."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            work(theirs.fileno())
        finally:
            os._exit(0)
    theirs.close()
    port = int.from_bytes(os.read(ours.fileno(), 2))
    before_cpu = time.process_time()
    before_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        begin = time.perf_counter()
        use(port)
        seconds = time.perf_counter() - begin
        cpu = time.process_time() - before_cpu
    finally:
        ours.close()
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu += after.ru_utime + after.ru_stime - before_children.ru_utime - before_children.ru_stime
    return seconds, cpu


def plain_copy(paths: list[Path], target: Path) -> Sample:
    """The same files through one connection, each after the other, without ado."""
    listener = socket.create_server(("127.0.0.1", 0))
    sizes = [path.stat().st_size for path in paths]

    def send(pipe: int) -> None:
        os.write(pipe, listener.getsockname()[1].to_bytes(2))
        connection, _ = listener.accept()
        for path, size in zip(paths, sizes, strict=True):
            with path.open("rb") as file:
                offset = 0
                while offset < size:
                    offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)
        connection.close()

    def take(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            view = memoryview(bytearray(BUFFER_BYTES))
            for path, size in zip(paths, sizes, strict=True):
                with (target / path.name).open("wb", buffering=0) as file:
                    while size:
                        got = connection.recv_into(view[: min(size, BUFFER_BYTES)])
                        file.write(view[:got])
                        size -= got

    try:
        return beside(send, take)
    finally:
        listener.close()


def depot(lender: Lender, offered: list[ObjectDescription], target: Path, encrypted: bool) -> Sample:
    """The same through server and fetcher; what is offered has been described before, as a task's output has."""
    token = secrets.token_bytes(32)
    cache = Cache(str(target / "cache"))

    def serve(pipe: int) -> None:
        listener = DataListener(token, encrypted=encrypted)
        ObjectServer(lender, listener)
        os.write(pipe, listener.port.to_bytes(2))
        os.read(pipe, 1)
        listener.close()

    def fetch(port: int) -> None:
        grant = DataGrant("127.0.0.1", port, token, encrypted)
        fetcher = Fetcher(cache)
        poll = select.poll()
        poll.register(fetcher.fd(), select.POLLIN)
        for about in offered:
            fetcher.fetch(about.name, [grant], about.size, about.checksum)
        left = len(offered)
        while left:
            if not poll.poll(PATIENCE * 1000):
                raise SystemExit("the fetch stands still")
            for result in fetcher.finished():
                if result.description is None:
                    raise SystemExit(f"{result.name} did not come: {result.troubles}")
                left -= 1
        fetcher.close()

    try:
        return beside(serve, fetch)
    finally:
        cache.close()


def iperf(megabytes: int) -> Sample | None:
    """iperf3 over loopback, if it is installed."""
    if shutil.which("iperf3") is None:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port, "--forceflush"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        while "listening" not in server.stdout.readline():
            pass
        words = ["iperf3", "-c", "127.0.0.1", "-p", port, "-n", f"{megabytes * MB}", "-J"]
        answer = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    finally:
        server.kill()
        server.wait()
    received = answer["end"]["sum_received"]
    return megabytes * MB * 8 / received["bits_per_second"], 0.0


def measure(title: str, paths: list[Path], folder: Path, rounds: int) -> bool:
    """One table; whether its promise is kept."""
    total = sum(path.stat().st_size for path in paths)
    lender = Lender()
    offered = [lender.lend(str(path), path.name) for path in paths]
    ways: dict[str, Callable[[Path], Sample | None]] = {
        "plain copy": lambda target: plain_copy(paths, target),
        "depot, plain": lambda target: depot(lender, offered, target, False),
        "depot, encrypted": lambda target: depot(lender, offered, target, True),
        "iperf3 (no files)": lambda target: iperf(total // MB),
    }
    samples: dict[str, list[Sample]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, run in ways.items():
            target = folder / f"{len(paths)} {way} {number}"
            target.mkdir()
            os.sync()  # one way's writes must not be another's burden
            warm(folder, total)
            if (sample := run(target)) is not None:
                samples[way].append(sample)
            empty(target)
    print(f"\n{title}: {len(paths)} x {total // len(paths) / MB:g} MB, median of {rounds}")
    print(f"{'way':<20} {'MB/s':>8} {'ratio':>6} {'of best':>8} {'CPU s/GB':>9}   all rounds, MB/s")
    best = min(samples["plain copy"])[0]
    base = statistics.median(seconds for seconds, _ in samples["plain copy"])
    for way, got in samples.items():
        if not got:
            print(f"{way:<20} not installed")
            continue
        seconds = statistics.median(seconds for seconds, _ in got)
        cpu = statistics.median(cpu for _, cpu in got) / total * 1e9
        each = " ".join(f"{total / MB / seconds:.0f}" for seconds, _ in got)
        print(
            f"{way:<20} {total / MB / seconds:8.0f} {base / seconds:6.2f} {best / min(got)[0]:8.2f} {cpu:9.2f}   {each}"
        )
    return base / statistics.median(seconds for seconds, _ in samples["depot, plain"]) >= LEAST[title]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 MB and 100 objects instead of 1 GB and 1,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the files are; a temporary folder if not given")
    options = parser.parse_args()
    scale = 1 if options.quick else 10
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        large = make_files(folder / "large", 1, 100 * scale * MB)
        kept = measure("one large object", large, folder, options.rounds)
        large[0].unlink()
        small = make_files(folder / "small", 100 * scale, MB)
        kept = measure("many small objects", small, folder, options.rounds) and kept
    return 0 if kept or options.quick else 1


if __name__ == "__main__":
    sys.exit(main())
