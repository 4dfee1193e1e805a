"""Placement: to which node a task goes that has just become ready (design §4.4).

Asked by the broker that completed the task's last parent. The answer is a node, into whose Local queue the task goes,
or `ANYWHERE`: it stays in the asking broker's Shared queue, and whoever is idle may take it. What counts is the sum of
a task's input bytes on each node, cached replicas included, never a single object.

`DataAware` is MATRIX's Algorithm 1 with a threshold: infinite balances load only (MLB), zero follows the data whatever
it costs (MDL), between them data decides if moving it would take long beside the task (RLDS, and FLDS with release).
`CandidatesPlacement` is Pwrake's rule: any node with more than half of what the richest has.
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
"""Seconds. A task is never taken to be shorter: moving is compared with it."""
LONG_TRANSFER = 1.0
"""Seconds of transfer above which data counts as large while nothing is known of the task's length."""
Holdings: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of node and bytes of a task's inputs that are there; each node once, no zeros."""


class Placement(Protocol):
    """What a broker asks of a placement."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        """The node for a task of this expected length (None: not known yet), or `ANYWHERE`."""

    def moved(self, transfer: float, computing: float) -> None:
        """Seconds that finished tasks spent on fetching their inputs and on computing, so that it can adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """Bytes a second that come here over a link."""


class DataAware:
    """Follows the data if moving it would take longer than `threshold` times the task."""

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
        """A fixed threshold does not adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth


class AdaptiveThreshold(DataAware):
    """A threshold that moves at run time: down, towards the data, while much time goes into moving it; else up."""

    MUCH, LITTLE = 0.2, 0.02
    """Shares of the time that tasks spend on fetching."""
    LOWEST, HIGHEST = 1 / 64, 64.0
    PERIOD = 32
    """Finished tasks between two changes, so that a change shows before the next."""

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
    """Pwrake's rule: this node if it has more than half of what the richest has, else the richest."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        if not holdings:
            return ANYWHERE
        node, most = richest(here, holdings)
        for candidate, amount in holdings:
            if candidate == here and 2 * amount > most:
                return here
        return node

    def moved(self, transfer: float, computing: float) -> None:
        """The rule does not adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """Only amounts are compared."""


def richest(here: int, holdings: Holdings) -> tuple[int, int]:
    """The node with the most bytes, and how many: this one among equals, else the one named first."""
    best, most = ANYWHERE, 0
    for node, amount in holdings:
        if amount > most or (amount == most and node == here):
            best, most = node, amount
    return best, most


MOST_TASKS = 20_000
"""More are divided in several batches: a batch takes about 20 microseconds per task and node halved."""
MOST_POSITIONS = 4
"""Inputs of a task along which tasks are divided."""
MAJORITY = 0.7
"""A node with so much of a task's data decides where the task goes: that is left to placement."""
SAME = 1.1
"""Ways whose costs differ by less are equally good, and the first is taken: several brokers that divide parts of the
same tasks should do it alike."""
LEAST_PER_NODE = 4
"""Fewer tasks for each node are not worth it."""


def is_worth_dividing(holdings: Sequence[Holdings], nodes: int) -> bool:
    """Whether the data of most of these tasks is scattered, and there are enough of them."""
    if nodes < 2 or len(holdings) < LEAST_PER_NODE * nodes:
        return False
    return 2 * sum(map(_is_scattered, holdings)) > len(holdings)


def _is_scattered(held: Holdings) -> bool:
    """Whether no node has most of it."""
    amounts = [amount for _, amount in held]
    return len(amounts) > 1 and max(amounts) < MAJORITY * sum(amounts)


def divide(
    work: Work,
    tasks: Sequence[int],
    holdings: Sequence[Holdings],
    nodes: Sequence[int],
    size: Callable[[int], int],
) -> dict[int, list[int]]:
    """The tasks of each node; those that read the same lie next to each other. `size` tells the bytes of a file."""
    found: dict[int, list[int]] = {}
    for at in range(0, len(tasks), MOST_TASKS):
        some, held = tasks[at : at + MOST_TASKS], holdings[at : at + MOST_TASKS]
        for node, share in _Batch(work, some, held, size).divided(list(some), nodes).items():
            found.setdefault(node, []).extend(share)
    return found


