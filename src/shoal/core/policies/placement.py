"""Placement: the node for a task that has just become ready, and the division of many tasks with common files.

The scheduler that completed the task's last parent asks. The result is a node, whose local queue the task enters, or
`ANYWHERE`: the task stays in the shared queue of the asking scheduler, and idle peers may steal it. The criterion is
the sum of the task's input bytes on each node, including cached replicas, never a single file.

`DataAware` is Algorithm 1 of MATRIX with a threshold: infinity balances load only (MLB), zero follows the data at any
cost (MDL), values between follow the data if moving it takes long compared with the task (RLDS, and FLDS with release).
`CandidatesPlacement` is Pwrake's rule: any node with more than half of the bytes of the node with the most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import Protocol, TypeAlias

from shoal.core.work import Work

ANYWHERE = -1
SHORTEST_TASK = 0.001
"""Lower bound of task durations in seconds; the transfer time is compared with it."""
LONG_TRANSFER = 1.0
"""Transfers longer than this many seconds count as long while the duration of the task is unknown."""
Holdings: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of node and input bytes of a task on that node; each node once, no zeros."""


class Placement(Protocol):
    """Interface of a placement policy."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        """The node for a task of this expected duration (None: unknown), or `ANYWHERE`."""

    def moved(self, transfer: float, computing: float) -> None:
        """Reports seconds that finished tasks spent fetching inputs and computing, so that the policy can adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """Sets the bandwidth of transfers to this node, in bytes per second."""


