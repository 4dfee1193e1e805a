"""Gathering: which of many tasks read what a node has, so that few further files need to come.

`Placement` looks at one task alone. Here tasks are chosen together: first those that miss nothing, then those of the
file with which the most further ones have all that they read, and so on. A node chooses like that among what waits in
its own queue, and whoever is asked for tasks by a thief chooses like that for the thief, which says what it has.

What a node has is remembered from what was started there. A file that was evicted since is fetched once more, as it
would be anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise

from shoal.model.work import Work

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
