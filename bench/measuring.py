"""What measuring costs: many `/bin/true` with measurement on and off, turn by turn in one run.

    python bench/measuring.py [--tasks 10000] [--rounds 3] [--jobs 2]

Prints the best time of each kind and the ratio of their throughputs, and both beside the C loop that does nothing but
start and wait; its tasks have an argument, too, because GNU's `true` reads its locale only if it has one.
`SHOAL_MEASURE=off` leaves only what `wait4` tells. Exit status 1 if measuring costs more than a twentieth.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = "/bin/true"
BAR = 0.95


def write_workflow(directory: Path, tasks: int) -> None:
    (directory / "Makeflow").write_text("".join(f":\n\t{PROGRAM} {number}\n" for number in range(tasks)))


def seconds_of(words: list[str], directory: Path, measure: str) -> float:
    """How long a command takes that must succeed."""
    environment = {**os.environ, "SHOAL_MEASURE": measure}
    begun = time.monotonic()
    subprocess.run(words, cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    run = [sys.executable, "-m", "shoal", "run", "Makeflow", "--jobs", options.jobs, "--quiet", "--force"]
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        write_workflow(directory, options.tasks)
        subprocess.run(["cc", "-O2", "-o", made + "/floor", str(Path(__file__).parent / "floor.c")], check=True)
        contestants = {
            "C loop": [made + "/floor", str(options.tasks), options.jobs, PROGRAM, "0"],
            "measured": run,
            "not measured": run,
        }
        for _ in range(options.rounds):
            for name, words in contestants.items():
                took = seconds_of(words, directory, "off" if name == "not measured" else "on")
                best[name] = min(took, best.get(name, took))
    for name, took in best.items():
        share = best["C loop"] / took
        print(f"{name:13} {took:6.2f} s  {options.tasks / took:7.0f} tasks/s  {share:.2f} of the C loop")
    ratio = best["not measured"] / best["measured"]
    print(f"throughput with measurement is {ratio:.3f} of that without (bar: {BAR})")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
