"""The store in Redis: how long a million tasks take to bring, how large they are, and how many results a second count.

`python bench/store.py [--tasks N] [--complete N] [--cluster]` starts a server of its own (or three masters), without
waiting for the disk, and writes a table to stdout. Every task has three children and a file for each, as in the
measurement with which `complete` is compared: a bare script that only counts children down. Of three rounds the best
counts, as in the other benchmarks; the median stands beside it. The promises: brought in
60 s, 1 KiB per task, 20,000 results a second in batches; the exit status is 1 if one of them is not kept.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import redis

from shoal.cluster.stores.redis import RedisLink, RedisStore, key_of
from shoal.core.store.memory import MemoryStore
from shoal.core.work import Work
from shoal.sim.workloads.matrix import fan_out

DEGREE = 3
PATIENCE = 30.0
ROUNDS = 3
BARE = {1: "11,000 to 23,000", 10: "110,000", 100: "190,000"}
"""Results a second of the bare script, by batch."""
MOST_SECONDS, MOST_BYTES, LEAST_RATE = 60.0, 1024.0, 20_000.0
MILLION = 1_000_000


def free_port() -> int:
    """In cluster mode the port 10,000 above is used as well."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            if (port := int(one.getsockname()[1])) < 55_000:
                return port


def start(folder: Path, stack: ExitStack, cluster: bool) -> int:
    """A server; returns its port."""
    folder.mkdir()
    port = free_port()
    words = ["redis-server", "--port", str(port), "--dir", str(folder), "--save", "", "--logfile", str(folder / "log")]
    process = subprocess.Popen([*words, *(["--cluster-enabled", "yes"] if cluster else ["--appendonly", "yes"])])
    stack.callback(process.wait)
    stack.callback(process.kill)
    _wait_for(port, lambda client: bool(client.ping()))
    return port


def _wait_for(port: int, condition: Callable[[redis.Redis], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    with redis.Redis(port=port) as client:
        while time.monotonic() < deadline:
            try:
                if condition(client):
                    return
            except redis.RedisError:
                pass
            time.sleep(0.05)
    raise SystemExit(f"the server at port {port} is not ready")


def _is_whole(client: redis.Redis) -> bool:
    return bool(client.cluster("INFO")["cluster_state"] == "ok")


def addresses(folder: Path, stack: ExitStack, cluster: bool) -> list[str]:
    ports = [start(folder / name, stack, cluster) for name in ("abc" if cluster else "a")]
    if cluster:
        places = [f"127.0.0.1:{port}" for port in ports]
        made = ["redis-cli", "--cluster", "create", *places, "--cluster-yes"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        for port in ports:
            _wait_for(port, _is_whole)
    return [f"redis://127.0.0.1:{port}" for port in ports]


def bring(places: list[str], work: Work) -> tuple[RedisStore, float, float]:
    """The store, the seconds that it took to fill, and bytes per task."""
    link = RedisLink(places, key_of("bench", "rows"))
    before = int(link.info("memory")["used_memory"])
    begun = time.perf_counter()
    store = RedisStore.bring(link, "bench", work, 1)
    seconds = time.perf_counter() - begun
    return store, seconds, (int(link.info("memory")["used_memory"]) - before) / len(work)


def completed(store: RedisStore | MemoryStore, amount: int, batch: int) -> float:
    """Results a second, from the top of the tree down."""
    queue = deque(ticket.task for ticket in store.begin().tickets)
    done = 0
    begun = time.perf_counter()
    while done < amount and queue:
        ended = [(queue.popleft(), 1) for _ in range(min(batch, len(queue)))]
        accepted, placeable = store.complete(0, ended)
        queue.extend(ticket.task for ticket in placeable.tickets)
        done += len(accepted)
    return done / (time.perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=MILLION)
    parser.add_argument("--complete", type=int, default=50_000)
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    work = fan_out(1, options.tasks, degree=DEGREE)
    rates: dict[int, list[float]] = {batch: [] for batch in BARE}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        places = addresses(Path(folder), stack, options.cluster)
        for _ in range(ROUNDS):
            for batch in BARE:
                store, seconds, size = bring(places, work)
                rates[batch].append(completed(store, options.complete, batch))
                store.forget()
                store.close()
    print(f"{options.tasks:,} tasks brought in {seconds:.1f} s, {size:.0f} bytes each in the server\n")
    print("| results at a time | a second, best | median | the bare script | in memory |\n|---:|---:|---:|---:|---:|")
    for batch, found in rates.items():
        beside = completed(MemoryStore(work, 1), options.complete, batch)
        print(f"| {batch} | {max(found):,.0f} | {median(found):,.0f} | {BARE[batch]} | {beside:,.0f} |")
    kept = seconds * MILLION <= MOST_SECONDS * max(options.tasks, MILLION) and size <= MOST_BYTES
    return 0 if kept and max(map(max, rates.values())) >= LEAST_RATE else 1


if __name__ == "__main__":
    sys.exit(main())
