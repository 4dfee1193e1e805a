"""Pwrake's Montage study: locality, orders and strong scaling of a mosaic in 2,707 tasks.

`python experiments/pwrake_montage.py [--quick] [--nodes 1,2,3]`; `--nodes` is for strong scaling. The seconds of each
stage are guesses (`shoal.sim.workloads.published`), as are the constants of `pwrake_common`; both are halved and
doubled to see whether what is found depends on them. Times are without the sequential stages, as in the deck. All
orders get the same seeds, so the error of a difference is that of the differences seed by seed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from common import Bar, Report, gigabytes, main, percent, run_all, say
from plots import Line, Panel
from pwrake_common import (
    DIRTY,
    DISK_RATE,
    LINK,
    LITERAL,
    ONE_QUEUE,
    ORDERS,
    OVERHEAD,
    OVERLAP_BY_COMPUTING,
    PAGE_CACHE,
    PLACEMENTS,
    SHUFFLED,
    Machine,
    Measured,
    behind,
    change,
    mean,
    measure,
    with_seconds,
)

from shoal.sim.workloads.published import STAGES, montage

MOST = 12
"""Nodes of the deck's cluster."""


@dataclass(frozen=True)
class Scale:
    """How tall the mosaic is, nodes for the study of locality, node counts, and of how many seeds each mean is."""

    mosaic: float
    most: int
    nodes: Sequence[int]
    locality_seeds: int
    scaling_seeds: int
    varied_seeds: int


SIZES = {
    "tiny": Scale(0.2, 3, (1, 3), 1, 1, 0),
    "quick": Scale(0.5, 6, (1, 3, 6), 1, 2, 0),
    "default": Scale(1.0, MOST, (1, 2, 3, 4, 6, 8, 12), 4, 16, 4),
    "full": Scale(1.0, MOST, (1, 2, 3, 4, 6, 8, 12), 16, 64, 16),
}
VARIED: dict[str, tuple[Machine, float]] = {
    "disk of half the rate": (Machine(MOST, disk_rate=DISK_RATE / 2), 1.0),
    "disk of twice the rate": (Machine(MOST, disk_rate=2 * DISK_RATE), 1.0),
    "half the computing": (Machine(MOST), 0.5),
    "twice the computing": (Machine(MOST), 2.0),
    "no write-back": (Machine(MOST, dirty=0), 1.0),
}
"""A machine, and by how much computing takes longer."""
SMALLER = PAGE_CACHE // 2
"""If files are kept twice, once by FUSE and once by the file system below it, this is left of the page cache."""
Case = tuple[Machine, str, str]


def run(
    mosaic: float, machine: Machine, placement: str, order: str, seed: int, computing: float = 1.0, newer: bool = False
) -> Measured:
    work = montage(seed, mosaic, of_2013=not newer)
    return measure(with_seconds(work, computing) if computing != 1 else work, machine, placement, order, seed)


def runs_of(
    mosaic: float, cases: Sequence[Case], seeds: int, computing: float = 1.0, newer: bool = False
) -> list[list[Measured]]:
    """For each case a run of each seed."""
    numbers = range(1, seeds + 1)
    runs = run_all(run, [(mosaic, *case, seed, computing, newer) for case in cases for seed in numbers])
    say(f"{len(runs)} runs")
    return [runs[at * seeds : (at + 1) * seeds] for at in range(len(cases))]


def means(mosaic: float, cases: Sequence[Case], seeds: int) -> list[Measured]:
    """The mean of each case over the seeds."""
    return [mean(runs) for runs in runs_of(mosaic, cases, seeds)]


def times_of(runs: Sequence[Measured]) -> list[float]:
    return [run.elapsed for run in runs]


def shown(found: tuple[float, float]) -> str:
    """A part and its error."""
    return f"{100 * found[0]:+.1f} ± {100 * found[1]:.1f} %"


def to_best(ours: Sequence[float], others: Sequence[Sequence[float]]) -> tuple[float, float]:
    """How far ours are behind the others that are best in the mean."""
    return behind(ours, min(others, key=sum))


def make(size: str, nodes: Sequence[int]) -> Report:
    scale = SIZES[size]
    report = Report("pwrake_montage", "Pwrake's Montage of 2,707 tasks: locality, order, strong scaling")
    seconds = ", ".join(f"{stage} {mean:g}" for stage, mean in STAGES.items())
    report.say(
        f"""Guesses: a disk of {DISK_RATE / 1e6:g} MB/s per node, links of {LINK / 1e6:g} MB/s, a page cache of {
            PAGE_CACHE / 1e9:g} GB of 34, of which {DIRTY / 1e9:g} GB may wait to be written, {OVERHEAD:g} s per
        task beside it; seconds of computing: {seconds}. Counts and
        sizes follow from what the deck prints. The table of the corrected images stands before the tiles, as
        probably in the Rakefile of the time. Elapsed and cumulative time are without the sequential stages."""
    )
    _locality(report, scale)
    _scaling(report, scale, nodes or scale.nodes)
    if scale.varied_seeds:
        _shuffled(report, scale)
        _sensitivity(report, scale)
        _small_cache(report, scale)
        _newer_rakefile(report, scale)
    return report


