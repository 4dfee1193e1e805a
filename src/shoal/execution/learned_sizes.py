"""Learned resource sizes: one adviser per profile with undeclared resources, their file between runs, and lanes.

Sizes are learned per category and resource; the algorithms are in `shoal.core.policies.sizing`. The launcher reports
what an attempt has used when it ends, and when it outgrows its memory size; `DiskWatch` finds tasks that outgrow their
disk size. `lanes_for` and `columns_for` build what the scheduler needs to know of a graph.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Mapping

import msgspec

from shoal.core.graph import Graph, ranks, upward_lengths
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.sizing.adviser import SIZED, Amounts, Durations, ResourceSizer, SizeAdviser
from shoal.core.policies.sizing.sizer import Learned, Sizer
from shoal.core.policies.sizing.undeclared import CoreNeed, LearnedCores, new_part, open_resources
from shoal.core.policies.sizing.work_queue import WorkQueueAdviser, WorkQueueCategory, labelled_category
from shoal.core.policies.throttle.registry import NO_THROTTLE, Regime
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Adviser, Lane, LaneBundle
from shoal.core.scheduler_messages import TaskGrew
from shoal.core.task import Call
from shoal.execution.attempt_recorder import EndedAttempt
from shoal.ledger.identity import Versions
from shoal.ledger.workspace import Workspace

MODES = ("max-throughput", "min-waste", "max", "work-queue", "fixed")
DEFAULT_MODE = "max-throughput"
KEEP_SECONDS = 5.0
"""Interval at which learned sizes are saved during a run."""
LOOK_SECONDS = 0.25
"""Interval at which the outputs of running tasks are measured."""
MOST_FILES = 100
"""Outputs of tasks with more files than this are not measured while the task runs."""
_DISK = SIZED.index("disk")


class ShownSize(msgspec.Struct):
    """The latest size of a resource of a category, for display."""

    first: int = 0
    retries: int = 0
    waste: float | None = None
    """The unused fraction of size times time."""
    exceeded: int = 0
    """The largest size that was exceeded, unless a task is known to have used more."""


class KeptSizes(msgspec.Struct):
    """What the runs of a workflow have learned, by category. Files of earlier versions lack some fields."""

    memory: dict[str, Learned] = {}
    disk: dict[str, Learned] = {}
    cores: dict[str, LearnedCores] = {}
    wall: dict[str, Durations] = {}
    shown: dict[str, dict[str, ShownSize]] = {}
    """By category and resource, for the last run only."""
    throttle: dict[str, UsageProfile] = {}
    """The machine usage of tasks, and how many of them the machine can run at once."""


class LearnedSizes:
    """The advisers of one run."""

    def __init__(self, graph: Graph, node: Resources, mode: str, kept: KeptSizes, crowded: bool = False) -> None:
        """`crowded`: a throttle controls how many tasks with undeclared cores run."""
        self.kept = kept
        self.crowded = crowded
        self.node = node
        self.mode = mode
        self.of_profile: list[Adviser | None] = [None] * len(graph.profiles)
        self.parts: dict[tuple[str, str], Sizer | CoreNeed] = {}
        """By category and resource."""
        self._durations: dict[str, Durations] = {}
        self._categories: dict[str, WorkQueueCategory] = {}
        if mode == "fixed":
            return
        # Calls share a worker process, so their usage cannot be told apart. Groups use no resources.
        commands: set[int] = set()
        calls: set[int] = set()
        for number, action in zip(graph.profile, graph.actions, strict=True):
            if action is not None:
                (calls if isinstance(action, Call) else commands).add(number)
        for number in sorted(commands - calls):
            profile = graph.profiles[number]
            names = open_resources(profile, node)
            if names:
                self.of_profile[number] = self._adviser(profile.category, profile.resources, names)

    def _adviser(self, category: str, request: Resources, names: list[str]) -> Adviser:
        if self.mode == "work-queue":
            return WorkQueueAdviser(self.node, names, self._categories.setdefault(category, labelled_category()))
        parts: dict[str, ResourceSizer] = {name: self._part(category, name) for name in names}
        durations = self._durations.get(category)
        if durations is None:
            durations = self._durations[category] = self.kept.wall.get(category) or Durations()
        return SizeAdviser(self.node, request.get("cores"), parts, durations, self.crowded and "cores" in names)

    def _part(self, category: str, name: str) -> Sizer | CoreNeed:
        part = self.parts.get((category, name))
        if part is None:
            known: Mapping[str, Mapping[str, Learned | LearnedCores]] = {
                "cores": self.kept.cores,
                "memory": self.kept.memory,
                "disk": self.kept.disk,
            }
            part = new_part(name, self.node.get(name), self.mode, known[name].get(category))
            self.parts[category, name] = part
        return part

    def learned(self, profiles: Mapping[str, UsageProfile] | None = None) -> KeptSizes:
        """Returns what to save: the categories of this run, and those of earlier runs that this run does not have."""
        kept = self.kept
        found = KeptSizes(dict(kept.memory), dict(kept.disk), dict(kept.cores), {**kept.wall, **self._durations})
        found.throttle = {**kept.throttle, **(profiles or {})}
        for (category, name), part in self.parts.items():
            found.shown.setdefault(category, {})[name] = _shown(part)
            if isinstance(part, CoreNeed):
                if part.tasks:
                    found.cores[category] = part.learned()
            elif part.known.tasks:
                (found.memory if name == "memory" else found.disk)[category] = part.learned()
        return found


def _shown(part: Sizer | CoreNeed) -> ShownSize:
    waste = 1.0 - part.used / part.allocated if part.allocated else None
    exceeded = 0.0
    if isinstance(part, Sizer):
        exceeded = max(part.known.pending, default=0.0)
        exceeded = exceeded if exceeded > part.known.largest else 0.0
    return ShownSize(round(part.ask()), part.retries, waste, round(exceeded))


def amounts_used(attempt: EndedAttempt) -> Amounts:
    """Returns what an attempt has used of each resource in `SIZED`."""
    usage = attempt.usage
    return usage.cores * FRACTION // 1000, max(attempt.max_rss, usage.tree_memory), usage.disk


class DiskWatch:
    """Measures the outputs of running tasks, because the system reports no event when a file outgrows a limit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def look(self, running: Mapping[int, LaneBundle], attempts: Mapping[int, int]) -> list[TaskGrew]:
        """Returns the tasks whose outputs have outgrown their expected size."""
        grown: list[tuple[int, int]] = []
        total = 0
        for task, bundle in running.items():
            if bundle.sizes[_DISK] and bundle.left == 1:
                size = self._size(task)
                total += size
                if size > bundle.sizes[_DISK]:
                    grown.append((task, size))
        return [TaskGrew(task, attempts[task], size, total, "disk") for task, size in grown]

    def _size(self, task: int) -> int:
        files = self.graph.outputs_of(task)
        if len(files) > MOST_FILES:
            return 0
        total = 0
        for file in files:
            try:
                found = os.stat(self.graph.file_names[file])
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                total += found.st_size
        return total


