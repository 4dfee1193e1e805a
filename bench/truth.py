"""Predictions held against real runs: five workflows, predicted at full size from the ledger of a run of half the size.

`python bench/truth.py [--repeats N] [--names NAME...]` runs each pair on two cores, in a temporary directory; if it is
asked for all of them it writes `bench/results/truth.md`. Each repeat is a run of half the size, the prediction, and a
run of the full size. Tasks declare what they need, so that nothing is learned of sizes between the two runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from machine import processor

CORES = 2
ALLOWED = 0.10
REPEATS = 5
RESULTS = Path(__file__).parent / "results" / "truth.md"
HEAD = "CATEGORY={}\nCORES=1\nMEMORY=64\nDISK=64\n"


def sleeping(tasks: int) -> str:
    """Independent tasks that wait, 0.1 to 0.3 s each."""
    rules = [f"s{i}:\n\tsleep 0.{10 + i % 5 * 5}; touch s{i}\n" for i in range(tasks)]
    return HEAD.format("wait") + "\n".join(rules)


def computing(tasks: int) -> str:
    """Independent tasks that count."""
    rules = []
    for i in range(tasks):
        rounds = 1_000_000 + 250_000 * (i % 5)
        rules.append(f"c{i}:\n\tawk 'BEGIN {{for (i = 0; i < {rounds}; i++) s += i; print s}}' > c{i}\n")
    return HEAD.format("count") + "\n".join(rules)


def writing(tasks: int) -> str:
    """Independent tasks that write 1 MB to the disk in 16 pieces, and wait each time until it is there.

    All of it is small enough for disks that slow down when a burst of some hundred megabytes is over.
    """
    write = "dd if=/dev/zero of={0} bs=64k count=16 oflag=dsync 2> /dev/null"
    return HEAD.format("write") + "\n".join(f"w{i}:\n\t{write.format(f'w{i}')}\n" for i in range(tasks))


def chain(tasks: int) -> str:
    """Each task waits for the one before it."""
    rules = ["k0:\n\tsleep 0.05; date > k0\n"]
    rules += [f"k{i}: k{i - 1}\n\tsleep 0.05; cp k{i - 1} k{i}\n" for i in range(1, tasks)]
    return HEAD.format("link") + "\n".join(rules)


def fan(tasks: int) -> str:
    """One task, many that read what it made, and one that reads what all of these made."""
    rules = ["seed:\n\tsleep 0.5; date > seed\n", HEAD.format("branch")]
    rules += [f"b{i}: seed\n\tsleep 0.{10 + i % 3 * 5}; sort seed > b{i}\n" for i in range(tasks)]
    made = " ".join(f"b{i}" for i in range(tasks))
    return HEAD.format("root") + "\n".join(
        [*rules, HEAD.format("join"), f"all: {made}\n\tsleep 0.5; cat {made} > all\n"]
    )


WORKFLOWS: dict[str, tuple[Callable[[int], str], int]] = {
    "sleep": (sleeping, 100),
    "CPU": (computing, 100),
    "I/O": (writing, 150),
    "chain": (chain, 100),
    "fan": (fan, 120),
}
"""By name: how it is made, and its tasks at full size."""


def shoal(directory: Path, *words: str) -> str:
    """What a command prints; it must succeed."""
    environment = {**os.environ, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "shoal", *words]
    return subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, text=True).stdout


def run(directory: Path, name: str) -> float:
    """Seconds that a real run took."""
    shoal(directory, "run", name, "--jobs", str(CORES), "--quiet")
    took: float = json.loads(shoal(directory, "status", name, "--json"))["took"]
    return took


def once(make: Callable[[int], str], tasks: int) -> tuple[float, float, float, dict[str, Any]]:
    """Seconds of the half-size run, seconds predicted, seconds that the full-size run took, and the forecast."""
    with tempfile.TemporaryDirectory(prefix="shoal-truth-") as place:
        directory = Path(place)
        for folder, size in (("half", tasks // 2), ("full", tasks)):
            (directory / folder).mkdir()
            (directory / folder / f"{folder}.makeflow").write_text(make(size))
        half = run(directory / "half", "half.makeflow")
        forecast: dict[str, Any] = json.loads(
            shoal(
                directory,
                *("simulate", "full/full.makeflow", "--like", "half/half.makeflow", "--jobs", str(CORES), "--json"),
            )
        )
        return half, forecast["makespan"], run(directory / "full", "full.makeflow"), forecast


def measure(name: str, repeats: int) -> tuple[str, bool]:
    """A row of the table, and whether the prediction holds."""
    make, tasks = WORKFLOWS[name]
    found = [once(make, tasks) for _ in range(repeats)]
    errors = [predicted / took - 1 for _, predicted, took, _ in found]
    middle = sorted(range(repeats), key=lambda at: errors[at])[repeats // 2]
    half, predicted, took, forecast = found[middle]
    per_task = median(each[3]["overheads"]["per_task"] for each in found)
    holds = abs(median(errors)) <= ALLOWED
    every = ", ".join(f"{100 * error:+.1f}" for error in errors)
    row = (
        f"| {name} | {forecast['tasks']} | {half:.2f} | {predicted:.2f} | {took:.2f} | {100 * median(errors):+.1f} % "
        f"| {every} | {1000 * per_task:.2f} | {'yes' if holds else 'no'} |"
    )
    print(row, flush=True)
    return row, holds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--names", nargs="*", choices=list(WORKFLOWS), default=list(WORKFLOWS))
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = [measure(name, arguments.repeats) for name in arguments.names]
    lines = [
        "# Predictions held against real runs",
        "",
        f"Full size predicted from the ledger of a run of half the size, {CORES} cores ({processor()}); "
        f"{arguments.repeats} repeats, the row shows the one with the median error. Load of the machine before: "
        f"{load:.1f}. The gap is what a core waits between two tasks. `python bench/truth.py` makes this table.",
        "",
        "| workflow | tasks | half took, s | predicted, s | full took, s | error | all errors, % | gap, ms "
        f"| median within {100 * ALLOWED:.0f} % |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for row, _ in rows),
        "",
    ]
    if arguments.names == list(WORKFLOWS):
        RESULTS.write_text("\n".join(lines))
    return 0 if all(holds for _, holds in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
