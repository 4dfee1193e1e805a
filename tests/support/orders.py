"""The orders once more, as plainly as the rules are written: a list, and a scan of all of it for every pop."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.core.policies.order import TaskColumns


class NaiveQueue:
    """The rules word by word; O(n) per operation."""

    def __init__(self, order: str, columns: TaskColumns, cores: int, random: Random) -> None:
        self.order = order
        self.columns = columns
        self.cores = cores
        self.random = random
        self.queued: list[int] = []
        """Oldest first."""
        self.finished: dict[int, list[float]] = {}
        self.credit: dict[int, float] = {}

    def push(self, task: int) -> None:
        self.queued.append(task)

    def remove(self, task: int) -> None:
        self.queued.remove(task)

    def learn(self, task: int, duration: float) -> None:
        self.finished.setdefault(self.columns.rank[task], []).append(duration)

    def pop(self, lanes: Sequence[int]) -> int:
        task = self._choose([task for task in self.queued if self.columns.lane[task] in lanes])
        self.queued.remove(task)
        return task

    def _choose(self, allowed: list[int]) -> int:
        columns = self.columns
        match self.order:
            case "fifo":
                return allowed[0]
            case "lifo":
                return allowed[-1]
            case "hrf":
                return self._first_largest(allowed, columns.rank)
            case "data":
                return self._first_largest(allowed, columns.input_bytes)
            case "critical":
                return self._first_largest(allowed, columns.upward_length)
        ranks = [columns.rank[task] for task in self.queued]
        plenty = ranks.count(max(ranks)) > self.cores
        highest = max(columns.rank[task] for task in allowed)
        of_highest = [task for task in allowed if columns.rank[task] == highest]
        if self.order == "lifo+hrf":
            return allowed[-1] if plenty else of_highest[-1]
        return self._in_turn(allowed) if plenty else self._first_largest(of_highest, columns.input_bytes)

    def _first_largest(self, tasks: list[int], column: Sequence[float]) -> int:
        largest = max(column[task] for task in tasks)
        return next(task for task in tasks if column[task] == largest)

    def _in_turn(self, allowed: list[int]) -> int:
        rank = self.columns.rank
        present = sorted({rank[task] for task in allowed})
        known = {one: len(self.finished[one]) / sum(self.finished[one]) for one in present if one in self.finished}
        mean = sum(known.values()) / len(known) if known else 1.0
        weights = [known.get(one, mean) for one in present]
        self.credit = {one: self.credit[one] if one in self.credit else self.random.random() for one in present}
        for one, weight in zip(present, weights, strict=True):
            self.credit[one] += weight / sum(weights)
        chosen = max(present, key=lambda one: self.credit[one])
        self.credit[chosen] -= 1
        return [task for task in allowed if rank[task] == chosen][-1]