def read_kept(workspace: Workspace) -> KeptSizes:
    """Returns what earlier runs learned. Returns an empty value if the file is missing or unreadable: sizes can be
    learned anew."""
    try:
        with open(workspace.sizes, "rb") as file:
            return msgspec.msgpack.decode(file.read(), type=KeptSizes)
    except (OSError, msgspec.MsgspecError):
        return KeptSizes()


def write_kept(workspace: Workspace, kept: KeptSizes) -> None:
    """Saves the sizes for the next run. An error here does not fail the run."""
    fresh = workspace.sizes + ".new"
    try:
        with open(fresh, "wb") as file:
            file.write(msgspec.msgpack.encode(kept))
        os.replace(fresh, workspace.sizes)
    except OSError:
        pass


_LEAST_CORES = 100
"""A task that requests no resources still takes a hundredth of a core, so that not all such tasks start at once."""


def columns_for(graph: Graph, versions: Versions, order: str) -> TaskColumns:
    """Fills only the columns that the order uses, because each one costs a walk over the graph."""
    columns = TaskColumns(array("i", graph.profile))  # a copy: tasks that exceed their size change lanes
    if order in ("hrf", "lifo+hrf", "rank-overlap"):
        columns.rank = ranks(graph)
    if order in ("data", "rank-overlap"):
        sizes = versions.sizes
        columns.input_bytes = [sum(max(0, sizes[file]) for file in graph.inputs_of(task)) for task in range(len(graph))]
    if order == "critical":
        columns.upward_length = upward_lengths(graph, [float(action is not None) for action in graph.actions])
    return columns


def lanes_for(graph: Graph, sizes: LearnedSizes, throttle: Regime = NO_THROTTLE) -> list[Lane]:
    """Returns one lane per profile. Short tasks may be bundled; the lanes of a category share one cap."""
    calls = {graph.profile[task] for task, action in enumerate(graph.actions) if isinstance(action, Call)}
    lanes = []
    for number, profile in enumerate(graph.profiles):
        resources, elastic = profile.resources, throttle.limits and not profile.declares("cores")
        if elastic:
            resources = resources.without("cores")
        elif not resources.amounts:
            resources = Resources((("cores", _LEAST_CORES),))
        # A call with a time limit is never bundled: killing it would also kill the other calls of its worker.
        bundled = number not in calls or profile.timeout is None
        adviser = sizes.of_profile[number]
        lane = Lane(resources, profile.retries, bundled, refilled=number not in calls, adviser=adviser)
        lane.cap, lane.elastic = throttle.cap_for(profile.category), elastic
        lanes.append(lane)
    return lanes
