"""A run that is watched: the model, fed by its ledger as that grows, and whether somebody still writes it.

Everything here is called under `Watch.lock`, by whoever wants to look at the model or to refresh it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from shoal.engine.workspace import Workspace
from shoal.ledger.records import NetBegun, NetMarked, Record, RunStarted, TasksLinked, TasksPlanned
from shoal.model.graph import NO_TASK
from shoal.report.reading import LedgerTail, read_into
from shoal.view.run import RunView

GROUPS = -1
"""Stands for the category of tasks that run nothing."""


class WatchedRun(RunView):
    """The model, with what only a live page shows: the marking of a net, and the graph by category."""

    net_before: NetBegun | None = None

    def _begin(self, start: RunStarted | None) -> None:
        super()._begin(start)
        self.net: NetBegun | None = None
        self.mark: NetMarked | None = None
        self.edges: dict[tuple[int, int], int] = {}
        """From category to category: how often a task of the second needs one of the first."""
        self.highest = -1
        """The largest number of a planned task."""

    def feed(self, record: Record) -> None:
        match record:
            case NetBegun():
                self.net = self.net_before = record
            case NetMarked():
                self.net, self.mark = self.net_before, record  # a run that goes on does not say again of which net
                self.last_time = max(self.last_time, record.time)
            case TasksLinked():
                self._count_edges(record)
                super().feed(record)
            case TasksPlanned():
                self.highest = max(self.highest, max(record.first, default=-1))
                super().feed(record)
            case _:
                super().feed(record)

    def _count_edges(self, record: TasksLinked) -> None:
        children = np.repeat(np.frombuffer(record.tasks, "<i4"), np.frombuffer(record.counts, "<i4"))
        parents = np.frombuffer(record.needs, "<i4")
        known = parents != NO_TASK
        size = len(self.categories) + 1
        came, goes = (self.category_of(tasks[known].astype(np.int64)) + 1 for tasks in (parents, children))
        pairs, counts = np.unique(came * size + goes, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            edge = (pair // size - 1, pair % size - 1)
            self.edges[edge] = self.edges.get(edge, 0) + count


class _ToldTail(LedgerTail):
    """Says after each piece of the ledger how far it is."""

    def __init__(self, path: str, told: Callable[[int], None]) -> None:
        super().__init__(path)
        self._told = told

    def pieces(self) -> Iterator[list[bytes]]:
        for piece in super().pieces():
            yield piece
            self._told(self.offset)


class Watch:
    """One workflow's last run, or the run of a number."""

    def __init__(self, workspace: Workspace, number: int | None = None) -> None:
        self.workspace = workspace
        self.number = number
        self.lock = threading.RLock()
        self.view = WatchedRun()
        self.live = False
        self.reading: Callable[[int], None] = lambda offset: None
        """Called while a large ledger is read, with the bytes so far."""
        self._tail = self._new_tail()

    @property
    def name(self) -> str:
        return os.path.basename(self.workspace.workflow)

    def _new_tail(self) -> LedgerTail:
        return _ToldTail(self.workspace.ledger, lambda offset: self.reading(offset))

    def refresh(self) -> bool:
        """Reads what was added; whether anything has changed."""
        # Who holds the lock is asked first: a run that ends in between is then seen as ended, never as killed.
        holder = self.workspace.holder()
        another, before = self._tail.is_another(), self._tail.offset
        if another:
            self.view, before = WatchedRun(), -1
        if self.number is None or before <= 0:
            read_into(self.view, self._tail, last=self.number)
        start = self.view.start
        live = bool(holder and start and holder.run == start.run and self.view.end is None and self.number is None)
        changed = self._tail.offset != before or live != self.live
        self.live = live
        return changed

    def now(self) -> float | None:
        """The moment until which a run that goes on is shown; None for one that is over."""
        return time.time() if self.live else None

    def has_grown(self) -> bool:
        """Whether there is anything to read; cheap enough to be asked ten times a second."""
        if self.number is not None and self._tail.offset:
            return False  # an earlier run does not change any more
        try:
            found = os.stat(self.workspace.ledger)
        except OSError:
            return False
        return found.st_size != self._tail.offset

    def outcome(self) -> str:
        """What has become of the run."""
        if self.view.start is None:
            return "never run"
        if self.view.end is not None:
            return self.view.end.outcome
        return "running" if self.live else "killed"
