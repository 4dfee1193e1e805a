"""What a run would have taken if something had been different, from its recorded graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import msgspec
import numpy as np

from shoal.core.graph import GraphBuilder
from shoal.core.policies.stealing import Stealing
from shoal.core.quantities import show_cores, show_number
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile
from shoal.core.work import Work, ranks_of
from shoal.ledger.run_fold import RunNode
from shoal.ledger.views.attempts import Floats, Ints
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import Timeline
from shoal.ledger.views.waits import TaskWaits
from shoal.sim.cluster.run import ClusterRun, SimulationOptions
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec
from shoal.sim.lower_bound import NARROW, Capacity, WorkLevels, depths, lower_bound, whole
from shoal.sim.predictions import MOST_NODES, MOST_SIMULATED, predict

_THROUGHOUT = 0.05
"""A node counts as present throughout if it missed at most this fraction of the run at either end."""


_LOOK = 0.001
"""Interval between steal attempts of an idle node, as a fraction of the run. A live node tries more often. In a long
simulation these attempts would be most of the events, and they hardly change the result."""


class Simulated(msgspec.Struct, frozen=True):
    """Makespan of the recorded tasks in a simulation with the scheduler."""

    seconds: float
    nodes: int


def simulate(view: RunView, needs: TaskWaits, cores: float, most: int = MOST_SIMULATED) -> Simulated | None:
    """Returns None for runs that are too large, and for clusters whose nodes changed during the run."""
    if not 0 < len(needs) <= most or cores <= 0:
        return None
    if not view.is_cluster():
        return Simulated(_on_one_node(view, needs, cores), 1)
    nodes = list(view.nodes.values())
    if len(nodes) > MOST_NODES or not all(_was_there(view, node) for node in nodes):
        return None
    return Simulated(_on_nodes(view, needs, nodes), len(nodes))


def _on_one_node(view: RunView, needs: TaskWaits, cores: float) -> float:
    there = {name: amount for name, amount in (view.start.node if view.start else []) if "=" not in name}
    node = Resources.of({**there, "cores": max(1, round(cores * FRACTION))})
    kind, kinds = needs.kinds(view)
    names = [*view.categories, "(groups)"]
    profiles = [_profile(view, names[code], cores, node) for code, cores in kinds]
    builder = GraphBuilder(as_written=True)
    start, parents = needs.parent_start.tolist(), needs.parents.tolist()
    groups = len(view.categories)
    for row, (mine, ran) in enumerate(zip(kind.tolist(), needs.ran.tolist(), strict=True)):
        runs = ran and mine != groups
        builder.task(
            str(row),
            "recorded" if runs else None,
            after=parents[start[row] : start[row + 1]],
            profile=profiles[mine] if runs else None,
        )
    return predict(builder.build(), needs.seconds.tolist(), node).makespan


def _profile(view: RunView, category: str, cores: float, node: Resources) -> Profile:
    """The declared resources of a category with this number of cores, limited to the node's capacity."""
    requested_amounts = view.declared.get(category, {}) | {"cores": round(cores * FRACTION)}
    fitting = {name: min(amount, node.get(name)) for name, amount in requested_amounts.items() if node.get(name)}
    return Profile(category=category or "task", resources=Resources.of(fitting))


def _was_there(view: RunView, node: RunNode) -> bool:
    spare = _THROUGHOUT * (view.last_time - view.origin)
    if len(node.present) != 1 or node.cores < 1:
        return False
    begin, end = node.present[0]
    return begin <= view.origin + spare and (end is None or end >= view.last_time - spare)


def _on_nodes(view: RunView, needs: TaskWaits, nodes: list[RunNode]) -> float:
    work = needs.work(view)
    most = max(int(node.cores) for node in nodes)
    profiles = [
        msgspec.structs.replace(
            profile, resources=Resources.of({"cores": min(profile.resources.get("cores"), most * FRACTION)})
        )
        for profile in work.profiles
    ]
    rank = ranks_of(work.waits_for, work.child_start, work.children)
    work = msgspec.structs.replace(work, profiles=profiles, rank=rank)
    first, *others = (NodeSpec(cores=int(node.cores)) for node in nodes)
    spec = ClusterSpec(nodes=len(nodes), node=first, others=tuple((1, kind) for kind in others))
    usual, look = Stealing(), _LOOK * (view.last_time - view.origin)
    stealing = Stealing(
        first_interval=max(usual.first_interval, look / 2), longest_interval=max(usual.longest_interval, look)
    )
    return ClusterRun(work, spec, SimulationOptions(stealing=stealing)).execute().makespan


