"""Results of a simulated cluster run: totals and event trace, and the reference makespan that a schedule can
achieve."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.peer_messages import Roster, TaskTransfer
from shoal.core.peer_scheduler import Event, MemberCommand
from shoal.core.resources import FRACTION
from shoal.core.work import Work, upward_lengths
from shoal.sim.cluster.files import Activity
from shoal.sim.cluster.specification import ClusterSpec
from shoal.sim.node import trace_digest

if TYPE_CHECKING:
    from shoal.sim.cluster.run import ClusterRun


BUSY = 0.9
"""The ramp-up ends when this fraction of the cores is busy."""


class SimulationResult(msgspec.Struct, frozen=True):
    """The result of one simulated run."""

    tasks: int
    nodes: int
    cores: int
    makespan: float
    computing: float
    """Core seconds of computation."""
    occupied: float
    """Core seconds of tasks, including transfers and writing."""
    moved: int
    """Bytes transferred between nodes."""
    from_shared: int
    """Bytes from the shared file system or from the location of the source files."""
    reads: int
    hits: int
    """Number of inputs read, and of those that were already on the node."""
    steals: int
    stolen: int
    pushed: int
    messages: int
    ramp: float | None
    """When the fraction `BUSY` of the cores was busy for the first time."""
    failed: int

    @property
    def utilisation(self) -> float:
        """Fraction of core time that was spent on computation."""
        return self.computing / (self.cores * self.makespan) if self.makespan else 1.0

    @property
    def throughput(self) -> float:
        return self.tasks / self.makespan if self.makespan else 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.reads if self.reads else 1.0

    @property
    def node_hours(self) -> float:
        return self.nodes * self.makespan / 3600


class RunCounters:
    """Counters during a run."""

    def __init__(self, work: Work, spec: ClusterSpec) -> None:
        self.cores = spec.cores()
        self.tasks = sum(1 for category in work.category if work.profiles[category].resources.amounts)
        self.done = 0
        self.computing = self.occupied = 0.0
        self.steals = self.stolen = self.pushed = self.messages = 0
        self.busy = 0
        self.ramp: float | None = None
        self.last_end = 0.0
        self._up = self.cores * BUSY

    def began(self, now: float) -> None:
        """Checks for the end of the ramp-up; called until it is reached."""
        if self.busy >= self._up:
            self.ramp = now

    def ended(self, now: float, activity: Activity) -> None:
        self.computing += activity.computing
        self.last_end = now
        self.busy -= 1
        self.occupied += now - activity.started

    def stopped(self, now: float, activity: Activity) -> None:
        self.busy -= 1
        self.occupied += now - activity.started

    def transfer(self, transfer: TaskTransfer) -> None:
        if transfer.round:
            self.steals += 1
            self.stolen += len(transfer.tickets)
        else:
            self.pushed += len(transfer.tickets)

    def played(self, run: ClusterRun) -> SimulationResult:
        files = run.files
        return SimulationResult(
            tasks=self.tasks,
            nodes=run.spec.nodes,
            cores=self.cores,
            makespan=self.last_end,
            computing=self.computing,
            occupied=self.occupied,
            moved=files.moved,
            from_shared=files.from_common,
            reads=files.reads,
            hits=files.hits,
            steals=self.steals,
            stolen=self.stolen,
            pushed=self.pushed,
            messages=self.messages,
            ramp=self.ramp,
            failed=self.tasks - self.done,
        )


LOOK_AHEAD = 16


class _Reference:
    def __init__(self, work: Work, spec: ClusterSpec) -> None:
        self.work, self.spec = work, spec
        self.length = upward_lengths(work)
        self.left = array("i", work.waits_for)
        self.place = array("i", [-1]) * len(work.file_bytes)
        for file, home in enumerate(work.file_home if not spec.shared_files else ()):
            self.place[file] = home % spec.nodes if home >= 0 else -1
        self.has_copy: set[tuple[int, int]] = set()
        self.ready: list[tuple[float, int]] = []
        self.runs: list[tuple[float, int, int]] = []
        self.free: list[int] = []
        """Nodes, one entry per idle core."""
        self.now = 0.0

    def bytes_to_fetch(self, task: int, node: int) -> int:
        if self.spec.shared_files:
            return 0
        missing = 0
        for file in self.work.inputs_of(task):
            if self.place[file] != node and self.place[file] >= 0 and (file, node) not in self.has_copy:
                missing += self.work.file_bytes[file]
        return missing

    def take(self, node: int) -> tuple[int, int]:
        """Selects a task for a core of this node: among the first few in the queue the one with the least data to
        transfer."""
        first = [heappop(self.ready) for _ in range(min(len(self.ready), LOOK_AHEAD if self.work.input_start else 1))]
        best = min(range(len(first)), key=lambda at: (self.bytes_to_fetch(first[at][1], node), at))
        for at, entry in enumerate(first):
            if at != best:
                heappush(self.ready, entry)
        task = first[best][1]
        return task, self.bytes_to_fetch(task, node)

    def start(self) -> None:
        while self.ready and self.free:
            node = self.free.pop()
            task, missing = self.take(node)
            kind = self.spec.kind(node)
            seconds = self.work.seconds[task] / kind.speed + missing / kind.link
            if kind.cache >= 0:
                self.has_copy.update((file, node) for file in self.work.inputs_of(task))
            heappush(self.runs, (self.now + seconds, task, node))

    def end(self) -> None:
        self.now, task, node = heappop(self.runs)
        for file in self.work.outputs_of(task):
            self.place[file] = node
        self.release(task)
        self.free.append(node)

    def release(self, task: int) -> None:
        """Queues children that became ready; groups are done immediately."""
        done = [task]
        for parent in done:  # the list grows during the iteration
            for child in self.work.children_of(parent):
                self.left[child] -= 1
                if not self.left[child]:
                    self.arrive(child, done)

    def arrive(self, task: int, done: list[int]) -> None:
        if self.work.profiles[self.work.category[task]].resources.amounts:
            heappush(self.ready, (-self.length[task], task))
        else:
            done.append(task)

    def makespan(self) -> float:
        self.free = [node for node in range(self.spec.nodes) for _ in range(self.spec.kind(node).cores)]
        done: list[int] = []
        for task, count in enumerate(self.work.waits_for):
            if not count:
                self.arrive(task, done)
        for task in done:
            self.release(task)
        heapify(self.ready)
        self.start()
        while self.runs:
            self.end()
            self.start()
        return self.now


def achievable(work: Work, spec: ClusterSpec) -> float:
    """Makespan of a simple list schedule in seconds, as a reference; for tasks with one core each."""
    if any(profile.resources.get("cores") > FRACTION for profile in work.profiles):
        raise ValueError("the reference schedule supports one core per task only")
    return _Reference(work, spec).makespan()


class ClusterTrace(msgspec.Struct):
    """The recorded events and results of a run. Identical runs have identical digests, also in different processes."""

    seed: int
    entries: list[tuple[float, int, Event, Sequence[MemberCommand]]] = []
    makespan: float = 0.0
    ends: dict[str, int] = {}
    """Number of tasks by kind of end."""
    seen: dict[str, int] = {}
    """Number of faults and of their consequences, by kind."""
    next_random: float = 0.0
    """The next number of the random generator: it shows that two runs have drawn equally often."""

    def note(self, now: float, node: int, event: Event, commands: Sequence[MemberCommand]) -> None:
        self.entries.append((now, node, event, commands))

    def saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def lines(self) -> list[bytes]:
        """One line of JSON per event, in a canonical form."""
        encode = msgspec.json.Encoder(enc_hook=_encode).encode
        return [encode(entry) for entry in self.entries]

    def digest(self) -> str:
        return trace_digest(self.lines(), (self.makespan, sorted(self.ends.items()), self.next_random))


def _encode(value: Any) -> Any:
    assert isinstance(value, Roster)
    return value.ids