def _locality(report: Report, scale: Scale) -> None:
    cases = [(placement, order) for placement in PLACEMENTS for order in ORDERS]
    asked = [(Machine(scale.most), *case) for case in cases]
    found = dict(zip(cases, means(scale.mosaic, asked, scale.locality_seeds), strict=True))
    report.blocks.append("## Locality")
    rows = []
    for (placement, order), one in found.items():
        saved = change(found[ONE_QUEUE, order].cumulative, one.cumulative) if placement != ONE_QUEUE else ""
        row = [f"{PLACEMENTS[placement]}; {order}", f"{one.cumulative:,.0f}", saved, f"{one.elapsed:.0f}"]
        rows.append([*row, percent(one.utilisation), gigabytes(one.from_memory), gigabytes(one.moved)])
    head = ["locality; order", "cumulative (s)", "to one queue", "elapsed (s)", "utilisation"]
    report.table([*head, "memory (GB)", "network (GB)"], rows)
    candidates = {order: found["pwrake", order] for order in ORDERS}
    overlap, hrf, lifo = candidates["rank-overlap"], candidates["lifo+hrf"], candidates["lifo"]
    others = min(one.elapsed for order, one in candidates.items() if order != "lifo")
    rows = [
        ["locality, cumulative", "-24 to -34 %", f"{_change(found, 'fifo')}, {_change(found, 'lifo')}, "
         f"{_change(found, 'lifo+hrf')}, {_change(found, 'rank-overlap')}"],
        ["Rank Overlap to LIFO+HRF, cumulative", "-2 %", change(hrf.cumulative, overlap.cumulative)],
        ["LIFO to the best other, elapsed", "+5 %", change(others, lifo.elapsed)],
        ["utilisation is lowest with", "LIFO", min(candidates, key=lambda order: candidates[order].utilisation)],
    ]  # fmt: skip
    report.table([f"{scale.most} nodes of 8 cores", "deck", "here (FIFO, LIFO, LIFO+HRF, Rank Overlap)"], rows)
    least = min(1 - found["pwrake", order].cumulative / found[ONE_QUEUE, order].cumulative for order in ORDERS)
    report.bars.append(Bar("locality lowers cumulative time, in the worst of the orders", least, 0.24))


def _change(found: dict[tuple[str, str], Measured], order: str) -> str:
    return change(found[ONE_QUEUE, order].cumulative, found["pwrake", order].cumulative)


def _scaling(report: Report, scale: Scale, nodes: Sequence[int]) -> None:
    orders = (*ORDERS, LITERAL, OVERLAP_BY_COMPUTING)
    cases = [(Machine(count), "pwrake", order) for count in nodes for order in orders]
    found = runs_of(scale.mosaic, cases, scale.scaling_seeds)
    rows, worst = [], [-1.0] * 3
    lines: dict[str, list[tuple[float, float]]] = {order: [] for order in orders}
    for at, count in enumerate(nodes):
        mine = found[at * len(orders) : (at + 1) * len(orders)]
        others = [times_of(runs) for runs in mine[:3]]
        differences = [to_best(times_of(runs), others) for runs in mine[3:]]
        worst = [max(most, part) for most, (part, _) in zip(worst, differences, strict=True)]
        averages = [mean(runs) for runs in mine]
        slowest = orders[max(range(4), key=lambda order: averages[order].elapsed)]
        cells = [f"{one.elapsed:.1f} ± {one.error:.1f}" for one in averages]
        rows.append([str(count), *cells, *map(shown, differences), slowest])
        for order, one in zip(orders, averages, strict=True):
            lines[order].append((float(count), one.elapsed))
    report.blocks.append(
        f"## Strong scaling, locality on: elapsed (s), means of {scale.scaling_seeds} seeds and their errors"
    )
    compared = ["Rank Overlap to the best other", "the same, drawn", "by computing"]
    report.table(["nodes", *orders, *compared, "slowest"], rows)
    report.say(
        """Deck: Rank Overlap is shortest at every count, FIFO is the slowest on 1 to 3 nodes. "Drawn" is the rule of
        the deck to the letter; in Shoal's own the ranks take turns in the same proportions. "By computing": the order
        learns how long tasks computed, as Shoal's brokers do, and not how long they took with reading and writing. The
        errors of the differences are those of runs in pairs with the same seed."""
    )
    drawn = [Line(order, points) for order, points in lines.items()]
    report.panels.append(Panel("elapsed (s), locality on", "nodes of 8 cores", drawn, log_across=True, log_up=True))
    names = ("Rank Overlap", "Rank Overlap with draws, as in the deck,", "Rank Overlap that learns computing alone")
    for name, most in zip(names, worst, strict=True):
        report.bars.append(Bar(f"{name} behind the best other order, at the worst count", most, most=0.01))


