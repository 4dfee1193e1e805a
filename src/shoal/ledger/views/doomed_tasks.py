"""Doomed tasks: those that cannot run any more because they depend on a task that failed.

The table of dependents is made only after a failure, and every task is visited once, so that a run with many failures
costs no more than its dependencies. The table takes four bytes per dependency, as much as the records themselves. It is
made piece by piece, because sorting all dependencies at once would take ten times as much memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.core.graph import NO_TASK
from shoal.ledger.records import TasksLinked
from shoal.ledger.views.attempts import Array, Ints

_PIECE = 1 << 15
"""Number of dependencies processed at once."""
_NARROW = 32
"""Up to this number, tasks are processed one by one: in a long chain numpy would be slower."""
_LOW = (1 << 32) - 1


class Doomed:
    """Finds the transitive dependents of failed tasks in one run; `links` may grow until the first failure."""

    def __init__(self, links: Sequence[TasksLinked]) -> None:
        self.links = len(links)
        columns = (np.frombuffer(column, "<i4") for record in links for column in (record.tasks, record.needs))
        self._size = 1 + max((int(column.max(initial=-1)) for column in columns), default=-1)
        counts: Ints = np.zeros(self._size + 1, np.int64)
        for needed, _ in pieces(links):
            np.add.at(counts, needed + 1, 1)
        self._start: Ints = np.cumsum(counts)
        """Where the dependents of each task begin in `_needing`."""
        self._needing: Array = np.empty(int(self._start[-1]), np.int32)
        self._sort(links, self._start[:-1].copy())
        self._over = bytearray(self._size)
        """1 for tasks that failed or are doomed and have been processed."""

    def _sort(self, links: Sequence[TasksLinked], free: Ints) -> None:
        """Fills `_needing`; `free` is the next free index for each task that others depend on."""
        for needed, needing in pieces(links):
            pairs = (needed << 32) | needing
            pairs.sort()
            needed = pairs >> 32
            first = np.flatnonzero(np.diff(needed, prepend=-1))
            many = np.diff(first, append=len(pairs))
            places = np.arange(len(pairs)) + np.repeat(free[needed[first]] - first, many)
            self._needing[places] = pairs & _LOW
            free[needed[first]] += many

    def follow(self, tasks: Ints) -> Ints:
        """Marks these tasks as failed; returns the tasks that cannot run because of them and were not returned before,
        including groups."""
        over = np.frombuffer(self._over, np.uint8)
        fresh = tasks[tasks < self._size]
        front: Ints = np.unique(fresh[over[fresh] == 0]).astype(np.int64)
        over[front] = 1
        found: list[Ints] = [np.zeros(0, np.int64)]
        while len(front):
            passed, front = self._one_by_one(front) if len(front) <= _NARROW else self._together(front, over)
            found.append(passed)
        return np.concatenate(found)

    def _one_by_one(self, front: Ints) -> tuple[Ints, Ints]:
        """Advances from a few tasks until there are many or none; returns the tasks found, and those to continue
        from."""
        over, start, needing = self._over, self._start.data, self._needing.data
        found: list[int] = []
        open_ones: list[int] = front.tolist()
        while 0 < len(open_ones) <= _NARROW:
            reached = []
            for task in open_ones:
                for child in needing[start[task] : start[task + 1]]:
                    if not over[child]:
                        over[child] = 1
                        reached.append(child)
            found += reached
            open_ones = reached
        return np.array(found, np.int64), np.array(open_ones, np.int64)

    def _together(self, front: Ints, over: Array) -> tuple[Ints, Ints]:
        """Advances one step from many tasks; the tasks found are those to continue from."""
        begins = self._start[front]
        counts = self._start[front + 1] - begins
        ends = np.cumsum(counts)
        found: list[Ints] = [np.zeros(0, np.int64)]
        for low in range(0, int(ends[-1]), _PIECE):
            at = np.arange(low, min(low + _PIECE, int(ends[-1])))
            which = np.searchsorted(ends, at, side="right")
            reached = self._needing[at - (ends - counts - begins)[which]]
            fresh = np.unique(reached[over[reached] == 0]).astype(np.int64)
            over[fresh] = 1
            found.append(fresh)
        passed = np.concatenate(found)
        return passed, passed


def pieces(links: Sequence[TasksLinked]) -> Iterator[tuple[Ints, Ints]]:
    """Yields dependencies as (needed, needing) columns, a limited number at a time."""
    for record in links:
        children = np.repeat(np.frombuffer(record.tasks, "<i4"), np.frombuffer(record.counts, "<i4"))
        parents = np.frombuffer(record.needs, "<i4")
        for low in range(0, len(parents), _PIECE):
            needed, needing = parents[low : low + _PIECE], children[low : low + _PIECE]
            known = needed != NO_TASK
            if known.any():
                yield needed[known].astype(np.int64), needing[known].astype(np.int64)
