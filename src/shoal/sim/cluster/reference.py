"""What a scheduler could achieve that knows everything: list scheduling in the same model, as a measure for the others.

One queue for the whole cluster, ordered by the length of the longest path behind each task; durations, sizes and places
are known exactly, and no message takes time. A free core takes the first task of the queue that has the most of its
input on that node among the first few; what is missing is fetched at the full rate of the link, without any contention.
That makes it a mark to be measured against, not a bound: it can be beaten now and then.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush

from shoal.model.resources import FRACTION
from shoal.model.work import Work, upward_lengths
from shoal.sim.cluster.spec import ClusterSpec

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
        """A task for a core of this node: of the first few in the queue the one with the least to fetch."""
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
        """Children that became ready; those that run nothing are done at once."""
        done = [task]
        for parent in done:  # grows while we walk it
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
    """The makespan of the reference, in seconds; for tasks that ask for one core each."""
    if any(profile.resources.get("cores") > FRACTION for profile in work.profiles):
        raise ValueError("the reference knows only tasks that ask for one core")
    return _Reference(work, spec).makespan()
