"""Both bounds at the paper's largest scale: seconds, peak memory, and what the readings say beside the paper.

`python bench/bound.py [CORES]` writes bench/results/bound.md, with 1,000 tasks per core. Each row is a process of its
own, one after the other, so that its peak is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from shoal.sim.lower_bound import Capacity
from shoal.sim.matrix_bound import CHUNK, READINGS, SHAPES, DrawnColumns, streamed_paper_bound, streamed_tally
from shoal.sim.workloads.matrix import uniform

CORES = 131_072
TASKS_PER_CORE = 1000
DEGREE = 10
SEED = 1
PLACES = 77
"""The stream of draws that says where tasks are hashed to."""
PAPER = {"bag": "2.33", "pipeline": "1.85", "fan-out": "1.16", "fan-in": "0.852"}
"""Million tasks per second in the paper's Figure 12."""
RESULTS = Path(__file__).parent / "results" / "bound.md"


def measure(shape: str, cores: int) -> str:
    """One row: what the bounds say, and what they cost."""
    tasks, source = TASKS_PER_CORE * cores, DrawnColumns(SEED)
    begun = time.perf_counter()
    known = streamed_tally(shape, tasks, DEGREE, source)
    bound = known.bound(Capacity(cores))
    lower_seconds = time.perf_counter() - begun
    cells = [shape, f"{tasks:,}", f"{bound.seconds:.3f}", bound.decides, f"{bound.throughput / 1e6:.3f}"]
    paper_seconds = 0.0
    for reading in READINGS:
        begun = time.perf_counter()
        found = streamed_paper_bound(shape, DEGREE, source, known, cores, reading)
        paper_seconds = max(paper_seconds, time.perf_counter() - begun)
        cells.append(f"{found.seconds:.2f} s, {found.throughput / 1e6:.3f}")
    cells.append(PAPER[shape])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row([*cells, f"{lower_seconds:.1f}", f"{paper_seconds:.1f}", f"{peak:,.0f}"])


def hashed(shape: str, cores: int, cores_per_place: int) -> str:
    """Whole pipes, or single tasks of a bag, put on places at random and never moved; the fullest place ends last."""
    unit = DEGREE if shape == "pipeline" else 1
    tasks, source = TASKS_PER_CORE * cores, DrawnColumns(SEED)
    load = np.zeros(cores // cores_per_place)
    piece = CHUNK // unit * unit
    for first in range(0, tasks, piece):
        seconds = source.seconds(first, min(piece, tasks - first)).reshape(-1, unit).sum(axis=1)
        place = (uniform(SEED, PLACES, len(seconds), first // unit) * len(load)).astype(np.int64)
        load += np.bincount(place, seconds, len(load))
    makespan = float(load.max()) / cores_per_place
    where = "cores" if cores_per_place == 1 else f"nodes of {cores_per_place} cores"
    return row([shape, where, f"{makespan:.2f} s", f"{tasks / makespan / 1e6:.3f}", PAPER[shape]])


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def apart(*words: str) -> str:
    """What this program prints when it is called with these words."""
    done = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def report(cores: int) -> str:
    heads = ["graph", "tasks", "lower bound, s", "decides", "M tasks/s at most"]
    heads += [*READINGS, "paper", "s for the lower bound", "s for one reading", "peak MiB"]
    lines = [
        "# Bounds at scale",
        "",
        f"{cores:,} cores, lengths to 100 ms, outputs to 10 MB, degree {DEGREE}, 10 Gb/s. `python bench/bound.py`",
        "makes these tables. Columns of readings: makespan, million tasks per second. Paper: its Figure 12.",
        "",
        row(heads),
        "|---" * len(heads) + "|",
        *(apart("measure", shape, str(cores)) for shape in SHAPES),
        "",
        "Not the paper's programme, but near its numbers: tasks hashed to a place each, where they stay.",
        "",
        row(["graph", "hashed to", "makespan", "M tasks/s", "paper"]),
        "|---" * 5 + "|",
        *(apart("hashed", shape, str(cores), width) for shape in ("bag", "pipeline") for width in ("2", "1")),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", shape, cores]:
            print(measure(shape, int(cores)))
        case ["hashed", shape, cores, width]:
            print(hashed(shape, int(cores), int(width)))
        case words:
            RESULTS.write_text(report(int(words[0]) if words else CORES))
            print(RESULTS.read_text(), end="")
