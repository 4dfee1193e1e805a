"""What all experiments share: their sizes on the command line, simulated runs, tables, bars, and the files they write.

An experiment makes a `Report`; `main` prints it as Markdown and writes `results/NAME.md` and `results/NAME.svg`. A bar
is a number that has to be reached: if one is missed the exit status is 1. Drawing is left to `plots`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from plots import Panel, drawn

from shoal.core.work import Work
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.result import RunCounters, SimulationResult
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = ("tiny", "quick", "default", "full")
KODIAK_LINK = 24e6 / 0.1
"""Bytes per second, 1.92 Gb/s. MATRIX's paper names no network; it says that all-pairs without a cache has less than
half of its efficiency. That is so if fetching two files of 12 MB takes as long as the task of 100 ms, or longer."""
SIMULATED_LINK = 1.25e9
"""Bytes per second, 10 Gb/s, as in the simulator of MATRIX's authors."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Bar:
    """A number that has to be reached, and what was."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None
    form: str = "{:.1%}"

    @property
    def met(self) -> bool:
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)

    def row(self) -> list[str]:
        wanted = [f"at least {self.form.format(self.least)}"] if self.least is not None else []
        wanted += [f"at most {self.form.format(self.most)}"] if self.most is not None else []
        return [self.what, " and ".join(wanted), self.form.format(self.value), "met" if self.met else "**missed**"]


@dataclass
class Report:
    """What an experiment found: Markdown blocks, drawings, bars."""

    name: str
    title: str
    blocks: list[str] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A paragraph."""
        self.blocks.append(" ".join(text.split()))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.blocks.append(table(head, rows))

    def markdown(self) -> str:
        bars = table(["bar", "wanted", "reached", ""], [bar.row() for bar in self.bars]) if self.bars else ""
        return "\n\n".join([f"# {self.title}", *self.blocks, *([bars] if bars else [])]) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    line = "| " + " | ".join(head) + " |"
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([line, rule, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def gigabytes(amount: float) -> str:
    return f"{amount / 1e9:,.1f}"


def cluster(
    nodes: int, *, cores: int = 2, link: float = SIMULATED_LINK, cache: int = 0, latency: float = 2e-4
) -> ClusterSpec:
    """So many equal nodes; a negative cache keeps nothing that was fetched."""
    return ClusterSpec(nodes=nodes, node=NodeSpec(cores=cores, link=link, cache=cache), latency=latency)


def play(work: Work, spec: ClusterSpec, options: SimulationOptions | None = None) -> SimulationResult:
    """One simulated run; nothing may fail in it."""
    played = ClusterRun(work, spec, options).execute()
    assert not played.failed, f"{played.failed} tasks of {work.name} failed"
    return played


def seconds_per_task(played: SimulationResult) -> float:
    """Time per task and core, as the paper defines it."""
    return played.cores * played.makespan / played.tasks


class Watched(RunCounters):
    """Counts busy cores over time beside everything else: core seconds in steps of time."""

    def __init__(self, work: Work, spec: ClusterSpec, step: float) -> None:
        super().__init__(work, spec)
        self.step = step
        self.spent: list[float] = []
        """Core seconds of each step."""

    def ended(self, now: float, activity: Activity) -> None:
        super().ended(now, activity)
        self._add(now - activity.computing, now)

    def _add(self, begin: float, end: float) -> None:
        """Computing of one task; with an overhead it would be counted a little late."""
        while len(self.spent) <= int(end / self.step):
            self.spent.append(0.0)
        for at in range(int(begin / self.step), int(end / self.step) + 1):
            self.spent[at] += min(end, (at + 1) * self.step) - max(begin, at * self.step)

    def busy_cores(self) -> list[tuple[float, float]]:
        """Middle of each step, and the part of the cores that computed then."""
        return [((at + 0.5) * self.step, spent / self.step / self.cores) for at, spent in enumerate(self.spent)]


def watch(
    work: Work, spec: ClusterSpec, options: SimulationOptions, step: float
) -> tuple[SimulationResult, list[tuple[float, float]]]:
    """One simulated run, and the part of the cores that computed in each step of time."""
    run = ClusterRun(work, spec, options)
    run.tally = tally = Watched(work, spec, step)
    return run.execute(), tally.busy_cores()


def run_all(function: Callable[..., Result], jobs: Sequence[Sequence[object]]) -> list[Result]:
    """What the function makes of each job's arguments, on all cores of this machine; the last, largest jobs first."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(function, *job) for job in reversed(jobs)]
        return [each.result() for each in reversed(waiting)]


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def main(make: Callable[[str, Sequence[int]], Report], what: str, arguments: Sequence[str] | None = None) -> int:
    """Runs an experiment in the size asked for."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--size", choices=SIZES, default="default", help="how much is simulated")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
    parser.add_argument("--nodes", help="node counts instead of those of the size, as 1,10,100", default="")
    parser.add_argument("--results", type=Path, default=None, help="directory for the files")
    chosen = parser.parse_args(arguments)
    try:
        nodes = [int(one) for one in chosen.nodes.split(",") if one]
    except ValueError:
        nodes = [0]
    if any(count < 1 for count in nodes):
        parser.error(f"--nodes takes counts from 1 on with commas between them, not {chosen.nodes!r}")
    report = make(chosen.size, nodes)
    kept = chosen.results or (RESULTS if chosen.size in ("default", "full") else None)
    print(report.markdown())
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        (kept / f"{report.name}.md").write_text(report.markdown())
        (kept / f"{report.name}.svg").write_text(drawn(report.title, report.panels))
        say(f"written: {kept / report.name}.md and .svg")
    return 0 if all(bar.met for bar in report.bars) else 1
