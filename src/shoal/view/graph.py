"""What the tasks of a run waited for, as recorded, together with when they ran.

Rows are the tasks of the plan, numbered densely here; a task that runs nothing (it groups others) is a row that takes
no time. What was up to date and did not run is no row.
"""

from __future__ import annotations

from array import array

import numpy as np

from shoal.model.graph import NO_TASK
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile
from shoal.model.work import Work
from shoal.view.columns import Array, Floats, Ints
from shoal.view.cores import as_cores
from shoal.view.run import RunView

_RESOLVING_ROUNDS = 64
"""Groups within groups that are looked through; deeper ones count as ready at once."""

_AMOUNTS = 1 << 32
"""More than there are amounts of cores."""


class Needs:
    """The recorded graph of a run with the times of its tasks, taken at one moment."""

    def __init__(self, view: RunView) -> None:
        view.settle()
        pairs = [_pairs(record.tasks, record.counts, record.needs) for record in view.links]
        children = np.concatenate([np.zeros(0, np.int64), *(child for child, _ in pairs)])
        parents = np.concatenate([np.zeros(0, np.int64), *(parent for _, parent in pairs)])
        linked = [np.frombuffer(record.tasks, "<i4") for record in view.links]
        # Numbers of tasks are dense, so a table says faster than a search which of them are here, and as which row.
        there = np.zeros(1 + max((int(part.max(initial=0)) for part in (*linked, view.attempts.task)), default=0), bool)
        for part in (*linked, view.attempts.task):
            there[part] = True
        self.tasks: Ints = np.flatnonzero(there)
        """Numbers of the tasks in the workflow, by row."""
        self._row: Ints = np.cumsum(there) - 1
        known = parents < len(there)
        known[known] = there[parents[known]]
        self.children: Ints = self._row[children[known]]
        self.parents: Ints = self._row[parents[known]]
        """One entry per edge, in the order of the children."""
        order = np.argsort(self.children, kind="stable")
        self.children, self.parents = self.children[order], self.parents[order]
        self.parent_start: Ints = np.searchsorted(self.children, np.arange(len(self.tasks) + 1))
        self._times(view)

    def _times(self, view: RunView) -> None:
        rows, size = view.attempts, len(self.tasks)
        place = self._row[rows.task]
        first = np.full(size, np.inf)
        np.minimum.at(first, place, view.after(rows.started))
        self.first_started: Floats = first
        """Of the first attempt; infinite for tasks that have not run."""
        self.started: Floats = np.full(size, np.nan)
        self.ended: Floats = np.full(size, np.nan)
        """Of the last attempt."""
        self.started[place] = view.after(rows.started)
        self.ended[place] = view.after(rows.ended)
        self.ok: Array = np.zeros(size, bool)
        self.ok[place] = rows.outcome == 0
        self.seconds: Floats = np.nan_to_num(self.ended - self.started)
        codes = view.category_of(self.tasks)
        self.ran: Array = ~np.isnan(self.ended)
        self.category: Ints = np.where(codes < 0, len(view.categories), codes)
        self._groups = len(view.categories)
        """Stands in `category` for tasks that were not planned: they run nothing."""
        self.finish: Floats = self._through_groups()

    def _through_groups(self) -> Floats:
        """When each task was done, and NaN for those that are not: they failed, are tried again or have not run. Those
        that run nothing are done when the last that they need is."""
        finish = np.where(self.ok, self.ended, np.nan)
        unknown = self.is_group() & ~self.ran
        for _ in range(_RESOLVING_ROUNDS):
            edges = unknown[self.children]
            latest = np.zeros(len(finish))
            np.maximum.at(latest, self.children[edges], np.nan_to_num(finish[self.parents[edges]], nan=np.inf))
            settled = unknown & np.isfinite(latest)
            if not settled.any():
                break
            finish[settled] = latest[settled]
            unknown &= ~settled
        return finish

    def __len__(self) -> int:
        return len(self.tasks)

    def ready_at(self) -> Floats:
        """When the last task that each one needs was done; 0 if it needs none that ran."""
        ready = np.zeros(len(self))
        # Of what failed again after others had used it there is only this end.
        done = np.where(np.isnan(self.finish), self.ended, self.finish)
        np.maximum.at(ready, self.children, np.nan_to_num(done[self.parents]))
        return ready

    def waited(self, view: RunView, until: float | None = None) -> tuple[Floats, Floats]:
        """Of every task that could start: when it could, and when it did, or `until` if it has not."""
        ready = self.ready_at()
        started = np.where(np.isfinite(self.first_started), self.first_started, view.until(until) - view.origin)
        if view.end is None:
            begun = view.after(np.array([record.time for record in view.running.values()]))
            rows, known = self._going(view)
            np.minimum.at(started, rows, begun[known])
        runs = self.ran | (self._can_start() & ~self._cancelled(view) if view.end is None else False)
        return ready[runs], started[runs]

    def _going(self, view: RunView) -> tuple[Ints, Array]:
        """Rows of the tasks that run, and which of those that run have one."""
        going = np.array(list(view.running), np.int64)
        if not len(self):
            return going[:0], np.zeros(len(going), bool)
        rows = np.minimum(np.searchsorted(self.tasks, going), len(self) - 1)
        known: Array = self.tasks[rows] == going
        return rows[known], known

    def _can_start(self) -> Array:
        """Which tasks have not ended any attempt, and need nothing that is not done."""
        blocked = np.zeros(len(self), bool)
        blocked[self.children[np.isnan(self.finish)[self.parents]]] = True
        found: Array = ~(self.ran | self.is_group() | blocked)
        return found

    def is_group(self) -> Array:
        """Which rows run nothing and only group others."""
        found: Array = self.category == self._groups
        return found

    def ready(self, view: RunView) -> Array:
        """Which tasks could start at this moment and have not."""
        ready = self._can_start()
        ready[self._going(view)[0]] = False
        ready[self._cancelled(view)] = False
        return ready

    def _cancelled(self, view: RunView) -> Array:
        """Which rows are of tasks that somebody cancelled."""
        found: Array = np.isin(self.tasks, np.array(sorted(view.unwanted), np.int64))
        return found

    def cores(self, view: RunView) -> Floats:
        """What each task holds while it runs."""
        return view.cores_of(self.tasks, self.category, 0.0)

    def kinds(self, view: RunView) -> tuple[Ints, list[tuple[int, float]]]:
        """Of each row which kind it is, and of each kind its category and its cores: one for each category, then those
        of tasks that ask for something else."""
        kinds = list(enumerate([*view.cores_of_categories().tolist(), 0.0]))
        rows, asked = view.apart.among(self.tasks)
        if not len(rows):
            return self.category, kinds
        pairs, which = np.unique(self.category[rows] * _AMOUNTS + asked + 1, return_inverse=True)
        kind = self.category.copy()
        kind[rows] = len(kinds) + which
        others = zip((pairs // _AMOUNTS).tolist(), as_cores(pairs % _AMOUNTS - 1).tolist(), strict=True)
        return kind, [*kinds, *others]

    def work(self, view: RunView) -> Work:
        """As the bounds want it, with the seconds that tasks took."""
        kind, kinds = self.kinds(view)
        names = [*view.categories, "(groups)"]
        profiles = [
            Profile(resources=Resources.of({"cores": round(held * FRACTION)}), category=names[code])
            for code, held in kinds
        ]
        order = np.argsort(self.parents, kind="stable")
        start = np.searchsorted(self.parents[order], np.arange(len(self) + 1))
        waits_for = np.diff(self.parent_start)
        edges = (_plain(waits_for), _plain(start), _plain(self.children[order]))
        return Work("", array("d", self.seconds.tobytes()), _plain(kind), profiles, *edges)


def _pairs(tasks: bytes, counts: bytes, needs: bytes) -> tuple[Ints, Ints]:
    children = np.repeat(np.frombuffer(tasks, "<i4"), np.frombuffer(counts, "<i4")).astype(np.int64)
    parents = np.frombuffer(needs, "<i4").astype(np.int64)
    known = parents != NO_TASK
    return children[known], parents[known]


def _plain(column: Ints) -> array[int]:
    """As numpy takes it without copying, and a loop over single tasks reads it several times faster."""
    return array("q", column.astype(np.int64).tobytes())
