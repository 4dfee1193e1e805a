"""Pwrake's copyfile study: what locality and order do to a workflow that only reads and writes.

`python experiments/pwrake_copyfile.py [--quick]`. 100 files of 3 GiB are copied (A), and the copies again (B), on 10
nodes with one core each. The constants are those of `pwrake_common`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from common import Bar, Report, gigabytes, main, run_all
from plots import Line, Panel
from pwrake_common import (
    DIRTY,
    DISK_RATE,
    LINK,
    ORDERS,
    PAGE_CACHE,
    PLACEMENTS,
    Machine,
    Measured,
    change,
    mean,
    measure,
)

from shoal.sim.workloads.published import FILE_BYTES, copyfile

NODES = 10
SEEDS = {"tiny": (1,), "quick": (1,), "default": (1, 2, 3), "full": tuple(range(1, 11))}
FILES = {"tiny": 30, "quick": 100, "default": 100, "full": 100}
PROTOTYPE = {
    "one queue": {"fifo": 2005, "lifo": 1351, "lifo+hrf": 1347, "rank-overlap": 1323},
    "pwrake": {"fifo": 1573, "lifo": 1133, "lifo+hrf": 1133, "rank-overlap": 1176},
}
"""Seconds of an earlier, separate simulation with a disk of 80 MB/s and write-back; the deck's are in a figure."""
VARIED = {
    "disk of half the rate": Machine(NODES, 1, disk_rate=DISK_RATE / 2),
    "disk of twice the rate": Machine(NODES, 1, disk_rate=2 * DISK_RATE),
    "half the page cache": Machine(NODES, 1, page_cache=PAGE_CACHE // 2),
    "page cache for two files": Machine(NODES, 1, page_cache=2 * FILE_BYTES),
    "no write-back": Machine(NODES, 1, dirty=0),
}


def run(files: int, machine: Machine, placement: str, order: str, seed: int) -> Measured:
    return measure(copyfile(seed, files), machine, placement, order, seed)


def make(size: str, nodes: Sequence[int]) -> Report:
    count = nodes[0] if nodes else NODES
    files, seeds = FILES[size], SEEDS[size]
    report = Report("pwrake_copyfile", f"Pwrake's copyfile: {files} files of 3 GiB, {count} nodes of one core")
    machine = Machine(count, 1, page_cache=PAGE_CACHE * files // FILES["default"])  # less data, less cache
    report.say(
        f"""Guesses: a disk of {DISK_RATE / 1e6:g} MB/s per node, links of {LINK / 1e6:g} MB/s, a page cache of {
            machine.page_cache / 1e9:g} GB, of which {DIRTY / 1e9:g} GB may wait to be written. Means of {
            len(seeds)
        } seeds."""
    )
    found = _all_placements(report, files, machine, seeds)
    fifo, lifo = found["pwrake", "fifo"], found["pwrake", "lifo"]
    report.bars.append(
        Bar("with locality, LIFO saves of FIFO's time (paper: 30 %)", 1 - lifo.elapsed / fifo.elapsed, 0.24)
    )
    saved = min(1 - found["pwrake", order].elapsed / found["one queue", order].elapsed for order in ORDERS)
    report.bars.append(Bar("locality saves at least, over all orders", saved, 0.0))
    if size in ("default", "full"):
        _sensitivity(report, files)
    return report


def _all_placements(
    report: Report, files: int, machine: Machine, seeds: Sequence[int]
) -> dict[tuple[str, str], Measured]:
    cases = [(placement, order) for placement in PLACEMENTS for order in ORDERS]
    runs = run_all(run, [(files, machine, *case, seed) for case in cases for seed in seeds])
    found = {case: mean(runs[at * len(seeds) : (at + 1) * len(seeds)]) for at, case in enumerate(cases)}
    rows = []
    for placement, order in cases:
        one = found[placement, order]
        fifo = found[placement, "fifo"].elapsed
        before = PROTOTYPE.get(placement, {}).get(order, "") if files == FILES["default"] else ""
        volumes = [gigabytes(amount) for amount in (one.from_memory, one.from_disk, one.moved)]
        against = change(fifo, one.elapsed) if order != "fifo" else ""
        rows.append([f"{PLACEMENTS[placement]}; {order}", f"{one.elapsed:,.0f}", against, *volumes, before])
    report.table(
        ["locality; order", "elapsed (s)", "to FIFO", "memory (GB)", "disk (GB)", "network (GB)", "before (s)"], rows
    )
    report.say(
        """Paper (abstract of CLUSTER 2014): 30 % better by hits in the page cache; the values for each case are in a
        figure only. "Before" are the values of an earlier simulation with other constants. With locality and one core
        per node every task reads and writes on its own disk: four passes under FIFO, three under LIFO, because B reads
        what A has just written; that is the 25 %. "Network" is read from another node, "disk" by whichever node has
        it."""
    )
    lines = [
        Line(text, [(float(at), found[placement, order].elapsed) for at, order in enumerate(ORDERS, 1)])
        for placement, text in PLACEMENTS.items()
    ]
    report.panels.append(Panel("elapsed (s)", "order: 1 FIFO, 2 LIFO, 3 LIFO+HRF, 4 Rank Overlap", lines))
    return found


def _sensitivity(report: Report, files: int) -> None:
    """The two claims once more with other constants."""
    cases = [("one queue", "fifo"), ("one queue", "lifo"), ("pwrake", "fifo"), ("pwrake", "lifo")]
    runs = run_all(run, [(files, machine, *case, 1) for machine in VARIED.values() for case in cases])
    rows = []
    for at, name in enumerate(VARIED):
        off_fifo, off_lifo, fifo, lifo = (one.elapsed for one in runs[4 * at : 4 * at + 4])
        rows.append([name, change(fifo, lifo), change(off_fifo, fifo), change(off_lifo, lifo)])
    report.blocks.append("## Other constants")
    report.table(["", "LIFO to FIFO, locality on", "locality, FIFO", "locality, LIFO"], rows)


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
