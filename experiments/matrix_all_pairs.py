"""MATRIX's all-pairs experiments (its Figures 6, 7 and 8): strong scaling, policies, and what a cache is worth.

500 x 500 tasks of 100 ms, each reading two files of 12 MB that lie round robin on the nodes. `python
experiments/matrix_all_pairs.py [--quick]`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from common import KODIAK_LINK, Bar, Report, cluster, gigabytes, main, percent, run_all, say, watch
from plots import Line, Panel

from shoal.sim.cluster.result import SimulationResult
from shoal.sim.cluster.run import SimulationOptions
from shoal.sim.workloads.published import STACKING_FILE_BYTES
from shoal.sim.workloads.registry import make_workload

SIZES: dict[str, tuple[int, Sequence[int]]] = {
    "tiny": (80, (16,)),
    "quick": (150, (8, 25)),
    "default": (500, (8, 32, 100)),
    "full": (500, (1, 2, 4, 8, 16, 32, 64, 100)),
}
"""Files in each set, and node counts; policies are compared at the largest, in `full` at all."""
COMPARED = (("flds", True), ("mdl", True), ("mlb", True), ("flds", False))
"""Policies, with and without a cache."""
PAPER = {
    ("flds", True): "85.9 %; hits > 80 %",
    ("mdl", True): "below FLDS",
    ("mlb", True): "below MDL",
    ("flds", False): "< 50 %",
}


@dataclass(frozen=True)
class Found:
    """One run: what it took, and the part of the cores that computed over time."""

    policy: str
    cached: bool
    nodes: int
    played: SimulationResult
    curve: Sequence[tuple[float, float]]

    @property
    def label(self) -> str:
        return self.policy if self.cached else f"{self.policy}, no cache"

    def row(self, largest: int) -> list[str]:
        played = self.played
        return [
            f"{2 * self.nodes}",
            self.label,
            f"{played.makespan:,.1f}",
            percent(played.utilisation),
            percent(played.hit_rate),
            gigabytes(played.moved),
            PAPER[self.policy, self.cached] if self.nodes == largest else "",
        ]


def run(side: int, policy: str, cached: bool, nodes: int) -> Found:
    work = make_workload(f"all-pairs:side={side}", 1)
    spec = cluster(nodes, link=KODIAK_LINK, cache=0 if cached else -1)
    played, curve = watch(work, spec, SimulationOptions(policy=policy), sum(work.seconds) / spec.cores() / 50)
    found = Found(policy, cached, nodes, played, curve)
    say(f"{nodes} nodes, {found.label}: {percent(played.utilisation)}")
    return found


def make(size: str, nodes: Sequence[int]) -> Report:
    side, counts = SIZES[size]
    counts = nodes or counts
    largest = max(counts)
    asked = [(side, policy, cached, count) for count in counts for policy, cached in COMPARED]
    asked = [job for job in asked if size == "full" or job[3] == largest or job[1:3] == COMPARED[0]]
    found = run_all(run, asked)
    report = Report("matrix_all_pairs", f"All-pairs: {side} x {side} tasks of 100 ms, two files of 12 MB each")
    report.say(
        f"""Strong scaling on nodes of 2 cores with links of 1.92 Gb/s. The paper names no network. Its statement that
        without a cache efficiency is below 50 % puts the link at about this rate or lower: two files of 12 MB then
        take as long as the task. Efficiency is work over cores and makespan. Moved: gigabytes from node to node, of
        {gigabytes(2 * side * STACKING_FILE_BYTES)} that exist."""
    )
    report.table(
        ["cores", "policy", "makespan (s)", "efficiency", "inputs found on the node", "moved (GB)", "paper, 200 cores"],
        [each.row(largest) for each in found],
    )
    report.say(
        """Also in the paper, at 200 cores: Falkon's data diffusion 75 %, all files in memory (active storage) 91 %, a
        parallel file system below 20 %; these are other systems' numbers and are not simulated here."""
    )
    at_largest = [each for each in found if each.nodes == largest]
    _panels(report, found, at_largest)
    _bars(report, at_largest)
    return report


def _panels(report: Report, found: Sequence[Found], at_largest: Sequence[Found]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        lines.setdefault(each.label, []).append((2.0 * each.nodes, 100 * each.played.utilisation))
    drawn = [Line(label, points) for label, points in lines.items()]
    drawn.append(Line("MATRIX (paper)", [(200.0, 85.9)], dashed=True))
    report.panels.append(Panel("efficiency (%)", "cores", drawn, log_across=True, top=100))
    curves = [Line(each.label, [(at, 100 * part) for at, part in each.curve]) for each in at_largest]
    cores = at_largest[0].played.cores
    report.panels.append(Panel(f"cores that compute (%), of {cores}", "seconds", curves, top=100))


def _bars(report: Report, at_largest: Sequence[Found]) -> None:
    flds, mdl, mlb, bare = (each.played for each in at_largest)
    cores = f"at {flds.cores} cores"
    report.bars += [
        Bar(f"FLDS: efficiency {cores}", flds.utilisation, least=0.91),
        Bar(f"FLDS: inputs found on the node {cores}", flds.hit_rate, least=0.80),
        Bar(f"FLDS over MDL {cores}", flds.utilisation / mdl.utilisation, least=1.0, form="{:.3f}"),
        Bar(f"MDL over MLB {cores}", mdl.utilisation / mlb.utilisation, least=1.0, form="{:.3f}"),
        Bar(f"FLDS without a cache: efficiency {cores}", bare.utilisation, most=0.50),
    ]


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
