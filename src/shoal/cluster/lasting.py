"""Which attempts nodes say they have been at for a while, as a run's ledger has them. Pure.

Each is told once when it is heard of, and once more if it vanishes without an end. Of short tasks the ledger has only
the end, as on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.ledger.records import TaskStarted, TasksVanished

Said = tuple[int, int, int, float]
"""Node, task, attempt, and for how many seconds."""


class Lasting:
    """The attempts of one run, as its client hears of them."""

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        """`is_open` tells whether a task may still run."""
        self._is_open = is_open
        self._known: dict[int, TaskStarted] = {}
        self._ended: dict[int, int] = {}
        """By task that may run again: its last attempt that has ended. What nodes say may be older than that."""
        self._missed: set[int] = set()
        """Attempts that were not named the last time; their end may be on its way."""

    def ended(self, task: int, attempt: int) -> None:
        known = self._known.get(task)
        if known is not None and known.attempt <= attempt:
            del self._known[task]
        if self._is_open(task):
            self._ended[task] = max(attempt, self._ended.get(task, 0))
        else:
            self._ended.pop(task, None)

    def hear(self, now: float, said: Iterable[Said]) -> tuple[list[TaskStarted], TasksVanished | None]:
        """What is new since the last time."""
        begun: list[TaskStarted] = []
        named: set[int] = set()
        for node, task, attempt, seconds in said:
            if attempt <= self._ended.get(task, 0) or not self._is_open(task):
                continue
            named.add(task)
            known = self._known.get(task)
            if known is None or known.attempt < attempt:
                self._known[task] = TaskStarted(task, attempt, now - seconds, 0, 0.0, -1, node)
                begun.append(self._known[task])
        missing = {task for task in self._known if task not in named}
        gone = sorted(missing & self._missed)
        for task in gone:
            del self._known[task]
        self._missed = missing.difference(gone)
        return begun, TasksVanished(now, gone) if gone else None
