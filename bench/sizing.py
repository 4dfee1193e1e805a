"""Sizing in simulation: throughput of our modes beside Work Queue's and hindsight, and what a decision costs.

`python bench/sizing.py [TASKS [SEEDS]]` prints a table in Markdown. Nothing is run, so the numbers do not depend on the
machine, except those of the last table.
"""

from __future__ import annotations

import sys
import time
from random import Random

from shoal.core.policies.sizing.sizer import Sizer
from shoal.sim.sizing_replay import FAMILIES, FAMILY_NODE, ReplaySetting, generate

MODES = ("max-throughput", "min-waste", "wq-max-throughput", "wq-min-waste", "wq-det-greedy", "wq-det-exhaustive")
HINDSIGHT = ("best-single", "best-chain", "no-retry")
WORKERS = 10


def throughputs(tasks: int, seeds: int) -> None:
    """Throughput of every mode as a share of that with perfect sizes."""
    print(f"Share of the throughput with perfect sizes; {tasks} tasks, {WORKERS} nodes, mean of {seeds} seeds.\n")
    print("| family | " + " | ".join((*MODES, *HINDSIGHT)) + " |")
    print("|---" * (1 + len(MODES) + len(HINDSIGHT)) + "|")
    for family in FAMILIES:
        shares = dict.fromkeys((*MODES, *HINDSIGHT), 0.0)
        for seed in range(1, seeds + 1):
            setting = ReplaySetting(generate(family, tasks, seed), FAMILY_NODE, WORKERS)
            perfect = setting.run("perfect").throughput
            for mode in shares:
                shares[mode] += setting.run(mode).throughput / perfect / seeds
        print(f"| {family} | " + " | ".join(f"{share:.3f}" for share in shares.values()) + " |")


def decisions(tasks: int) -> None:
    """Processor time per task that is sized, told of, and now and then sized again."""
    print("\n| family | microseconds per task | cells |\n|---|---|---|")
    for family in FAMILIES:
        trace = generate(family, tasks, Random(1).randrange(100))
        sizer = Sizer(FAMILY_NODE)
        begun = time.process_time()
        for peak, seconds in zip(trace.peaks, trace.times, strict=True):
            tried: list[float] = []
            while (size := sizer.ask(tried)) < peak:
                sizer.observe(size, seconds, size, tuple(tried))
                tried.append(size)
            sizer.observe(peak, seconds, tried=tuple(tried), size=size)
        spent = time.process_time() - begun
        print(f"| {family} | {spent / tasks * 1e6:.1f} | {len(sizer.known.order)} |")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    throughputs(*(numbers + [2000, 3][len(numbers) :]))
    decisions(20_000)
