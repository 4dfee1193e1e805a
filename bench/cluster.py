"""Commands that do nothing on two agents of this machine: against the local engine and HyperQueue, in one run.

`python bench/cluster.py [--tasks 5000] [--rounds 3]`. Two agents with one core each, books in Redis (started here, with
an append-only file) and with the head; the local engine on two cores; HyperQueue with one worker of two cores, warm, as
in `processes`. Rounds are interleaved and the best of each counts. Shoal's seconds are those of the whole command: its
start, reading the file, bringing the run and writing the ledger included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from install import Workshop
from workloads import independent, write_needs, write_rules

from support.clusters import NAME, LocalCluster, local_cluster
from support.command import SHOAL
from support.redis_servers import one_server

RESULTS = Path(__file__).parent / "results" / "cluster.md"
LOCAL, REDIS, HEAD, PEER = "local engine, 2 cores", "two agents, Redis", "two agents, head", "HyperQueue"


def timed(words: list[str], where: Path, cluster: LocalCluster) -> float:
    begin = time.monotonic()
    done = subprocess.run(words, cwd=where, env=cluster.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    shape = independent(arguments.tasks)
    seconds: dict[str, list[float]] = {LOCAL: [], REDIS: [], HEAD: [], PEER: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(one_server(folder))
        clusters = {
            REDIS: stack.enter_context(local_cluster(folder / "redis", 2, "--redis", server.address)),
            HEAD: stack.enter_context(local_cluster(folder / "head", 2)),
        }
        shop = Workshop(Path(__file__).resolve().parents[1] / ".bench")
        python, missing = shop.environment("hyperqueue")
        for number in range(arguments.rounds):
            for name in seconds:
                where = folder / f"{number} {name}"
                where.mkdir()
                if name == PEER:
                    if missing:
                        continue
                    write_needs(shape, where / "needs")
                    command = shop.isolated([str(python), str(shop.bench / "peers" / "hq_run.py"), "needs"])
                    ran = subprocess.run(command, cwd=where, capture_output=True, text=True)
                    seconds[name].append(float(json.loads(ran.stdout.splitlines()[-1])["seconds"]))
                    continue
                write_rules(shape, where / "flow.py")
                more = ["--jobs", "2"] if name == LOCAL else ["--cluster", NAME]
                cluster = clusters.get(name, clusters[HEAD])
                seconds[name].append(timed([*SHOAL, "run", "flow.py", "all", "--quiet", *more], where, cluster))
                print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    lines = [
        f"{arguments.tasks:,} times /bin/true, best of {arguments.rounds} interleaved rounds",
        "",
        "| | seconds | tasks/s | of the local engine | of HyperQueue |",
        "|---|---:|---:|---:|---:|",
    ]
    local, peer = min(seconds[LOCAL]), min(seconds[PEER], default=0.0)
    for name, each in seconds.items():
        if each:
            best = min(each)
            beside = f"{peer / best:.1f}" if peer else ""
            lines.append(f"| {name} | {best:.2f} | {arguments.tasks / best:,.0f} | {local / best:.2f} | {beside} |")
    print("\n".join(lines))
    RESULTS.write_text("# Commands on two agents\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
