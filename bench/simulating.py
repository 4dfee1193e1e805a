"""How quickly the simulator plays: the real members and store, on the workloads that the goals name.

`python bench/simulating.py [--quick]` prints a table and writes it to bench/results/simulating.md. Each case runs in a
process of its own, so that its peak memory is its own; the time includes making the workload and the cluster.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

CASES = [
    ("bag of tasks with stealing", "bag:tasks=2000000", 1_000, "at least 20,000 tasks/s"),
    ("ten thousand nodes", "bag:tasks=1000000", 10_000, "at most 60 s and 4 GiB"),
    ("pipelines with files", "pipeline:tasks=200000", 100, ""),
    ("fan-out with files", "fan-out:tasks=200000", 100, ""),
]
RESULTS = Path(__file__).parent / "results" / "simulating.md"


def play(workload: str, nodes: int) -> str:
    """One case, as a row of numbers."""
    from shoal.sim.cluster.run import ClusterRun
    from shoal.sim.cluster.specification import ClusterSpec
    from shoal.sim.workloads.registry import make_workload

    begin = time.perf_counter()
    work = make_workload(workload, 1)
    run = ClusterRun(work, ClusterSpec(nodes=nodes))
    ready = time.perf_counter()
    played = run.execute()
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = played.tasks / (end - ready)
    return f"{end - begin:.1f} | {ready - begin:.1f} | {rate:,.0f} | {peak:,.0f} | {played.utilisation:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the tasks and a tenth of the nodes")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = CASES
    if arguments.quick:
        cases = [(name, _smaller(workload), max(2, nodes // 10), "") for name, workload, nodes, _ in CASES]
    if arguments.case is not None:
        print(play(cases[arguments.case][1], cases[arguments.case][2]))
        return
    lines = [
        "| case | workload | nodes | s in all | s to set up | tasks/s | MiB | utilisation | goal |",
        "|---" * 9 + "|",
    ]
    for number, (name, workload, nodes, goal) in enumerate(cases):
        command = [sys.executable, __file__, "--case", str(number), *(["--quick"] if arguments.quick else [])]
        row = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        lines.append(f"| {name} | `{workload}` | {nodes:,} | {row} | {goal} |")
        print(lines[-1], flush=True)
    if not arguments.quick:
        RESULTS.write_text("# The simulator's speed\n\n" + "\n".join(lines) + "\n")


def _smaller(workload: str) -> str:
    name, tasks = workload.split("=")
    return f"{name}={int(tasks) // 100}"


if __name__ == "__main__":
    main()
