"""Division: many tasks that became ready together are divided among the nodes so that few files need to move.

Where every task reads several files and every file is read by many tasks, as when all of one set are compared with all
of another, each task has some of its data on several nodes. Placed one by one they would take every file to every node.
Here the tasks are halved together with the nodes, and the halves again: each time along that input (the first, the
second, …) which leaves the fewest bytes to be fetched on both sides, and files that one side has already go there.
Comparing all pairs comes out as a grid. Pure, and the same for all who divide the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.model.work import Work
from shoal.policy.placement import Holdings

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
