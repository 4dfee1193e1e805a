"""What the reproductions of Pwrake's evaluation share: its cluster as a model, its queues, what is measured of a run.

With locality each node has a queue and tasks go where more than half of the richest node's input is (policy `pwrake`).
Without it Pwrake has one queue for all cores (`OneQueueRun`), which is another thing than brokers that keep what
becomes ready beside them: `mlb` is that, and is shown as well. Files lie on the nodes' disks either way, and are not
copied when they are read from another node, as on Gfarm.

One master of Pwrake has the first tasks, in the order in which a depth-first search from the target meets them
(`search_order`). So images that are neighbours are projected at about the same time, and their differences can be taken
long before the last image is there. Shoal's own brokers get the first tasks dealt out in random order.

A task reads its files one after another, computes, and writes. Real programs of Montage compute line by line while the
system reads ahead, so reading and computing overlap inside one of them as well. That is left out: the eight tasks of a
node overlap anyway, and how much one does by itself is printed nowhere.

The constants are guesses: the deck names the machines (8 cores of 2.33 GHz, 32 GiB, 1 Gb Ethernet) and none of these.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev

import msgspec

from shoal.core.policies.order import ORDERS as QUEUES
from shoal.core.policies.order import RankOverlap
from shoal.core.policies.stealing import Stealing
from shoal.core.store.interface import ReadyBatch
from shoal.core.work import Work
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

ORDERS = ("fifo", "lifo", "lifo+hrf", "rank-overlap")
COMPUTING = " by computing"
"""Behind the name of an order: it learns how long tasks computed, as Shoal does, whose brokers have inputs fetched
before a task starts; without it, how long they took with reading and writing, as Pwrake does."""
OVERLAP_BY_COMPUTING = "rank-overlap" + COMPUTING
LITERAL = "rank-overlap, drawn"
"""Rank Overlap by the letter of the deck: ranks are drawn. Shoal's own lets them take turns."""
DISK_RATE = 100e6
"""Bytes per second: one SATA disk of 2008, of which 80 to 120 MB/s are said."""
LINK = 117e6
"""Bytes per second: 1 Gb/s less the headers of Ethernet, IP and TCP."""
PAGE_CACHE = 28 * 10**9
"""Bytes of the 34 there are; the rest is the system, Gfarm and eight programs."""
DIRTY = 34 * 10**9 // 10
"""Bytes that may wait in memory to be written: `vm.dirty_ratio` of Linux 2.6.26, the kernel of Debian 5, is 10 %."""
OVERHEAD = 0.02
"""Seconds per task for a shell on the node and opening files by way of FUSE."""
SEQUENTIAL = ("mConcatFit", "mBgModel", "mImgtbl", "mAddShrunk", "mJPEG")
"""Stages of the Montage that the deck leaves out of its times: single tasks, during which all others wait."""
ONE_QUEUE = "one queue"
SHUFFLED = "pwrake, shuffled"
"""Pwrake's candidates, and first tasks in random order."""
PLACEMENTS = {
    ONE_QUEUE: "off: one queue for all",
    "mlb": "off: a queue per node, load decides",
    "pwrake": "on: a queue per node, Pwrake's candidates",
    "flds": "on: flds, Shoal's default",
}


@dataclass(frozen=True)
class Machine:
    """The cluster of the deck, and what of it is varied to see how much it matters."""

    nodes: int
    cores: int = 8
    disk_rate: float = DISK_RATE
    page_cache: int = PAGE_CACHE
    dirty: int = DIRTY

    def spec(self) -> ClusterSpec:
        node = NodeSpec(
            cores=self.cores,
            link=LINK,
            disk_rate=self.disk_rate,
            page_cache=self.page_cache,
            dirty=self.dirty,
            cache=-1,
        )
        return ClusterSpec(nodes=self.nodes, node=node, overhead=OVERHEAD)


@dataclass(frozen=True)
class Measured:
    """One run, or the mean of several. Times without the sequential stages, as in the deck; bytes with all."""

    elapsed: float
    cumulative: float
    utilisation: float
    from_memory: float
    from_disk: float
    moved: float
    makespan: float
    """With the sequential stages."""
    error: float = 0.0
    """Standard error of the elapsed time, if it is a mean."""


def mean(runs: Sequence[Measured]) -> Measured:
    columns = zip(*(tuple(vars(run).values()) for run in runs), strict=True)
    found = Measured(*(sum(column) / len(runs) for column in columns))
    error = stdev([run.elapsed for run in runs]) / len(runs) ** 0.5 if len(runs) > 1 else 0.0
    return replace(found, error=error)


