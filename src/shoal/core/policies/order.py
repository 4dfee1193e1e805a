"""Order policies: which ready task starts next; queues with one lane per resource request, and the two-level queue.

A queue keeps one *lane* per distinct resource request, so that a wide task at the head does not hide narrow ones behind
it. The scheduler passes the lanes that fit, and `pop` returns the best task among them. All queues are deterministic;
`rank-overlap` draws its initial credits from the given random generator.

`N_r` is the number of queued tasks of the highest rank present, `N_c` the number of cores that the queue serves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import islice
from random import Random
from typing import Protocol

import msgspec


class TaskColumn(Protocol):
    """Supports `column[task]`: an array, or a dictionary of the tasks present."""

    def __getitem__(self, task: int, /) -> int: ...
    def __setitem__(self, task: int, value: int, /) -> None: ...


class TaskColumns(msgspec.Struct):
    """Task properties used by the policies, as columns indexed by task number; they may grow during a run.

    An empty column is unknown: every task counts as 0.
    """

    lane: TaskColumn
    rank: Sequence[int] = ()
    input_bytes: Sequence[int] = ()
    upward_length: Sequence[float] = ()
    """Estimated seconds from the start of the task to the end of the workflow."""


class OrderQueue(Protocol):
    """Interface of an order policy."""

    newest_first: bool
    """Whether a batch must be pushed in reverse, so that its first task is popped first."""
    learns: bool
    """Whether `learn` must be called with durations of tasks."""

    def push(self, task: int) -> None: ...
    def pop(self, lanes: Sequence[int]) -> int: ...
    def remove(self, task: int) -> None: ...
    def waiting(self) -> list[int]: ...
    def lanes(self) -> Iterable[int]: ...
    def queued_in(self, lane: int) -> int: ...
    def peek(self, count: int) -> list[int]: ...
    def learn(self, task: int, duration: float) -> None: ...
    def serve(self, cores: int) -> None: ...
    def __len__(self) -> int: ...


class LaneQueue:
    """Common base of the orders: lane sizes, serial numbers, and lazy removal (stale entries are skipped later)."""

    newest_first = False
    learns = False

    def __init__(self, columns: TaskColumns) -> None:
        self.columns = columns
        self.sizes: dict[int, int] = {}
        """Number of queued tasks per lane, without empty lanes."""
        self.serial = 0
        self.live: dict[int, int] = {}
        """Serial number of each queued task; entries of heaps and stacks with another serial are stale."""

    def __len__(self) -> int:
        return len(self.live)

    def __bool__(self) -> bool:  # called for every task, so it avoids `__len__`
        return bool(self.live)

    def lanes(self) -> Iterable[int]:
        return self.sizes

    def queued_in(self, lane: int) -> int:
        return self.sizes.get(lane, 0)

    def waiting(self) -> list[int]:
        """The queued tasks, oldest first."""
        return list(self.live)

    def _enter(self, task: int) -> tuple[int, int]:
        self.serial += 1
        self.live[task] = self.serial
        lane = self.columns.lane[task]
        self.sizes[lane] = self.sizes.get(lane, 0) + 1
        return lane, self.serial

    def _leave(self, task: int) -> None:
        del self.live[task]
        lane = self.columns.lane[task]
        left = self.sizes[lane] - 1
        if left:
            self.sizes[lane] = left
        else:
            del self.sizes[lane]

    def remove(self, task: int) -> None:
        self._leave(task)

    def peek(self, count: int) -> list[int]:
        """Tasks that will probably be popped next: the newest, or the oldest. Accurate enough for prefetching."""
        return list(islice(reversed(self.live) if self.newest_first else self.live, count))

    def learn(self, task: int, duration: float) -> None:
        """Most orders ignore durations."""

    def serve(self, cores: int) -> None:
        """Sets the number of cores that this queue serves; most orders ignore it."""


class Fifo(LaneQueue):
    """First in, first out."""

    def __init__(self, columns: TaskColumns) -> None:
        super().__init__(columns)
        self.queues: dict[int, deque[tuple[int, int]]] = {}

    def push(self, task: int) -> None:
        lane, serial = self._enter(task)
        queue = self.queues.get(lane)
        if queue is None:
            queue = self.queues[lane] = deque()
        queue.append((serial, task))

    def pop(self, lanes: Sequence[int]) -> int:
        heads = []
        for lane in lanes:
            queue = self.queues[lane]
            while self.live.get(queue[0][1]) != queue[0][0]:
                queue.popleft()
            heads.append((queue[0][0], lane))
        _, lane = heads[0] if len(heads) == 1 else min(heads)
        _, task = self.queues[lane].popleft()
        self._leave(task)
        return task


class Lifo(LaneQueue):
    """Last in, first out: a core continues with the consumer of the file that it has just written."""

    newest_first = True

    def __init__(self, columns: TaskColumns) -> None:
        super().__init__(columns)
        self.stacks: dict[int, list[tuple[int, int]]] = {}

    def push(self, task: int) -> None:
        lane, serial = self._enter(task)
        stack = self.stacks.get(lane)
        if stack is None:
            stack = self.stacks[lane] = []
        stack.append((serial, task))

    def pop(self, lanes: Sequence[int]) -> int:
        if len(lanes) == 1:  # the common case; this code runs for every task
            stack, live = self.stacks[lanes[0]], self.live
            serial, task = stack.pop()
            while live.get(task) != serial:
                serial, task = stack.pop()
            self._leave(task)
            return task
        tops = []
        for lane in lanes:
            stack = self.stacks[lane]
            while self.live.get(stack[-1][1]) != stack[-1][0]:
                stack.pop()
            tops.append((stack[-1][0], lane))
        _, lane = tops[0] if len(tops) == 1 else max(tops)
        _, task = self.stacks[lane].pop()
        self._leave(task)
        return task


class Heaped(LaneQueue):
    """Smallest key first, oldest first among equal keys. The key is the rank, the input size or the path length."""

    def __init__(self, columns: TaskColumns, key: Callable[[int], float]) -> None:
        super().__init__(columns)
        self.key = key
        self.heaps: dict[int, list[tuple[float, int, int]]] = {}

    def push(self, task: int) -> None:
        lane, serial = self._enter(task)
        heappush(self.heaps.setdefault(lane, []), (self.key(task), serial, task))

    def peek(self, count: int) -> list[int]:
        heaps = (heap for heap in self.heaps.values() if heap)
        found = nsmallest(count, (entry for heap in heaps for entry in heap[: 4 * count]))
        return [task for _, serial, task in found if self.live.get(task) == serial]

    def pop(self, lanes: Sequence[int]) -> int:
        tops = []
        for lane in lanes:
            heap = self.heaps[lane]
            while self.live.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
            tops.append((heap[0], lane))
        lane = min(tops)[1]
        _, _, task = heappop(self.heaps[lane])
        self._leave(task)
        return task


class Ranked(LaneQueue):
    """Base of the orders that depend on N_r > N_c: per lane one stack of all tasks and one per rank.

    A task is on both stacks; popping it from one leaves a stale entry on the other, which is dropped when it reaches
    the top.
    """

    newest_first = True

    def __init__(self, columns: TaskColumns, cores: int) -> None:
        super().__init__(columns)
        self.cores = cores
        self.per_rank: dict[int, int] = {}
        """N_r for every rank present, over all lanes."""
        self.ranks: list[int] = []
        """Heap of negated ranks; a rank that is no longer present is dropped when it reaches the top."""
        self.stacks: dict[int, list[tuple[int, int]]] = {}
        self.rank_stacks: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def push(self, task: int) -> None:
        lane, serial = self._enter(task)
        known = self.columns.rank
        rank = known[task] if known else 0
        count = self.per_rank.get(rank)
        if count is None:
            self.per_rank[rank] = 1
            heappush(self.ranks, -rank)
        else:
            self.per_rank[rank] = count + 1
        entry = (serial, task)
        self.stacks.setdefault(lane, []).append(entry)
        self.rank_stacks.setdefault((lane, rank), []).append(entry)

    def _leave(self, task: int) -> None:
        super()._leave(task)
        known = self.columns.rank
        rank = known[task] if known else 0
        left = self.per_rank[rank] - 1
        if left:
            self.per_rank[rank] = left
        else:
            del self.per_rank[rank]
            self._forget_rank(rank)

    def _forget_rank(self, rank: int) -> None:
        """Drops stacks that contain only stale entries, in every lane."""
        for lane in self.stacks:
            self.rank_stacks.pop((lane, rank), None)

    def _rank_of(self, task: int) -> int:
        return self.columns.rank[task] if self.columns.rank else 0

    def serve(self, cores: int) -> None:
        self.cores = cores

    def _highest(self) -> int:
        while -self.ranks[0] not in self.per_rank:
            heappop(self.ranks)
        return -self.ranks[0]

    def _can_fill_cores(self) -> bool:
        """Whether N_r > N_c: tasks of the highest rank alone can fill the cores."""
        return self.per_rank[self._highest()] > self.cores

    def _newest(self, stacks: Iterable[list[tuple[int, int]] | None]) -> int | None:
        best = (-1, -1)
        live = self.live
        for stack in stacks:
            while stack:
                top = stack[-1]
                if live.get(top[1]) == top[0]:
                    if top > best:
                        best = top
                    break
                stack.pop()
        return best[1] if best[0] >= 0 else None

    def _newest_of_rank(self, lanes: Sequence[int], rank: int) -> int | None:
        return self._newest([self.rank_stacks.get((lane, rank)) for lane in lanes])

    def _of_highest_rank(self, lanes: Sequence[int]) -> int:
        task = self._best_of_rank(lanes, self._highest())
        if task is not None:
            return task
        for rank in sorted(self.per_rank, reverse=True):  # rare: the lanes of the highest rank do not fit
            task = self._best_of_rank(lanes, rank)
            if task is not None:
                return task
        raise AssertionError("pop of lanes without tasks")

    def _best_of_rank(self, lanes: Sequence[int], rank: int) -> int | None:
        return self._newest_of_rank(lanes, rank)


class LifoHrf(Ranked):
    """Newest task first while tasks of the highest rank can fill the cores; else the newest task of the highest
    rank."""

    def pop(self, lanes: Sequence[int]) -> int:
        if self._can_fill_cores():
            task = self._newest([self.stacks.get(lane) for lane in lanes])
        else:
            task = self._of_highest_rank(lanes)
        assert task is not None, "pop of lanes without tasks"
        self._leave(task)
        return task


class RankOverlap(Ranked):
    """Mixes ranks so that CPU-bound and I/O-bound stages overlap; near the end highest rank first, then largest input.

    While N_r > N_c the ranks take turns in proportion to their weights: 1 / mean duration of their finished tasks
    (unknown ranks get the mean of the known weights). The newest task of the selected rank is popped. Pwrake draws
    ranks at random with these weights. Random draws come in streaks, and the queue of a node has only some dozens of
    tasks; turns give the same mix at every moment. A turn costs O(ranks present).
    """

    learns = True

    def __init__(self, columns: TaskColumns, cores: int, random: Random) -> None:
        super().__init__(columns, cores)
        self.random = random
        self.credit: dict[int, float] = {}
        """Accumulated share of each rank. Starts at random values, so that not all queues begin with the same rank."""
        self.finished: dict[int, tuple[int, float]] = {}
        self.largest: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def push(self, task: int) -> None:
        super().push(task)
        size = self.columns.input_bytes[task] if self.columns.input_bytes else 0
        key = (self.columns.lane[task], self._rank_of(task))
        heappush(self.largest.setdefault(key, []), (-size, self.serial, task))

    def _forget_rank(self, rank: int) -> None:
        super()._forget_rank(rank)
        for lane in self.stacks:
            self.largest.pop((lane, rank), None)

    def learn(self, task: int, duration: float) -> None:
        rank = self._rank_of(task)
        count, total = self.finished.get(rank, (0, 0.0))
        self.finished[rank] = (count + 1, total + max(duration, 1e-6))

    def pop(self, lanes: Sequence[int]) -> int:
        task = self._mixed(lanes) if self._can_fill_cores() else self._of_highest_rank(lanes)
        assert task is not None, "pop of lanes without tasks"
        self._leave(task)
        return task

    def _mixed(self, lanes: Sequence[int]) -> int | None:
        present = [rank for rank in sorted(self.per_rank) if self._newest_of_rank(lanes, rank) is not None]
        known = {rank: self.finished[rank][0] / self.finished[rank][1] for rank in present if rank in self.finished}
        unknown = sum(known.values()) / len(known) if known else 1.0
        rank = self._next_rank(present, [known.get(rank, unknown) for rank in present])
        return self._newest_of_rank(lanes, rank)

    def _next_rank(self, present: Sequence[int], weights: Sequence[float]) -> int:
        """Credits each rank with its share of one task; the rank with the largest credit is selected."""
        total, before = sum(weights), self.credit
        self.credit = credit = {}
        for rank, weight in zip(present, weights, strict=True):
            begun = before[rank] if rank in before else self.random.random()
            credit[rank] = begun + weight / total
        chosen = max(present, key=credit.__getitem__)
        credit[chosen] -= 1
        return chosen

    def _best_of_rank(self, lanes: Sequence[int], rank: int) -> int | None:
        tops = []
        for lane in lanes:
            heap = self.largest.get((lane, rank))
            while heap and self.live.get(heap[0][2]) != heap[0][1]:
                heappop(heap)
            if heap:
                tops.append(heap[0])
        return min(tops)[2] if tops else None


def _rank(columns: TaskColumns) -> Callable[[int], float]:
    return lambda task: -columns.rank[task] if columns.rank else 0


def _bytes(columns: TaskColumns) -> Callable[[int], float]:
    return lambda task: -columns.input_bytes[task] if columns.input_bytes else 0


def _length(columns: TaskColumns) -> Callable[[int], float]:
    return lambda task: -columns.upward_length[task] if columns.upward_length else 0


ORDERS: dict[str, Callable[[TaskColumns, int, Random], OrderQueue]] = {
    "fifo": lambda columns, cores, random: Fifo(columns),
    "lifo": lambda columns, cores, random: Lifo(columns),
    "hrf": lambda columns, cores, random: Heaped(columns, _rank(columns)),
    "lifo+hrf": lambda columns, cores, random: LifoHrf(columns, cores) if columns.rank else Lifo(columns),
    "rank-overlap": lambda columns, cores, random: RankOverlap(columns, cores, random),
    "data": lambda columns, cores, random: Heaped(columns, _bytes(columns)),
    "critical": lambda columns, cores, random: Heaped(columns, _length(columns)),
}
DEFAULT_ORDER = "lifo+hrf"


class TwoLevelQueue:
    """The queue of a peer scheduler: local tasks, which stay with their data, and shared tasks, which may be stolen."""

    def __init__(self, make: Callable[[], OrderQueue], weight: Sequence[int]) -> None:
        """`weight` is the input bytes of each task, or empty."""
        self._make = make
        self._weight = weight
        self.shared = make()
        self.own: OrderQueue = self.shared
        """The local queue; the same object as the shared queue until the first local task arrives."""
        self.local: dict[int, None] = {}
        self.newest_first, self.learns = self.shared.newest_first, self.shared.learns
        assert isinstance(self.shared, LaneQueue)
        self.shared_tasks = self.shared.live

    def __len__(self) -> int:
        return len(self.shared) + len(self.local)

    def __bool__(self) -> bool:
        return bool(self.local or self.shared_tasks)

    def make_local(self, task: int) -> None:
        """Marks a task that will be pushed next as local."""
        if self.own is self.shared:
            self.own = self._make()
        self.local[task] = None

    def push(self, task: int) -> None:
        (self.own if task in self.local else self.shared).push(task)

    def pop(self, lanes: Sequence[int]) -> int:
        if not self.local:
            return self.shared.pop(lanes)
        here = [lane for lane in lanes if self.own.queued_in(lane)]
        if here:
            task = self.own.pop(here)
            del self.local[task]
            return task
        return self.shared.pop(lanes)

    def remove(self, task: int) -> None:
        if task in self.local:
            del self.local[task]
            self.own.remove(task)
        else:
            self.shared.remove(task)

    def waiting(self) -> list[int]:
        return [*self.own.waiting(), *self.shared.waiting()] if self.own is not self.shared else self.shared.waiting()

    def lanes(self) -> Iterable[int]:
        if not self.local:
            return self.shared.lanes()
        return dict.fromkeys((*self.own.lanes(), *self.shared.lanes()))

    def queued_in(self, lane: int) -> int:
        both = self.shared.queued_in(lane)
        return both + self.own.queued_in(lane) if self.local else both

    def peek(self, count: int) -> list[int]:
        if not self.local:
            return self.shared.peek(count)
        found = self.own.peek(count)
        return found + self.shared.peek(count - len(found)) if len(found) < count else found

    def learn(self, task: int, duration: float) -> None:
        self.shared.learn(task, duration)
        if self.own is not self.shared:
            self.own.learn(task, duration)

    def serve(self, cores: int) -> None:
        self.shared.serve(cores)
        self.own.serve(cores)

    def claim(self, tasks: Sequence[int]) -> None:
        """Makes these shared tasks local; they are popped next, in this order."""
        for task in reversed(tasks) if self.newest_first else tasks:
            self.shared.remove(task)
            self.make_local(task)
            self.own.push(task)

    def release(self, count: int) -> None:
        """Makes local tasks shared: those with the least data, the oldest first."""
        for task in self.lightest(self.own, count) if self.local else ():
            self.own.remove(task)
            del self.local[task]
            self.shared.push(task)

    def lightest(self, queue: OrderQueue, count: int, without: Collection[int] = ()) -> list[int]:
        """The tasks that are cheapest to move, the oldest first among equals: the owner keeps those with more data.

        Tasks of the lanes in `without` are not returned.
        """
        assert isinstance(queue, LaneQueue)
        if count >= len(queue) and not without:
            return list(queue.live)
        lane_of = queue.columns.lane
        live = [task for task in queue.live if lane_of[task] not in without] if without else queue.live
        if self._weight:
            return nsmallest(count, live, key=self._weight.__getitem__)
        found = []
        for task in live:
            found.append(task)
            if len(found) == count:
                break
        return found