class _Batch:
    """Tasks that are divided together."""

    def __init__(
        self, work: Work, tasks: Sequence[int], holdings: Sequence[Holdings], size: Callable[[int], int]
    ) -> None:
        self._reads = {task: tuple(work.inputs_of(task)) for task in tasks}
        self._size = size
        self._homes = self._find_homes(holdings)

    def _find_homes(self, holdings: Sequence[Holdings]) -> dict[int, int]:
        """Where each file is: the node that is named most often for the tasks that read it."""
        votes: dict[int, dict[int, int]] = {}
        for files, held in zip(self._reads.values(), holdings, strict=True):
            for file in files:
                counts = votes.setdefault(file, {})
                for node, _ in held:
                    counts[node] = counts.get(node, 0) + 1
        return {file: max(counts, key=counts.__getitem__) for file, counts in votes.items() if counts}

    def divided(self, tasks: list[int], nodes: Sequence[int]) -> dict[int, list[int]]:
        """Halves until there is one node for each part."""
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
        """The tasks by one of their inputs: first those whose file the left side has, last those of the right."""
        reads, homes = self._reads, self._homes

        def place(task: int) -> tuple[int, int]:
            files = reads[task]
            file = files[position] if position < len(files) else -1
            return side.get(homes.get(file, -1), 0), file

        return sorted(tasks, key=place)

    def _fetched(self, tasks: Sequence[int], nodes: Sequence[int]) -> int:
        """Bytes that these nodes would fetch, if each of them read everything that these tasks read."""
        files = {file for task in tasks for file in self._reads[task]}
        own = sum(self._size(file) for file in files if self._homes.get(file, -1) in nodes)
        return sum(map(self._size, files)) * len(nodes) - own


MOST_REMEMBERED = 4096
MOST_TOLD = 256
"""Files that a thief names: the latest."""


def is_of_use(work: Work) -> bool:
    """Whether any task reads several files; where none does, to place each beside its file is all that can be done."""
    return any(end - begin > 1 for begin, end in pairwise(work.input_start))


class Gathering:
    """What one node has, and which tasks go well with that."""

    def __init__(self, work: Work, at_home: Iterable[int] = ()) -> None:
        """`at_home` are files that are here from the beginning."""
        self.work = work
        self.near: dict[int, None] = dict.fromkeys(at_home)
        """Files that are here or on their way, the latest last."""
        self._sizes: dict[int, int] = {}
        """Of files that were made here: a real run does not know how large a file will be."""
        self._total = 0

    def made(self, file: int, size: int) -> None:
        """A file was made here."""
        self._total += size - self._sizes.get(file, 0)
        self._sizes[file] = size

    def size(self, file: int) -> int:
        """Bytes of a file, at least 1; if nobody knows, the mean of those that were made here."""
        known = self.work.file_bytes[file] or self._sizes.get(file)
        if known is None:
            known = self._total // len(self._sizes) if self._sizes else 0
        return known or 1

    def weight(self, task: int) -> int:
        """Bytes that a task reads, as far as they can be known."""
        return sum(map(self.size, self.work.inputs_of(task)))

    def started(self, task: int) -> None:
        """A task starts here: what it reads and makes is near."""
        near = self.near
        for file in self.work.inputs_of(task):
            near.pop(file, None)
            near[file] = None
        for file in self.work.outputs_of(task):
            near[file] = None
        while len(near) > MOST_REMEMBERED:
            del near[next(iter(near))]

    def told(self) -> tuple[int, ...]:
        """What a thief says that it has."""
        return tuple(self.near)[-MOST_TOLD:]

    def choose(self, tasks: Iterable[int], near: Collection[int], count: int) -> list[int]:
        """So many of the tasks (all, if there are fewer), those first that miss the least where `near` is."""
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
        found += _Growth(missing, self.size).tasks(count - len(found))
        return found


class _Growth:
    """Fetches one file after the other, in thought: always the one with which the most tasks have all they read."""

    def __init__(self, missing: dict[int, set[int]], size: Callable[[int], int]) -> None:
        """`missing`: by task the files that it lacks, at least one each; it is used up."""
        self._missing = missing
        self._size = size
        self._wanting: dict[int, list[int]] = {}
        """By file: the tasks that lack it."""
        self._gain: dict[int, int] = {}
        """By file: the tasks that lack nothing else."""
        self._best: list[tuple[float, int]] = []
        """A heap of files by price; an entry with a price that holds no more is dead."""
        for task, lacking in missing.items():
            for file in lacking:
                self._wanting.setdefault(file, []).append(task)
            if len(lacking) == 1:
                (file,) = lacking
                self._gain[file] = self._gain.get(file, 0) + 1
        self._best = [(self._price(file), file) for file in self._gain]
        heapify(self._best)

    def tasks(self, count: int) -> list[int]:
        """So many of them, or all."""
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
        """The file with which the most tasks become complete for its size; if there is none, one of the first task."""
        while self._best:
            price, file = heappop(self._best)
            if file in self._wanting and price == self._price(file):
                return file
        return min(next(iter(self._missing.values())))

    def _price(self, file: int) -> float:
        """Bytes for each task that it completes."""
        return self._size(file) / self._gain[file]
