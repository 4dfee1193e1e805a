"""Pwrake's order examples: how far a task is behind the one whose output it reads, and what is left for the end.

`python experiments/pwrake_orders.py [--quick]`. One node with two cores. Chains A_i -> B_i, all A ready at once, are
the deck's example; a long chain behind many short tasks shows the trailing tasks that HRF is for.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from random import Random

from common import Bar, Report, main
from plots import Line, Panel
from pwrake_common import ORDERS

from shoal.core.task import Profile
from shoal.core.work import Work, assemble
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

CORES = 2
A, B = 2.0, 1.0
"""Seconds."""
ALL = ("fifo", "lifo", "hrf", "lifo+hrf", "rank-overlap")
CHAINS = {"tiny": 20, "quick": 40, "default": 100, "full": 1000}
SEEDS = {"tiny": 20, "quick": 50, "default": 300, "full": 3000}


class Logged(ClusterRun):
    """Remembers in which order tasks started and ended."""

    def __init__(self, work: Work, order: str, cores: int = CORES, seed: int = 0) -> None:
        super().__init__(
            work, ClusterSpec(node=NodeSpec(cores=cores)), SimulationOptions(order=order, submission="one", seed=seed)
        )
        self.log: list[tuple[str, int]] = []

    def start(self, node: int, task: int, attempt: int) -> None:
        self.log.append(("start", task))
        super().start(node, task, attempt)

    def end(self, activity: Activity, _: None) -> None:
        self.log.append(("end", activity.task))
        super().end(activity, _)


def chains(first: Sequence[float], second: Sequence[float]) -> Work:
    """First all A, then all B; the lengths of each."""
    count = len(first)
    return assemble(
        "chains",
        array("d", [*first, *second]),
        [*[()] * count, *((at,) for at in range(count))],
        [*((at,) for at in range(count)), *[()] * count],
        array("q", [0]) * count,
        category=bytes(count) + bytes([1]) * count,
        profiles=[Profile("A"), Profile("B")],
    )


def long_tail(short: int, length: int) -> Work:
    """So many short tasks, and after them in the queue the first of a chain of the given length; all of one second."""
    alone: tuple[int, ...] = ()
    links: list[tuple[int, ...]] = [(at,) for at in range(length - 1)]
    reads = [*[alone] * (short + 1), *links]
    makes = [*[alone] * short, *links, alone]
    return assemble("tail", array("d", [1.0]) * (short + length), reads, makes, array("q", [0]) * (length - 1))


def tasks_between(order: str, count: int) -> list[float]:
    """For each chain the tasks per core that start after A_i has ended and before B_i starts."""
    run = Logged(chains([A] * count, [A] * count), order)
    run.execute()
    at = {entry: place for place, entry in enumerate(run.log)}
    between = []
    for chain in range(count):
        stretch = run.log[at["end", chain] + 1 : at["start", count + chain]]
        between.append(sum(1 for what, _ in stretch if what == "start") / CORES)
    return between


def idle_at_the_end(order: str, work: Work) -> float:
    """Core seconds that nobody could use; there is always enough to do until then."""
    return CORES * makespan(order, work) - sum(work.seconds)


def makespan(order: str, work: Work, seed: int = 0) -> float:
    return Logged(work, order, seed=seed).execute().makespan


def make(size: str, nodes: Sequence[int]) -> Report:
    count = CHAINS[size]
    report = Report("pwrake_orders", "Pwrake's order examples: one node, two cores")
    _distances(report, count)
    _ends(report)
    _tail(report)
    _never_much_worse(report, SEEDS[size])
    return report


def _distances(report: Report, count: int) -> None:
    rows, found = [], {}
    for order in ORDERS:
        between = tasks_between(order, count)
        found[order] = between
        deck = {"fifo": "n/2", "lifo": "0"}.get(order, "")
        mean = sum(between) / count
        rows.append([order, deck, f"{min(between):g}", f"{mean:g}", f"{max(between):g}"])
    report.blocks.append(f"## Tasks on a core between A_i and B_i, {count} chains of equal tasks")
    report.table(["order", "deck", "least", "mean", "most"], rows)
    report.say(
        f"""FIFO runs the {count} tasks A first, {count // 2} on each core, so B_i comes n/2 places after A_i: n/2 - 1
        tasks are between them on its core, for every i. LIFO takes B_i as soon as A_i has ended: none, for every i."""
    )
    report.bars.append(Bar("FIFO: places from A_i to B_i, least", min(found["fifo"]) + 1, count / 2, form="{:g}"))
    report.bars.append(Bar("FIFO: places from A_i to B_i, most", max(found["fifo"]) + 1, None, count / 2, form="{:g}"))
    report.bars.append(Bar("LIFO: tasks between A_i and B_i, most", max(found["lifo"]), None, 0.0, form="{:g}"))
    lines = [Line(order, [(float(at), each) for at, each in enumerate(between)]) for order, between in found.items()]
    report.panels.append(Panel("tasks on a core between A_i and B_i", "i", lines))


def _ends(report: Report) -> None:
    counts = range(2, 42)
    rows = []
    for order in ORDERS:
        idle = [idle_at_the_end(order, chains([A] * count, [B] * count)) for count in counts]
        deck = {"fifo": f"B = {B:g}", "lifo": f"A + B = {A + B:g}"}.get(order, "")
        rows.append([order, deck, f"{max(idle):g}"])
        limit = {"fifo": B, "lifo": A + B}.get(order)
        if limit is not None:
            report.bars.append(Bar(f"{order}: idle core seconds at the end, most", max(idle), None, limit, form="{:g}"))
    report.blocks.append(f"## Idle core seconds at the end, most of 2 to 41 chains, A = {A:g} s and B = {B:g} s")
    report.table(["order", "deck: up to", "here"], rows)


def _tail(report: Report) -> None:
    work = long_tail(short=60, length=30)
    best = sum(work.seconds) / CORES
    rows = []
    for order in ALL:
        took = makespan(order, work)
        rows.append([order, f"{took:g}", f"{CORES * took - sum(work.seconds):g}"])
        if "hrf" in order:
            report.bars.append(
                Bar(f"{order}: makespan with a long tail, of the least possible", took / best, None, 1.0)
            )
    report.blocks.append("## Trailing tasks: 60 tasks of 1 s, and behind them in the queue a chain of 30")
    report.table(["order", "makespan (s)", "idle (core s)"], rows)
    report.say(f"The least possible is {best:g} s. Deck: HRF removes the trailing tasks.")


def _never_much_worse(report: Report, seeds: int) -> None:
    """Chains with lengths drawn at random: how much longer LIFO+HRF takes than LIFO."""
    worst = -1.0
    for seed in range(seeds):
        random = Random(seed)
        count = random.randrange(2, 40)
        first = [random.uniform(0.5, 2) for _ in range(count)]
        second = [random.uniform(0.1, 2) for _ in range(count)]
        work = chains(first, second)
        worst = max(worst, (makespan("lifo+hrf", work, seed) - makespan("lifo", work, seed)) / max(first))
    report.bars.append(
        Bar(
            f"LIFO+HRF behind LIFO, in lengths of the longest A, most of {seeds} drawn", worst, None, 1.0, form="{:.2f}"
        )
    )


if __name__ == "__main__":
    sys.exit(main(make, __doc__.split("\n")[0]))