class DataAware:
    """Follows the data if moving it would take longer than `threshold` times the task's duration."""

    def __init__(self, threshold: float, bandwidth: float) -> None:
        """`bandwidth` in bytes per second."""
        self.threshold = threshold
        self.bandwidth = bandwidth

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        if not holdings or self.threshold == inf:
            return ANYWHERE
        if seconds is None:
            least = LONG_TRANSFER * self.bandwidth if self.threshold else 0.0
        else:
            least = self.threshold * max(seconds, SHORTEST_TASK) * self.bandwidth
        total = sum([amount for _, amount in holdings])
        if total <= least:
            return ANYWHERE
        node, most = richest(here, holdings)
        return node if most > least else ANYWHERE

    def moved(self, transfer: float, computing: float) -> None:
        """No effect: the threshold is fixed."""

    def set_bandwidth(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth


class AdaptiveThreshold(DataAware):
    """Adapts the threshold: down (towards the data) while tasks spend much time on transfers, otherwise up."""

    MUCH, LITTLE = 0.2, 0.02
    """Shares of fetching in the time of tasks, above and below which the threshold changes."""
    LOWEST, HIGHEST = 1 / 64, 64.0
    PERIOD = 32
    """Finished tasks between two changes, so that the effect of a change is visible before the next."""

    def __init__(self, threshold: float, bandwidth: float) -> None:
        super().__init__(threshold, bandwidth)
        self._transfer = self._computing = 0.0
        self._count = 0

    def moved(self, transfer: float, computing: float) -> None:
        self._transfer += transfer
        self._computing += computing
        self._count += 1
        if self._count < self.PERIOD:
            return
        spent = self._transfer + self._computing
        share = self._transfer / spent if spent else 0.0
        if share > self.MUCH:
            self.threshold = max(self.LOWEST, self.threshold / 2)
        elif share < self.LITTLE:
            self.threshold = min(self.HIGHEST, self.threshold * 2)
        self._transfer = self._computing = 0.0
        self._count = 0


class CandidatesPlacement:
    """Pwrake's rule: this node if it has more than half of the bytes of the node with the most, else that node."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        if not holdings:
            return ANYWHERE
        node, most = richest(here, holdings)
        for candidate, amount in holdings:
            if candidate == here and 2 * amount > most:
                return here
        return node

    def moved(self, transfer: float, computing: float) -> None:
        """No effect: the rule does not adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """No effect: only amounts of data are compared."""


def richest(here: int, holdings: Holdings) -> tuple[int, int]:
    """The node with the most bytes, and the bytes; on a tie this node, else the first."""
    best, most = ANYWHERE, 0
    for node, amount in holdings:
        if amount > most or (amount == most and node == here):
            best, most = node, amount
    return best, most


MOST_TASKS = 20_000
"""Maximum size of a batch; more tasks are divided in several batches. A batch costs about 20 microseconds per task and
halving."""
MOST_POSITIONS = 4
"""Maximum number of input positions along which tasks are divided."""
MAJORITY = 0.7
"""If one node has this share of a task's data, ordinary placement decides for the task."""
SAME = 1.1
"""Cuts whose costs differ by less than this factor count as equal, and the first one is used: several schedulers that
divide parts of the same tasks should divide them alike."""
LEAST_PER_NODE = 4
"""Minimum number of tasks per node; fewer tasks are not worth dividing."""


def is_worth_dividing(holdings: Sequence[Holdings], nodes: int) -> bool:
    """Whether there are enough tasks, and the data of most of them is scattered."""
    if nodes < 2 or len(holdings) < LEAST_PER_NODE * nodes:
        return False
    return 2 * sum(map(_is_scattered, holdings)) > len(holdings)


def _is_scattered(held: Holdings) -> bool:
    """Whether no node has most of the data."""
    amounts = [amount for _, amount in held]
    return len(amounts) > 1 and max(amounts) < MAJORITY * sum(amounts)


def divide(
    work: Work,
    tasks: Sequence[int],
    holdings: Sequence[Holdings],
    nodes: Sequence[int],
    size: Callable[[int], int],
) -> dict[int, list[int]]:
    """Tasks of each node, divided so that tasks with common inputs share a node. `size` gives the bytes of a file."""
    found: dict[int, list[int]] = {}
    for at in range(0, len(tasks), MOST_TASKS):
        some, held = tasks[at : at + MOST_TASKS], holdings[at : at + MOST_TASKS]
        for node, share in _Batch(work, some, held, size).divided(list(some), nodes).items():
            found.setdefault(node, []).extend(share)
    return found


class _Batch:
    """Tasks that are divided together by recursive bisection."""

    def __init__(
        self, work: Work, tasks: Sequence[int], holdings: Sequence[Holdings], size: Callable[[int], int]
    ) -> None:
        self._reads = {task: tuple(work.inputs_of(task)) for task in tasks}
        self._size = size
        self._homes = self._find_homes(holdings)

    def _find_homes(self, holdings: Sequence[Holdings]) -> dict[int, int]:
        """The home of each file: the node listed most often for the tasks that read it."""
        votes: dict[int, dict[int, int]] = {}
        for files, held in zip(self._reads.values(), holdings, strict=True):
            for file in files:
                counts = votes.setdefault(file, {})
                for node, _ in held:
                    counts[node] = counts.get(node, 0) + 1
        return {file: max(counts, key=counts.__getitem__) for file, counts in votes.items() if counts}

    def divided(self, tasks: list[int], nodes: Sequence[int]) -> dict[int, list[int]]:
        """Bisects recursively until each part has one node."""
        if len(nodes) == 1 or not tasks:
            return {nodes[0]: tasks} if tasks else {}
        middle = (len(nodes) + 1) // 2
        left, right = nodes[:middle], nodes[middle:]
        first, second = self._halved(tasks, left, right)
        return {**self.divided(first, left), **self.divided(second, right)}

    def _halved(self, tasks: list[int], left: Sequence[int], right: Sequence[int]) -> tuple[list[int], list[int]]:
        side = dict.fromkeys(left, -1) | dict.fromkeys(right, 1)
        wanted = len(tasks) * len(left) // (len(left) + len(right))
        positions = min(MOST_POSITIONS, max(len(self._reads[task]) for task in tasks))
        ways = [self._along(position, tasks, side) for position in range(positions)] or [tasks]
        costs = [self._fetched(way[:wanted], left) + self._fetched(way[wanted:], right) for way in ways]
        best = next(way for way, cost in zip(ways, costs, strict=True) if cost <= SAME * min(costs))
        return best[:wanted], best[wanted:]

    def _along(self, position: int, tasks: list[int], side: dict[int, int]) -> list[int]:
        """Sorts the tasks by one of their inputs: first those whose file is on the left side, last those on the
        right."""
        reads, homes = self._reads, self._homes

        def place(task: int) -> tuple[int, int]:
            files = reads[task]
            file = files[position] if position < len(files) else -1
            return side.get(homes.get(file, -1), 0), file

        return sorted(tasks, key=place)

    def _fetched(self, tasks: Sequence[int], nodes: Sequence[int]) -> int:
        """Bytes that these nodes would fetch if each of them read every input of these tasks."""
        files = {file for task in tasks for file in self._reads[task]}
        own = sum(self._size(file) for file in files if self._homes.get(file, -1) in nodes)
        return sum(map(self._size, files)) * len(nodes) - own


MOST_REMEMBERED = 4096
MOST_ADVERTISED = 256
"""Maximum number of files in a steal request: the latest ones."""


def is_of_use(work: Work) -> bool:
    """Whether any task reads several files; if none does, placing each task beside its file is optimal."""
    return any(end - begin > 1 for begin, end in pairwise(work.input_start))


class Gathering:
    """Tracks the files on one node and selects the tasks that fit them best."""

    def __init__(self, work: Work, at_home: Iterable[int] = ()) -> None:
        """`at_home` are files that are here from the start."""
        self.work = work
        self.near: dict[int, None] = dict.fromkeys(at_home)
        """Files that are here or being fetched, the latest last."""
        self._sizes: dict[int, int] = {}
        """Sizes of files made here: a real run does not know output sizes in advance."""
        self._total = 0

    def made(self, file: int, size: int) -> None:
        """Records a file that was made here."""
        self._total += size - self._sizes.get(file, 0)
        self._sizes[file] = size

    def size(self, file: int) -> int:
        """Bytes of a file, at least 1; the mean of the files made here if unknown."""
        known = self.work.file_bytes[file] or self._sizes.get(file)
        if known is None:
            known = self._total // len(self._sizes) if self._sizes else 0
        return known or 1

    def weight(self, task: int) -> int:
        """Input bytes of a task, as far as known."""
        return sum(map(self.size, self.work.inputs_of(task)))

    def started(self, task: int) -> None:
        """Records a task that starts here: its inputs and outputs are near."""
        near = self.near
        for file in self.work.inputs_of(task):
            near.pop(file, None)
            near[file] = None
        for file in self.work.outputs_of(task):
            near[file] = None
        while len(near) > MOST_REMEMBERED:
            del near[next(iter(near))]

    def advertised(self) -> tuple[int, ...]:
        """Files to list in a steal request."""
        return tuple(self.near)[-MOST_ADVERTISED:]

    def choose(self, tasks: Iterable[int], near: Collection[int], count: int) -> list[int]:
        """Up to `count` of the tasks, those first that miss the fewest bytes where the files in `near` are."""
        found: list[int] = []
        missing: dict[int, set[int]] = {}
        for task in tasks:
            lacking = {file for file in self.work.inputs_of(task) if file not in near}
            if lacking:
                missing[task] = lacking
                continue
            found.append(task)
            if len(found) == count:
                return found
        found += _GreedySelection(missing, self.size).tasks(count - len(found))
        return found


class _GreedySelection:
    """Greedy selection: repeatedly adds the file that completes the inputs of the most tasks per byte."""

    def __init__(self, missing: dict[int, set[int]], size: Callable[[int], int]) -> None:
        """`missing`: by task its missing files, at least one each; consumed by the selection."""
        self._missing = missing
        self._size = size
        self._wanting: dict[int, list[int]] = {}
        """By file: the tasks that miss it."""
        self._gain: dict[int, int] = {}
        """By file: the number of tasks that miss nothing else."""
        self._best: list[tuple[float, int]] = []
        """Heap of files by price; entries with an outdated price are stale."""
        for task, lacking in missing.items():
            for file in lacking:
                self._wanting.setdefault(file, []).append(task)
            if len(lacking) == 1:
                (file,) = lacking
                self._gain[file] = self._gain.get(file, 0) + 1
        self._best = [(self._price(file), file) for file in self._gain]
        heapify(self._best)

    def tasks(self, count: int) -> list[int]:
        """The first `count` tasks, or all."""
        found: list[int] = []
        while len(found) < count and self._missing:
            file = self._next()
            for task in self._wanting.pop(file):
                lacking = self._missing[task]
                lacking.discard(file)
                if not lacking:
                    found.append(task)
                    del self._missing[task]
                elif len(lacking) == 1:
                    (last,) = lacking
                    self._gain[last] = self._gain.get(last, 0) + 1
                    heappush(self._best, (self._price(last), last))
        return found[:count]

    def _next(self) -> int:
        """The file that completes the most tasks per byte; if none completes a task, one file of the first task."""
        while self._best:
            price, file = heappop(self._best)
            if file in self._wanting and price == self._price(file):
                return file
        return min(next(iter(self._missing.values())))

    def _price(self, file: int) -> float:
        """Bytes per completed task."""
        return self._size(file) / self._gain[file]
