"""Short peaks of memory: what our launcher, `shoal monitor` and Debian's `resource_monitor` say of the same commands.

Commands that each take a known 5 to 400 MB for 20 to 200 ms, the same for every contestant, one after another. The
promise is that the launcher is within 2 % or 1 MB for all of them, and within 2 % or 10 ms of their CPU time; the exit
status is 1 if it is not kept. The others tell whole megabytes, rounded up, so they are given one more.

The commands come in three kinds, because `resource_monitor` preloads a library that looks at a process when it exits:
memory kept to the end, memory given back before, and kept by a program that is linked statically. CPU time is compared
where memory was given back: what the kernel spends on a process after its exit, no process can tell of itself. Run with
the project's interpreter; it needs a C compiler:

    python bench/peaks.py [--tasks N] [--seed N] [--only NAME...]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.execution.processes.launcher_client import LauncherClient
from shoal.execution.processes.launcher_messages import NO_LIMIT, NO_MEMORY_LIMIT

MEGABYTE = 1 << 20
HOG = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
/* hog MEGABYTES MILLISECONDS FILE KEPT: takes memory, keeps it for a while, may give it back, and tells its CPU time
 * and what the kernel says of its peak. */
int main(int count, char **words) {
    size_t size = ((size_t)atoi(words[1]) << 20) + 4096;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
    usleep((useconds_t)atoi(words[2]) * 1000);
    if (atoi(words[4]) == 0) munmap(memory, size);
    struct timespec used;
    FILE *file = fopen(words[3], "w");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    fprintf(file, "%ld.%09ld ", (long)used.tv_sec, used.tv_nsec);
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long peak;
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &peak) == 1) fprintf(file, "%ld\n", peak);
    fclose(file);
    return count != 5;
}
"""


@dataclass(frozen=True)
class Known:
    """One command and what it needs."""

    megabytes: int
    milliseconds: int


@dataclass(frozen=True)
class Measured:
    """What a contestant said, and what is so: what was taken besides the program itself, and its own CPU time."""

    known: Known
    base: float
    """Bytes that the program has before it takes any."""
    memory: float
    cpu: float
    own_cpu: float

    @property
    def memory_error(self) -> float:
        return abs(self.memory - self.base - self.known.megabytes * MEGABYTE) / MEGABYTE

    def memory_within(self, more: float) -> bool:
        return self.memory_error <= max(1.0, 0.02 * self.known.megabytes) + more

    @property
    def cpu_within(self) -> bool:
        return abs(self.cpu - self.own_cpu) <= max(0.01, 0.02 * self.own_cpu)


Contestant = Callable[[Path, list[str]], tuple[float, float]]
"""Runs a command in a directory; returns bytes of memory and seconds of CPU time."""


class Launcher:
    """The launcher itself, as a run uses it."""

    def __init__(self, directory: Path) -> None:
        running = directory / "running"
        running.mkdir()
        self._client = LauncherClient(f"peaks{os.getpid()}")
        self._client.configure(str(running), str(directory / "output"), str(directory / "table"), 0.0)
        self._count = 0

    def __call__(self, directory: Path, words: list[str]) -> tuple[float, float]:
        self._count += 1
        command = os.fsencode(" ".join(words))
        self._client.start(0, [(self._count, 1, command, NO_LIMIT, b"", b"", NO_MEMORY_LIMIT)])
        while True:
            select.select([self._client.descriptor], [], [])
            told = self._client.collect()
            if told is None:
                sys.exit("peaks: the launcher is gone")
            for row in told:
                if row[0] == "ended":
                    return float(row[18]), row[7] + row[8]

    def close(self) -> None:
        self._client.close()


def summary_of(monitor: list[str], directory: Path, words: list[str]) -> tuple[float, float]:
    """What a monitor wrote into its summary."""
    environment = {**os.environ, "OMPI_MCA_ess_singleton_isolated": "1"}
    command = [*monitor, "-O", str(directory / "measured"), "--", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    summary = json.loads((directory / "measured.summary").read_text())
    return summary["memory"][0] * MEGABYTE, summary["cpu_time"][0]


def compile_hog(directory: Path, kind: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("peaks: there is no C compiler")
    (directory / "hog.c").write_text(HOG)
    options = ["-static"] if kind == "static" else []
    subprocess.run([compiler, "-O1", *options, "-o", str(directory / kind), str(directory / "hog.c")], check=True)
    return str(directory / kind)


KINDS = {"given back": ("shared", "0"), "kept": ("shared", "1"), "kept, static": ("static", "1")}
"""How the program is linked, and whether it keeps its memory to the end."""


def measure(
    contestant: Contestant, directory: Path, hog: str, kept: str, tasks: list[Known]
) -> tuple[list[Measured], float]:
    own = directory / "own"
    subprocess.run([hog, "0", "0", str(own), kept], check=True)
    base = float(own.read_text().split()[1]) * 1024
    found, begin = [], time.monotonic()
    for known in tasks:
        words = [hog, str(known.megabytes), str(known.milliseconds), str(own), kept]
        memory, cpu = contestant(directory, words)
        found.append(Measured(known, base, memory, cpu, float(own.read_text().split()[0])))
    return found, (time.monotonic() - begin) / len(tasks)


def row_of(name: str, kind: str, found: list[Measured], seconds: float, more: float) -> str:
    errors = [one.memory_error for one in found]
    within = sum(one.memory_within(more) for one in found)
    cpu = f"{sum(one.cpu_within for one in found)} of {len(found)}" if kind == "given back" else "-"
    unseen = sum(one.memory < one.known.megabytes * MEGABYTE / 2 for one in found)
    figures = f"{within} of {len(found)} | {statistics.median(errors):.1f} | {max(errors):.1f} | {unseen}"
    return f"| {kind} | {name} | {figures} | {cpu} | {seconds:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=["launcher", "monitor", "resource_monitor"])
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tasks = [Known(chance.randint(5, 400), chance.randint(20, 200)) for _ in range(options.tasks)]
    print(
        "| memory | measured by | memory within 2 % or 1 MB | median error, MB | worst, MB | less than half seen ",
        end="",
    )
    print("| CPU within 2 % or 10 ms | s per command |\n|---|---|---|---|---|---|---|---|")
    kept = True
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            kept = compare(Path(name), kind, tasks, options.only) and kept
    return 0 if kept else 1


def compare(directory: Path, kind: str, tasks: list[Known], only: list[str]) -> bool:
    """A row per contestant; whether the promise was kept."""
    kept = True
    linked, keeps = KINDS[kind]
    hog = compile_hog(directory, linked)
    if "launcher" in only:
        launcher = Launcher(directory)
        found, seconds = measure(launcher, directory, hog, keeps, tasks)
        launcher.close()
        print(row_of("shoal's launcher", kind, found, seconds, 0.0), flush=True)
        kept = all(one.memory_within(0.0) and (one.cpu_within or keeps == "1") for one in found)
    monitors = {
        "monitor": ("shoal monitor", [sys.executable, "-m", "shoal", "monitor"]),
        "resource_monitor": ("resource_monitor", ["resource_monitor"]),
    }
    for key, (title, words) in monitors.items():
        if key in only and shutil.which(words[0]):
            found, seconds = measure(partial(summary_of, words), directory, hog, keeps, tasks)
            print(row_of(title, kind, found, seconds, 1.0), flush=True)
    return kept


if __name__ == "__main__":
    sys.exit(main())