MOST_SCHEDULED = 100_000
"""Maximum number of tasks for a list schedule; for more tasks the lower bound is used."""


MOST_CATEGORIES = 6


SCHEDULE, BOUND = "list schedule", "lower bound"


class Supposition(msgspec.Struct, frozen=True):
    """A changed condition: a category that is twice as fast, or another number of cores."""

    category: str
    """Empty if the number of cores changes."""
    cores: float
    """Relative to the original number."""
    seconds: float
    """Estimated duration of the run with this change."""
    number: float = 0.0
    """Number of cores, if that changes."""

    @property
    def what(self) -> str:
        """The change as text."""
        if self.category:
            return f"every task of {self.category} twice as fast"
        number, there = round(self.number, 2), round(self.number / self.cores, 2)  # means, if nodes came and went
        return f"{show_cores(number)} instead of {show_number(there)}"


class Replayed(msgspec.Struct, frozen=True):
    """Replays of a recorded run: with its original conditions, and with changed ones."""

    method: str
    cores: float
    actual: float
    computed: float
    """Computed duration for the original conditions."""
    bound: float
    """Lower bound for all schedules of these tasks on these cores."""
    bound_by: str
    path: float
    """Seconds of the longest chain of dependent tasks."""
    over_cores: float
    supposed: list[Supposition]
    simulated: Simulated | None = None
    """Result of a simulation with the real scheduler; None if it was not possible."""


def replay(view: RunView, needs: TaskWaits, over_time: Timeline) -> Replayed | None:
    """Returns None if no task has taken any time, the number of cores is unknown, or the recorded graph has a cycle."""
    began = float(np.min(needs.first_started, initial=np.inf))
    cores = cores_there(view, over_time)
    if not np.isfinite(began) or not cores:
        return None
    actual = float(np.nanmax(needs.ended)) - began
    if actual <= 0:
        return None  # nothing to compare with
    small = len(needs) <= MOST_SCHEDULED
    again = _Scheduler(view, needs) if small else _Bounds(view, needs)
    if again.circular:
        return None
    would_take = again.makespan
    computed = would_take(needs.seconds, cores)
    most = MOST_CATEGORIES
    if isinstance(again, _Bounds):
        path, over, least, decides = again.path, again.over_cores, computed, again.decides
        most = 1 if again.narrow else MOST_CATEGORIES // 2
    else:
        bound = lower_bound(needs.work(view), Capacity(cores))
        path, over, least, decides = bound.path, bound.over_cores, bound.seconds, bound.decides
    scale = actual / computed if computed > 0 else 1.0
    of_cores = [
        Supposition("", number / cores, scale * would_take(needs.seconds, number), number)
        for number in _other_cores(cores, float(needs.cores(view)[needs.ran].max(initial=0.0)))
        if not over_time.crowded  # the number of cores was not the limit
    ]
    supposed = [
        Supposition(view.categories[code], 1.0, scale * would_take(halved, cores))
        for code, halved in _halved(view, needs, most)
    ]
    method = SCHEDULE if small else BOUND
    simulated = simulate(view, needs, cores)
    return Replayed(method, cores, actual, computed, least, decides, path, over, supposed + of_cores, simulated)


def cores_there(view: RunView, over_time: Timeline) -> float:
    """Mean number of cores during the run; where attempts shared them, the maximum number of concurrent attempts."""
    if over_time.crowded:
        return float(over_time.running.max(initial=1.0))
    there = over_time.capacity[over_time.capacity > 0]
    return float(there.mean()) if len(there) else view.total_cores()


