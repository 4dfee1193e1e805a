"""Pwrake's Montage study: locality, orders and strong scaling of a mosaic in 2,707 tasks.

`python experiments/pwrake_montage.py [--quick] [--nodes 1,2,3]`; `--nodes` is for strong scaling. The seconds of each
stage are guesses (`shoal.sim.workloads.pwrake`), as are the constants of `pwrake_common`; both are halved and doubled
to see whether what is found depends on them. Times are without the sequential stages, as in the deck.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from common import Bar, Report, gigabytes, main, percent, run_all, say
from plots import Line, Panel
from pwrake_common import (
    DISK_RATE,
    LINK,
    ONE_QUEUE,
    ORDERS,
    OVERHEAD,
    OVERLAP_BY_COMPUTING,
    PAGE_CACHE,
    PLACEMENTS,
    Machine,
    Measured,
    change,
    mean,
    measure,
    with_seconds,
)

from shoal.sim.workloads.pwrake import STAGES, montage

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
    "default": Scale(1.0, MOST, (1, 2, 3, 4, 6, 8, 12), 2, 4, 1),
    "full": Scale(1.0, MOST, (1, 2, 3, 4, 6, 8, 12), 5, 16, 3),
}
VARIED: dict[str, tuple[Machine, float]] = {
    "disk of half the rate": (Machine(MOST, disk_rate=DISK_RATE / 2), 1.0),
    "disk of twice the rate": (Machine(MOST, disk_rate=2 * DISK_RATE), 1.0),
    "half the computing": (Machine(MOST), 0.5),
    "twice the computing": (Machine(MOST), 2.0),
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


def means(mosaic: float, cases: Sequence[Case], seeds: int, computing: float = 1.0) -> list[Measured]:
    """The mean of each case over the seeds."""
    numbers = range(1, seeds + 1)
    runs = run_all(run, [(mosaic, *case, seed, computing) for case in cases for seed in numbers])
    say(f"{len(runs)} runs")
    return [mean(runs[at * seeds : (at + 1) * seeds]) for at in range(len(cases))]


def make(size: str, nodes: Sequence[int]) -> Report:
    scale = SIZES[size]
    report = Report("pwrake_montage", "Pwrake's Montage of 2,707 tasks: locality, order, strong scaling")
    seconds = ", ".join(f"{stage} {mean:g}" for stage, mean in STAGES.items())
    report.say(
        f"""Guesses: a disk of {DISK_RATE / 1e6:g} MB/s per node, links of {LINK / 1e6:g} MB/s, a page cache of {
            PAGE_CACHE / 1e9:g} GB of 34, {OVERHEAD:g} s per task beside it; seconds of computing: {seconds}. Counts and
        sizes follow from what the deck prints. The table of the corrected images stands before the tiles, as
        probably in the Rakefile of the time. Elapsed and cumulative time are without the sequential stages."""
    )
    _locality(report, scale)
    _scaling(report, scale, nodes or scale.nodes)
    if scale.varied_seeds:
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
    orders = (*ORDERS, OVERLAP_BY_COMPUTING)
    cases = [(Machine(count), "pwrake", order) for count in nodes for order in orders]
    found = means(scale.mosaic, cases, scale.scaling_seeds)
    rows, worst, worst_by_computing = [], -1.0, -1.0
    lines: dict[str, list[tuple[float, float]]] = {order: [] for order in orders}
    for at, count in enumerate(nodes):
        mine = found[at * len(orders) : (at + 1) * len(orders)]
        times = [one.elapsed for one in mine]
        best = min(times[:3])
        behind, by_computing = times[3] / best - 1, times[4] / best - 1
        worst, worst_by_computing = max(worst, behind), max(worst_by_computing, by_computing)
        slowest = orders[times.index(max(times))]
        shown = [f"{one.elapsed:.1f} ± {one.error:.1f}" for one in mine]
        rows.append([str(count), *shown, f"{behind:+.1%}", f"{by_computing:+.1%}", slowest])
        for order, time in zip(orders, times, strict=True):
            lines[order].append((float(count), time))
    report.blocks.append(
        f"## Strong scaling, locality on: elapsed (s), means of {scale.scaling_seeds} seeds and their errors"
    )
    report.table(["nodes", *orders, "Rank Overlap to the best other", "the same by computing", "slowest"], rows)
    report.say(
        """Deck: Rank Overlap is shortest at every count, FIFO is the slowest on 1 to 3 nodes. "By computing": the order
        learns how long tasks computed, as Shoal's brokers do, and not how long they took with reading and writing."""
    )
    drawn = [Line(order, points) for order, points in lines.items()]
    report.panels.append(Panel("elapsed (s), locality on", "nodes of 8 cores", drawn, log_across=True, log_up=True))
    report.bars.append(Bar("Rank Overlap behind the best other order, at the worst count", worst, most=0.01))
    name = "Rank Overlap that learns computing alone, behind the best other, at the worst count"
    report.bars.append(Bar(name, worst_by_computing, most=0.01))


def _sensitivity(report: Report, scale: Scale) -> None:
    rows = []
    for name, (machine, computing) in VARIED.items():
        cases = [(machine, placement, order) for placement in (ONE_QUEUE, "pwrake") for order in ORDERS]
        found = means(scale.mosaic, cases, scale.varied_seeds, computing)
        off, on = found[: len(ORDERS)], found[len(ORDERS) :]
        saved = [change(one.cumulative, other.cumulative) for one, other in zip(off, on, strict=True)]
        behind = on[-1].elapsed / min(one.elapsed for one in on[:-1]) - 1
        rows.append([name, *saved, f"{behind:+.1%}", ORDERS[max(range(4), key=lambda at: on[at].elapsed)]])
    report.blocks.append("## Other constants: cumulative time with locality, and order, on 12 nodes")
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
        """On one node the projected images are 20.5 GB: with 28 GB of page cache they all stay there, and all orders
        wait for the disk to write. With half of it, as if FUSE and the file system below both kept pages, they do
        not."""
    )


def _newer_rakefile(report: Report, scale: Scale) -> None:
    """The other reading of which workflow was measured, because it changes who wins on one node."""
    counts, numbers = (1, 2, 3, 12), range(1, scale.varied_seeds + 1)
    cases = [(count, order) for count in counts for order in ORDERS]
    jobs = [
        (scale.mosaic, Machine(count), "pwrake", order, seed, 1.0, True) for count, order in cases for seed in numbers
    ]
    runs = run_all(run, jobs)
    found = {case: mean(runs[at * len(numbers) : (at + 1) * len(numbers)]) for at, case in enumerate(cases)}
    rows = []
    for count in counts:
        times = [found[count, order].makespan for order in ORDERS]
        behind = times[-1] / min(times[:-1]) - 1
        rows.append([str(count), *(f"{time:.0f}" for time in times), f"{behind:+.1%}"])
    report.blocks.append("## The Rakefile from April 2014 on: makespan (s), with the sequential stages")
    report.table(["nodes", *ORDERS, "Rank Overlap to the best other"], rows)
    report.say(
        """Which of the two Rakefiles was measured is an inference: the deck's Pwrake 0.9.9 is of February 2014, and it
        shows an overlap of mProjectPP and mDiff only; the counts of tasks are the same. In the newer one tiles begin
        before all images are corrected. On one node Rank Overlap then lets them wait, more is read from the disk, and
        it is slower than LIFO. Probably that is because mCoverageCheck has the rank of mBackground and makes its mean
        look short; this was not tested by itself."""
    )


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