class DrawnOverlap(RankOverlap):
    """Rank Overlap as Pwrake has it."""

    def _next_rank(self, present: Sequence[int], weights: Sequence[float]) -> int:
        return self.random.choices(present, weights)[0]


QUEUES[LITERAL] = DrawnOverlap


def behind(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """By which part ours are above the others, and the standard error of that; pairs are runs of the same seed."""
    differences = [mine - theirs for mine, theirs in zip(ours, others, strict=True)]
    mean_of_others = sum(others) / len(others)
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return sum(differences) / len(differences) / mean_of_others, error / mean_of_others


def search_order(work: Work) -> dict[int, int]:
    """The place of each task in a depth-first search from those that nobody waits for."""
    maker = {file: task for task in range(len(work)) for file in work.outputs_of(task)}
    found: dict[int, int] = {}
    stack = [task for task in reversed(range(len(work))) if not len(work.children_of(task))]
    while stack:
        task = stack.pop()
        if task not in found:
            found[task] = len(found)
            stack += [maker[file] for file in reversed(work.inputs_of(task)) if file in maker]
    return found


class PwrakeRun(ClusterRun):
    """Has a master that searches for the first tasks, and adds up the time of each stage with reading and writing."""

    learns_computing = False

    def __init__(self, work: Work, spec: ClusterSpec, options: SimulationOptions) -> None:
        super().__init__(work, spec, options)
        self.stage_seconds = dict.fromkeys((profile.category for profile in work.profiles), 0.0)

    def submit(self, placeable: ReadyBatch) -> None:
        if self.options.submission == "one":
            found = search_order(self.work)
            pairs = list(zip(placeable.tickets, placeable.holdings, strict=True))
            pairs.sort(key=lambda pair: found[pair[0].task])
            placeable.tickets[:] = [ticket for ticket, _ in pairs]
            placeable.holdings[:] = [holdings for _, holdings in pairs]
        super().submit(placeable)

    def end(self, activity: Activity, _: None) -> None:
        stage = self.work.profiles[self.work.category[activity.task]].category
        self.stage_seconds[stage] += self.now - activity.started
        if not self.learns_computing:
            activity.computing = self.now - activity.started
        super().end(activity, _)

    def measured(self) -> Measured:
        played = self.execute()
        sequential = sum(self.stage_seconds.get(stage, 0.0) for stage in SEQUENTIAL)
        elapsed = played.makespan - sequential
        cumulative = sum(self.stage_seconds.values()) - sequential
        files = self.files
        return Measured(
            elapsed,
            cumulative,
            cumulative / played.cores / elapsed,
            files.from_memory,
            files.from_disk,
            files.moved,
            played.makespan,
        )


class OneQueueRun(PwrakeRun):
    """One queue for all cores of all nodes: a core that becomes free takes what is next, wherever its input is."""

    def join(self, node: int, kind: NodeSpec) -> None:
        if not node:
            super().join(node, msgspec.structs.replace(kind, cores=self.spec.cores()))
            return
        self.members[node] = self.members[0]
        self.kinds[node] = kind
        self.activities[node] = {}
        self.files.join(node, kind)

    def start(self, node: int, task: int, attempt: int) -> None:
        """The queue says what starts because something ended on `node`; if no core is free there, on another."""
        if self._idle(node) < 1:
            node = max(self.activities, key=self._idle)
        super().start(node, task, attempt)

    def _idle(self, node: int) -> int:
        return self.spec.node.cores - len(self.activities[node])


def measure(work: Work, machine: Machine, placement: str, order: str, seed: int) -> Measured:
    """One simulated run. Nothing is fetched ahead: a task of Pwrake reads when it runs."""
    name = order.removesuffix(COMPUTING)
    if placement == ONE_QUEUE:
        still = Stealing(enabled=False)
        options = SimulationOptions(policy="mlb", order=name, stealing=still, look_ahead=0, submission="one", seed=seed)
        run: PwrakeRun = OneQueueRun(work, machine.spec(), options)
    else:
        policy = "pwrake" if placement == SHUFFLED else placement
        submission = "one" if placement == "pwrake" else "all"
        options = SimulationOptions(policy=policy, order=name, look_ahead=0, submission=submission, seed=seed)
        run = PwrakeRun(work, machine.spec(), options)
    run.learns_computing = name != order
    return run.measured()


def with_seconds(work: Work, factor: float) -> Work:
    """The same workload with computing that takes so many times as long."""
    return msgspec.structs.replace(work, seconds=array("d", [factor * each for each in work.seconds]))


def change(before: float, after: float) -> str:
    """In per cent, with a sign."""
    return f"{100 * (after / before - 1):+.0f} %"