def _other_cores(cores: float, widest: float) -> list[float]:
    """Double and half the number. Half of an integer is rounded down, since a task cannot use half a core. Fewer cores
    than the widest task needs are not considered."""
    half = max(widest, max(1.0, cores // 2) if cores == int(cores) else cores / 2)
    return [2 * cores, half] if half < cores else [2 * cores]


def _halved(view: RunView, needs: TaskWaits, most: int) -> Iterator[tuple[int, Floats]]:
    """For each of the categories with most core seconds: all durations, with those of its tasks halved."""
    size = len(view.categories)
    work = np.bincount(needs.category, needs.seconds * needs.cores(view), size + 1)[:size]
    for code in np.argsort(-work, kind="stable")[:most].tolist():
        if work[code] > 0:
            yield code, np.where(needs.category == code, needs.seconds / 2, needs.seconds)


def _is_circular(work: Work, depth: Ints) -> bool:
    """Whether the dependencies have a cycle. That happens if a ledger has lost the record between two runs, so that
    their links are mixed. Tasks on a cycle have no depth."""
    return bool(((depth == 0) & (whole(work.waits_for) > 0)).any())


class _Scheduler:
    """Computes list schedules. Columns are plain lists, which Python loops read much faster than arrays."""

    def __init__(self, view: RunView, needs: TaskWaits) -> None:
        held = needs.cores(view)
        sizes = np.maximum(np.round(held * FRACTION), np.where(held > 0, 1, 0)).astype(np.int64)
        self.size: list[int] = sizes.tolist()
        began = np.where(np.isfinite(needs.first_started), needs.first_started, np.inf)
        self.priority: list[int] = np.argsort(np.argsort(began, kind="stable"), kind="stable").tolist()
        work = needs.work(view)
        self.circular = _is_circular(work, depths(work))
        self.start: list[int] = np.asarray(work.child_start).tolist()
        self.children: list[int] = np.asarray(work.children).tolist()
        self.waits_for: list[int] = np.asarray(work.waits_for).tolist()

    def makespan(self, seconds: Floats, cores: float) -> float:
        """Length of the schedule."""
        free = max(round(cores * FRACTION), max(self.size, default=0))
        length: list[float] = seconds.tolist()
        left = list(self.waits_for)
        queues: dict[int, list[tuple[int, int]]] = {size: [] for size in sorted(set(self.size))}
        running: list[tuple[float, int]] = []
        now = 0.0
        fresh: Sequence[int] = [task for task, count in enumerate(left) if not count]
        while True:
            for task in fresh:
                heappush(queues[self.size[task]], (self.priority[task], task))
            while True:
                fitting = [queue for size, queue in queues.items() if queue and size <= free]
                if not fitting:
                    break
                _, task = heappop(min(fitting, key=lambda queue: queue[0]))
                free -= self.size[task]
                heappush(running, (now + length[task], task))
            if not running:
                return now
            now, task = heappop(running)
            free += self.size[task]
            fresh = self._released(task, left)

    def _released(self, task: int, left: list[int]) -> list[int]:
        found = []
        for child in self.children[self.start[task] : self.start[task + 1]]:
            left[child] -= 1
            if not left[child]:
                found.append(child)
        return found


class _Bounds:
    """Computes the larger of two lower bounds repeatedly for the same graph: the longest chain, and the work divided by
    the cores."""

    def __init__(self, view: RunView, needs: TaskWaits) -> None:
        work = needs.work(view)
        self._levels = WorkLevels(work)
        self.circular = _is_circular(work, self._levels.depth)
        self._walked: tuple[Floats, float] | None = None
        self.path = self.over_cores = 0.0
        """The two bounds of the last computation."""

    @property
    def narrow(self) -> bool:
        """Whether the graph consists of long chains rather than parallel tasks: it is then traversed task by task."""
        return len(self._levels.seconds) < NARROW * len(self._levels)

    @property
    def decides(self) -> str:
        return "path" if self.path > self.over_cores else "work"

    def makespan(self, seconds: Floats, cores: float) -> float:
        """Lower bound for all schedules."""
        if self._walked is None or self._walked[0] is not seconds:  # cached: traversal is slow and independent of cores
            ends = self._levels.walk(seconds, _Latest())[1]
            self._walked = (seconds, float(ends.max(initial=0.0)))
        self.path = self._walked[1]
        self.over_cores = float((seconds * self._levels.cores).sum()) / cores
        return max(self.path, self.over_cores)


class _Latest:
    """A task is ready when its last dependency has ended."""

    def many(self, ends: Floats, parents: Ints, first: Ints) -> Floats:
        found: Floats = np.maximum.reduceat(ends, first)
        return found

    def one(self, ends: list[float], parents: list[int]) -> float:
        return max(ends)
