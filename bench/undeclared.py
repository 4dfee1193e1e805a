"""Tasks that declare no memory against the same tasks with perfect declarations, on a node limited to 4 GB.

    python bench/undeclared.py [--tasks 2000] [--seed 1]

Each task holds a known amount of memory for a known time. Prints wall times, their ratio, retries, and how many
processes the kernel's own out-of-memory killer ended (by /proc/vmstat; those inside a task's own limit count as ours).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOG = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = (size_t)(argc > 1 ? atoi(argv[1]) : 1) << 20;
    char *held = malloc(size);
    if (!held) return 1;
    memset(held, 1, size);
    usleep(argc > 2 ? (useconds_t)atoi(argv[2]) * 1000 : 0);
    return held[size / 2] - 1;
}
"""
NODE = "4G"
JOBS = 16


def draw_tasks(count: int, seed: int) -> list[tuple[int, int]]:
    """Megabytes and milliseconds: most tasks are small, some large, and the larger ones take longer."""
    draw = random.Random(seed)
    tasks = []
    for _ in range(count):
        megabytes = int(min(1500, max(20, draw.lognormvariate(4.5, 0.9))))
        tasks.append((megabytes, int(draw.uniform(50, 150) + megabytes / 10)))
    return tasks


def write_workflow(directory: Path, tasks: list[tuple[int, int]], declared: bool) -> None:
    lines = []
    for number, (megabytes, milliseconds) in enumerate(tasks):
        lines.append(f"t{number}:")
        if declared:
            lines.append(f"MEMORY={megabytes + 4}")
        lines.append(f"\t./hog {megabytes} {milliseconds} && touch t{number}")
    (directory / "Makeflow").write_text("\n".join(lines) + "\n")


def run(shoal: str, directory: Path) -> tuple[float, int]:
    """Seconds, and how many attempts were repeated."""
    began = time.monotonic()
    subprocess.run([shoal, "run", "Makeflow", f"-j{JOBS}", "--memory", NODE, "--quiet"], cwd=directory, check=True)
    seconds = time.monotonic() - began
    status = subprocess.run(
        [shoal, "status", "Makeflow", "--categories", "--json"], cwd=directory, check=True, capture_output=True
    )
    return seconds, sum(category["retries"] for category in json.loads(status.stdout))


def kills_by_kernel() -> int:
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    shoal = os.path.join(os.path.dirname(sys.executable), "shoal")
    tasks = draw_tasks(arguments.tasks, arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        results = {}
        for kind in ("declared", "undeclared"):
            directory = Path(name) / kind
            directory.mkdir()
            (directory / "hog.c").write_text(HOG)
            subprocess.run(["cc", "-O2", "-o", "hog", "hog.c"], cwd=directory, check=True)
            write_workflow(directory, tasks, kind == "declared")
            before = kills_by_kernel()
            seconds, retries = run(shoal, directory)
            results[kind] = seconds
            print(
                f"{kind:>10}: {seconds:6.1f} s, {retries} attempts repeated, {kills_by_kernel() - before} kernel kills"
            )
    print(f"undeclared takes {results['undeclared'] / results['declared']:.2f} of the time with perfect declarations")


if __name__ == "__main__":
    main()
