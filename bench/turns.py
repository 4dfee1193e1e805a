"""Two versions of Shoal, taking turns: what a change costs, or what it gains.

    python bench/turns.py OLD NEW [--rounds 7] [--only NAME,...]

OLD and NEW are the `python` of two environments in which Shoal is installed. The rounds alternate, because machines are
noisy. Prints the best wall time and the best processor time of each (with that of child processes), and the ratios new
to old. Exit status 1 if a ratio of wall times is above its bar.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TRUE = "from shoal import task\nfor i in range(10_000): task(f't{i}', run='/bin/true')\n"
FILES = "from shoal import file\nfor i in range({}): file(f'o/{{i // 1000}}/{{i}}', needs='in', run='touch {{out}}')\n"
PLAN, RESUME = FILES.format(1_000_000), FILES.format(100_000)
CALLS = """
import shoal
with shoal.Executor(2) as executor:
    list(executor.map(abs, range(1000)))
    assert sum(executor.map(abs, range(100_000))) == 4999950000
"""


@dataclass
class Workload:
    """Something that both versions do, each in a folder of its own."""

    name: str
    flow: str
    words: list[str]
    before: list[str] = field(default_factory=list)
    """What is done once, before the first round."""
    afresh: bool = False
    """Whether the records of the last round are removed before the next one."""
    repeat: int = 1
    bar: float = 1.03


WORKLOADS = [
    Workload("10,000 x /bin/true", TRUE, ["-m", "shoal", "run", "flow.py", "--jobs", "2", "--quiet"], afresh=True),
    Workload("plan of 1,000,000 tasks", PLAN, ["-m", "shoal", "plan", "flow.py"]),
    Workload(
        "resume of 100,000 tasks",
        RESUME,
        ["-m", "shoal", "run", "flow.py", "--quiet"],
        before=["-m", "shoal", "run", "flow.py", "--jobs", "2", "--quiet"],
    ),
    Workload("100,000 calls by map", CALLS, ["flow.py"]),
    Workload("shoal --help", "", ["-m", "shoal", "--help"], repeat=10),
    Workload(
        "run of one task",
        "from shoal import task\ntask('t', run='/bin/true')\n",
        ["-m", "shoal", "run", "flow.py", "--quiet"],
        afresh=True,
        repeat=10,
    ),
]


@dataclass
class Best:
    """The least that something took."""

    wall: float = float("inf")
    cpu: float = float("inf")

    def take(self, wall: float, cpu: float) -> None:
        self.wall, self.cpu = min(self.wall, wall), min(self.cpu, cpu)


class Version:
    """One of the two, and where it works."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = os.path.abspath(python), folder
        self.best = Best()

    def prepare(self, workload: Workload) -> None:
        self.best = Best()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (self.folder / "flow.py").write_text(workload.flow)
        (self.folder / "in").write_text("")
        if workload.before:
            self._run(workload.before)

    def play(self, workload: Workload) -> None:
        """One round."""
        for _ in range(workload.repeat):
            if workload.afresh:
                shutil.rmtree(self.folder / ".shoal", ignore_errors=True)
            used, begun = _children(), time.monotonic()
            self._run(workload.words)
            self.best.take(time.monotonic() - begun, _children() - used)

    def _run(self, words: list[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([self.python, *words], cwd=self.folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(workload: Workload, old: Version, new: Version, rounds: int, say: Callable[[str], None]) -> bool:
    """Whether the new version keeps the bar."""
    for version in (old, new):
        version.prepare(workload)
    for number in range(rounds):
        for version in (old, new) if number % 2 else (new, old):
            version.play(workload)
    wall, cpu = new.best.wall / old.best.wall, new.best.cpu / old.best.cpu
    say(
        f"{workload.name:26} old {old.best.wall:7.3f} s, new {new.best.wall:7.3f} s: {wall:.3f}"
        f"   processor time {old.best.cpu:7.3f} s, {new.best.cpu:7.3f} s: {cpu:.3f}"
    )
    return wall <= workload.bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="the python of the older version's environment")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="parts of names of workloads, separated by commas")
    options = parser.parse_args()
    chosen = [each for each in WORKLOADS if any(part in each.name for part in options.only.split(","))]
    with tempfile.TemporaryDirectory(prefix="shoal-turns-") as made:
        old, new = Version(options.old, Path(made) / "old"), Version(options.new, Path(made) / "new")
        kept = [compare(each, old, new, options.rounds, lambda line: print(line, flush=True)) for each in chosen]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
