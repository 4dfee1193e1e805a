"""Follows one run through its ledger: keeps the model up to date as the ledger grows, and detects its writer's end.

All methods are called under `Watch.lock`, by threads that read the model as well as those that refresh it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from shoal.ledger.bulk_reader import Frames, LedgerTail, last_run, read_into
from shoal.ledger.cluster_notes import is_submitted
from shoal.ledger.records import RunStarted, TasksLinked, TasksPlanned, decodable
from shoal.ledger.status import RunPhase, listen
from shoal.ledger.views.doomed_tasks import pieces
from shoal.ledger.views.run import RunView
from shoal.ledger.workspace import Workspace

GROUPS = -1
"""Category number of groups: tasks that run nothing."""


class WatchedRun(RunView):
    """The run model, extended by what only live pages show: the graph by category."""

    def _begin(self, start: RunStarted | None) -> None:
        super()._begin(start)
        self.edges: dict[tuple[int, int], int] = {}
        """By pair of categories: number of dependencies of tasks of the second on tasks of the first."""
        self.highest = -1
        """Largest number of a planned task."""

    def _plan(self, record: TasksPlanned) -> None:
        super()._plan(record)
        self.highest = max(self.highest, max(record.first, default=-1))

    def _link(self, record: TasksLinked) -> None:
        super()._link(record)
        self._count_edges(record)

    def _count_edges(self, record: TasksLinked) -> None:
        size = len(self.categories) + 1
        for parents, children in pieces([record]):
            came, goes = (self.category_of(tasks) + 1 for tasks in (parents, children))
            pairs, counts = np.unique(came * size + goes, return_counts=True)
            for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
                edge = (pair // size - 1, pair % size - 1)
                self.edges[edge] = self.edges.get(edge, 0) + count


class _ReportingTail(LedgerTail):
    """Reports its offset after each piece of the ledger."""

    def __init__(self, path: str, report: Callable[[int], None]) -> None:
        super().__init__(path)
        self._report = report

    def stretches(self) -> Iterator[Frames]:
        for found in super().stretches():
            yield found
            self._report(self.offset)


class Watch:
    """One workflow's latest run, or the run with a given number."""

    def __init__(self, workspace: Workspace, number: int | None = None, *, skip_idle: bool = False) -> None:
        """`skip_idle`: show the latest run that had something to do, if there is one."""
        self.workspace = workspace
        self.number = number
        self._passes_idle = skip_idle and number is None
        self.lock = threading.RLock()
        self.view = self._new_view()
        self.live = False
        self.version = 0
        """Counts changes of the model, by whichever thread."""
        self.reading: Callable[[int], None] = lambda offset: None
        """Called with the offset while a large ledger is read."""
        self._tail = self._new_tail()
        self._passed = False
        """The run with the given number is over: all later records belong to later runs."""

    @property
    def name(self) -> str:
        """The workflow's displayed name; a file name need not be valid text."""
        return decodable(os.path.basename(self.workspace.workflow))

    def _new_view(self) -> WatchedRun:
        return WatchedRun(skip_idle=self._passes_idle)

    def _new_tail(self) -> LedgerTail:
        return _ReportingTail(self.workspace.ledger, lambda offset: self.reading(offset))

    def refresh(self) -> None:
        """Reads what was added to the ledger.

        After a failure the next call reads the ledger from the start: the model contains part of what was added, and
        would count it twice.
        """
        try:
            self._refresh()
        except Exception:
            self.view, self._tail, self._passed = self._new_view(), self._new_tail(), False
            self.version += 1
            raise

    def _refresh(self) -> None:
        # The lock is checked before the ledger is read: a run that ends in between appears as ended, never as killed.
        holder = self.workspace.holder()
        another, before = self._tail.was_replaced(), self._tail.offset
        if another:
            self.view, self._passed, before = self._new_view(), False, -1
        if holder is not None and self.number is None and not self._tail.offset:
            self._pass_over_earlier_runs()
        if not self._passed:
            self._passed = not read_into(self.view, self._tail, last=self.number)
        start = self.view.start
        live = bool(holder and start and holder.run == start.run and self.view.end is None)
        self.version += self._tail.offset != before or live != self.live
        self.live = live
        listen(self.view, self.workspace, live)

    def _pass_over_earlier_runs(self) -> None:
        """Skips earlier runs in the ledger, so that a client that looks at an active run need not wait for them."""
        found = last_run(self.workspace.ledger)
        self.view.runs, self._tail.offset = found.earlier, found.offset
        if found.net is not None:
            self.view.take(found.net)

    @property
    def is_last(self) -> bool:
        """Whether no later run has begun, as far as read: files beside the ledger belong to the latest run."""
        return not self._passed

    def now(self) -> float | None:
        """The current time if the run is active; None if it is over."""
        return time.time() if self.live else None

    def has_grown(self) -> bool:
        """Whether the ledger has grown; cheap enough for ten calls per second."""
        if self._passed:
            return False
        try:
            found = os.stat(self.workspace.ledger)
        except OSError:
            return False
        return found.st_size != self._tail.offset

    def outcome(self) -> str:
        """State or outcome of the run."""
        if self.view.start is None:
            return "never run"
        if not self.live and self.is_last and self.view.may_continue_on_cluster() and is_submitted(self.workspace):
            return RunPhase.AWAY.value
        if self.view.end is not None:
            return self.view.end.outcome
        return "running" if self.live else "killed"