def _shuffled(report: Report, scale: Scale) -> None:
    """What the order of the first tasks does, because more hangs on it than on the queues' orders."""
    rows = []
    for count in (3, 6, MOST):
        mine = runs_of(scale.mosaic, [(Machine(count), SHUFFLED, order) for order in ORDERS], scale.varied_seeds)
        times = [times_of(runs) for runs in mine]
        cells = [f"{sum(each) / len(each):.0f}" for each in times]
        rows.append([str(count), *cells, shown(to_best(times[-1], times[:-1]))])
    report.blocks.append("## First tasks in random order: elapsed (s)")
    report.table(["nodes", *ORDERS, "Rank Overlap to the best other"], rows)
    report.say(
        f"""Means of {scale.varied_seeds} seeds. Above, the first tasks are queued in the order in which a depth-first
        search meets them, as Pwrake's master does it. Here each node has its images in random order. Then
        differences become ready at any moment, LIFO mixes them with projections by chance, and Rank Overlap has little
        or nothing to add. In the order of the search they come in bursts, which LIFO takes at once: for about a third
        of that time hardly a core of a node computes, and with Rank Overlap for less than a fifth (6 nodes, 2
        seeds)."""
    )


def _sensitivity(report: Report, scale: Scale) -> None:
    rows = []
    for name, (machine, computing) in VARIED.items():
        cases = [(machine, placement, order) for placement in (ONE_QUEUE, "pwrake") for order in ORDERS]
        found = runs_of(scale.mosaic, cases, scale.varied_seeds, computing)
        off, on = found[: len(ORDERS)], found[len(ORDERS) :]
        saved = [
            change(mean(one).cumulative, mean(other).cumulative) for one, other in zip(off, on, strict=True)
        ]  # fmt: skip
        times = [times_of(runs) for runs in on]
        slowest = ORDERS[max(range(4), key=lambda order: sum(times[order]))]
        rows.append([name, *saved, shown(to_best(times[-1], times[:-1])), slowest])
    report.blocks.append(
        f"## Other constants: cumulative time with locality, and order, on {MOST} nodes, {scale.varied_seeds} seeds"
    )
    report.table(["", *ORDERS, "Rank Overlap to the best other, elapsed", "slowest"], rows)


def _small_cache(report: Report, scale: Scale) -> None:
    """The deck says that on 1 to 3 nodes data does not fit into the cache."""
    rows = []
    for count in (1, 2, 3):
        cases = [(Machine(count, page_cache=SMALLER), "pwrake", order) for order in ORDERS]
        times = [one.elapsed for one in means(scale.mosaic, cases, scale.varied_seeds)]
        rows.append([str(count), *(f"{time:.0f}" for time in times), ORDERS[times.index(max(times))]])
    report.blocks.append("## Half the page cache, 14 GB: elapsed (s)")
    report.table(["nodes", *ORDERS, "slowest"], rows)
    report.say(
        """On one node the projected images are 20.5 GB: with 28 GB of page cache they all stay there, whatever the
        order. With half of it, as if FUSE and the file system below both kept pages, they do not."""
    )


def _newer_rakefile(report: Report, scale: Scale) -> None:
    """The other reading of which workflow was measured, because it changes who wins on one node."""
    rows = []
    for count in (1, 2, 3, MOST):
        cases = [(Machine(count), "pwrake", order) for order in ORDERS]
        mine = runs_of(scale.mosaic, cases, scale.varied_seeds, newer=True)
        times = [[run.makespan for run in runs] for runs in mine]
        cells = [f"{sum(each) / len(each):.0f}" for each in times]
        rows.append([str(count), *cells, shown(to_best(times[-1], times[:-1]))])
    report.blocks.append("## The Rakefile from April 2014 on: makespan (s), with the sequential stages")
    report.table(["nodes", *ORDERS, "Rank Overlap to the best other"], rows)
    report.say(
        """Which of the two Rakefiles was measured is an inference: the deck's Pwrake 0.9.9 is of February 2014, and it
        shows an overlap of mProjectPP and mDiff only; the counts of tasks are the same. In the newer one tiles begin
        before all images are corrected. On one node Rank Overlap lets them wait, and more is read from the disk than
        with LIFO."""
    )


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
