"""How fast a Makeflow of 100,000 rules is read: `shoal makeflow-analyze -k` beside the original `makeflow_analyze -k`.

Whole processes on the same files, in turn, the best of three each, for several kinds of file; and the memory that ours
needs beyond an empty file and the text itself. The promise is at most 1.0 times the original's time and at most
1 KiB per rule, for every kind; the exit status is 1 if it is not kept. Run with the project's interpreter:

    python bench/reading.py [--rules N] [--rounds N] [KIND...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

OURS = [sys.executable, "-m", "shoal", "makeflow-analyze", "-k"]
ORIGINAL = ["makeflow_analyze", "-k"]
PATIENCE = 600
TIME_LIMIT = 1.0
BYTES_LIMIT = 1024


def plain(count: int) -> Iterator[str]:
    """Chains with a shared tool: three inputs, one output."""
    for n in range(count):
        yield f"out.{n}: in.{n % 1000} tool out.{n - 1}\n\t./tool -i in.{n % 1000} -p out.{n - 1} > out.{n}\n\n"


def variables(count: int) -> Iterator[str]:
    """References in file lists and commands. The original needs quadratic time for these."""
    yield "TOOL=./bin/tool\nOPTIONS=--threads=2 -v\nDIR=data\n"
    for n in range(count):
        yield f"$DIR/out.{n}: $(DIR)/in.{n % 1000} $TOOL\n\t$TOOL ${{OPTIONS}} -i $DIR/in.{n % 1000} > $DIR/out.{n}\n\n"


def categories(count: int) -> Iterator[str]:
    """Resources of single rules, and a category for every hundred."""
    for n in range(count):
        if n % 100 == 0:
            yield f".MAKEFLOW CATEGORY c{n // 100 % 10}\n.MAKEFLOW CORES 2\n"
        yield f"out.{n}: in.{n % 1000} tool\nMEMORY={100 + n % 50}\n@DISK=10\n\t./tool -i in.{n % 1000} > out.{n}\n\n"


def many_files(count: int) -> Iterator[str]:
    """Fourteen inputs and three outputs per rule."""
    for n in range(count):
        parts = " ".join(f"part.{(n * 7 + part) % 5000}" for part in range(12))
        yield f"out.{n} log.{n} err.{n}: tool lib.so {parts}\n\t./tool --all -o out.{n} 2> err.{n} > log.{n}\n"


def quotes(count: int) -> Iterator[str]:
    """Quotes, backslashes and comments, as in one-liners for the shell."""
    for n in range(count):
        yield f"# step {n}\nout.{n}: in.{n % 1000}\n\techo \"it's {n}\" | awk '{{print \\$1}}' > out.{n} # done\n\n"


KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "plain": plain,
    "variables": variables,
    "categories": categories,
    "many files": many_files,
    "quotes": quotes,
}


@dataclass
class Cost:
    """The best of several runs of one program."""

    seconds: float = float("inf")
    cpu: float = float("inf")
    peak_bytes: float = float("inf")

    def note(self, command: list[str]) -> None:
        """Runs the command once and keeps what was better than before."""
        started = time.perf_counter()
        environment = os.environ | {"OMPI_MCA_ess_singleton_isolated": "1"}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
        self.seconds = min(self.seconds, seconds)
        self.cpu = min(self.cpu, usage.ru_utime + usage.ru_stime)
        self.peak_bytes = min(self.peak_bytes, usage.ru_maxrss * 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description="Reading of large Makeflows, beside the original.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--rules", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    unknown = [kind for kind in arguments.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}")
    kept = True
    print(f"{arguments.rules:,} rules, best of {arguments.rounds}, load at the start {os.getloadavg()[0]:.1f}\n")
    print("| file | ours, s | original, s | ratio | CPU ratio | bytes per rule above the text |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        empty = Path(directory, "empty.mf")
        empty.touch()
        for kind in arguments.kinds or KINDS:
            file = Path(directory, "flow.mf")
            with file.open("w") as stream:
                stream.writelines(KINDS[kind](arguments.rules))
            kept &= compare(kind, file, empty, arguments.rules, arguments.rounds)
    return 0 if kept else 1


def compare(kind: str, file: Path, empty: Path, rules: int, rounds: int) -> bool:
    """Prints one line of the table and says whether the promise is kept."""
    ours, original, nothing = Cost(), Cost(), Cost()
    for _ in range(rounds):
        nothing.note([*OURS, str(empty)])
        ours.note([*OURS, str(file)])
        original.note([*ORIGINAL, str(file)])
    ratio, cpu_ratio = ours.seconds / original.seconds, ours.cpu / original.cpu
    above_text = (ours.peak_bytes - nothing.peak_bytes - file.stat().st_size) / rules
    print(
        f"| {kind} | {ours.seconds:.2f} | {original.seconds:.2f} | {ratio:.2f} | {cpu_ratio:.2f} | {above_text:.0f} |",
        flush=True,
    )
    return ratio <= TIME_LIMIT and above_text <= BYTES_LIMIT


if __name__ == "__main__":
    sys.exit(main())
