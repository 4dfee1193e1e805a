"""Waiting times and critical path of a run: the recorded dependency graph combined with the times of its tasks.

Rows are the tasks of the plan, numbered densely here; a group (a task without an action) is a row without duration.
Tasks that were up to date and did not run have no row.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from shoal.core.graph import NO_TASK
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile
from shoal.core.work import Work
from shoal.ledger.views.attempts import Array, Floats, Ints
from shoal.ledger.views.core_use import as_cores
from shoal.ledger.views.doomed_tasks import pieces
from shoal.ledger.views.pace import MOST_LINKED, steps_of_longest
from shoal.ledger.views.run import RunView

_RESOLVING_ROUNDS = 64
"""Maximum nesting of groups that is resolved; deeper groups count as ready immediately."""

_AMOUNTS = 1 << 32
"""A bound above every core request, to combine category and request into one key."""


class TaskWaits:
    """Snapshot of a run's recorded graph with the times of its tasks."""

    def __init__(self, view: RunView) -> None:
        view.settle()
        pairs = [_pairs(record.tasks, record.counts, record.needs) for record in view.links]
        children = np.concatenate([np.zeros(0, np.int64), *(child for child, _ in pairs)])
        parents = np.concatenate([np.zeros(0, np.int64), *(parent for _, parent in pairs)])
        linked = [np.frombuffer(record.tasks, "<i4") for record in view.links]
        # Task numbers are dense, so a lookup table from task to row is faster than a search.
        there = np.zeros(1 + max((int(part.max(initial=0)) for part in (*linked, view.attempts.task)), default=0), bool)
        for part in (*linked, view.attempts.task):
            there[part] = True
        self.tasks: Ints = np.flatnonzero(there)
        """Task numbers in the workflow, by row."""
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
        """Start of the first attempt; infinite for tasks that have not run."""
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
        """The value in `category` for tasks that are not in the plan, which are groups."""
        self.finish: Floats = self._through_groups()

    def _through_groups(self) -> Floats:
        """When each task was done; NaN for tasks that failed, wait for a retry or have not run. A group is done when
        its last member is."""
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
        """When the last dependency of each task was done; 0 if no dependency ran."""
        ready = np.zeros(len(self))
        # A task that failed again after others had used its result has no other time than that of its last end.
        done = np.where(np.isnan(self.finish), self.ended, self.finish)
        np.maximum.at(ready, self.children, np.nan_to_num(done[self.parents]))
        return ready

    def waited(self, view: RunView, until: float | None = None) -> tuple[Floats, Floats]:
        """For every task that could start: when it became ready, and when it started, or `until` if it has not."""
        ready = self.ready_at()
        started = np.where(np.isfinite(self.first_started), self.first_started, view.until(until) - view.origin)
        if view.end is None:
            begun = view.after(np.array([record.time for record in view.running.values()]))
            rows, known = self._going(view)
            np.minimum.at(started, rows, begun[known])
        runs = self.ran | (self._can_start() & ~self._cancelled(view) if view.end is None else False)
        return ready[runs], started[runs]

    def _going(self, view: RunView) -> tuple[Ints, Array]:
        """Rows of the running tasks, and which of the running tasks have a row."""
        going = np.array(list(view.running), np.int64)
        if not len(self):
            return going[:0], np.zeros(len(going), bool)
        rows = np.minimum(np.searchsorted(self.tasks, going), len(self) - 1)
        known: Array = self.tasks[rows] == going
        return rows[known], known

    def _can_start(self) -> Array:
        """Tasks without an ended attempt whose dependencies are all done."""
        blocked = np.zeros(len(self), bool)
        blocked[self.children[np.isnan(self.finish)[self.parents]]] = True
        found: Array = ~(self.ran | self.is_group() | blocked)
        return found

    def is_group(self) -> Array:
        """Which rows are groups, without an action."""
        found: Array = self.category == self._groups
        return found

    def ready(self, view: RunView) -> Array:
        """Tasks that are ready at present and have not started."""
        ready = self._can_start()
        ready[self._going(view)[0]] = False
        ready[self._cancelled(view)] = False
        return ready

    def _cancelled(self, view: RunView) -> Array:
        """Rows of tasks that a user cancelled."""
        found: Array = np.isin(self.tasks, np.array(sorted(view.unwanted), np.int64))
        return found

    def cores(self, view: RunView) -> Floats:
        """Cores that each task is allocated while it runs."""
        return view.cores_of(self.tasks, self.category, 0.0)

    def kinds(self, view: RunView) -> tuple[Ints, list[tuple[int, float]]]:
        """The kind of each row, and category and cores of each kind. There is one kind for each category, and further
        ones for tasks with a core request of their own."""
        kinds = list(enumerate([*view.cores_of_categories().tolist(), 0.0]))
        rows, requested = view.special_cores.among(self.tasks)
        if not len(rows):
            return self.category, kinds
        pairs, which = np.unique(self.category[rows] * _AMOUNTS + requested + 1, return_inverse=True)
        kind = self.category.copy()
        kind[rows] = len(kinds) + which
        others = zip((pairs // _AMOUNTS).tolist(), as_cores(pairs % _AMOUNTS - 1).tolist(), strict=True)
        return kind, [*kinds, *others]

    def work(self, view: RunView) -> Work:
        """The run as input for the lower bounds, with measured durations."""
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
    """A plain array, which numpy reads without a copy and Python loops read several times faster than a numpy array."""
    return array("q", column.astype(np.int64).tobytes())


MOST_STEPS = 400
"""Maximum number of steps with details; of longer paths, the longest steps are listed and the others are summed."""


class PathStep(msgspec.Struct, frozen=True):
    """One task of the critical path."""

    task: int
    name: str
    category: str
    started: float
    ended: float
    waited: float
    """Seconds between the end of the previous step, or the start of the run, and the start of this one."""


class CriticalPath(msgspec.Struct, frozen=True):
    """The chain of tasks that determined the end of the run, from the first to the last."""

    steps: list[PathStep]
    length: int
    """Number of tasks on the path; `steps` may have fewer."""
    ran: float
    waited: float
    by_category: list[tuple[str, int, float]]
    """Category with its tasks and seconds on the path, in descending order of seconds."""
    done: float
    """Fraction of the longest chain of the plan that is done, counted in tasks; 1 when the run has ended. That chain
    need not be the path in `steps`, which is the one that ended last."""


def critical_path(view: RunView, needs: TaskWaits) -> CriticalPath | None:
    """Finds the critical path; None if no task has run."""
    rows = _chain(needs)
    if not len(rows):
        return None
    started, ended = needs.started[rows], needs.ended[rows]
    before = np.concatenate(([0.0], ended[:-1]))
    waited = np.maximum(0.0, started - before)
    seconds = ended - started
    codes = needs.category[rows]
    size = len(view.categories) + 1
    counts, sums = np.bincount(codes, minlength=size), np.bincount(codes, seconds, size)
    names = [*view.categories, "unknown"]
    by_category = [(names[code], int(counts[code]), float(sums[code])) for code in np.argsort(-sums, kind="stable")]
    kept = np.arange(len(rows))
    if len(rows) > MOST_STEPS:
        kept = np.sort(np.argsort(-(seconds + waited), kind="stable")[:MOST_STEPS])
    steps = [
        PathStep(
            int(needs.tasks[rows[at]]),
            view.names.of(int(needs.tasks[rows[at]])),
            names[int(codes[at])],
            float(started[at]),
            float(ended[at]),
            float(waited[at]),
        )
        for at in kept.tolist()
    ]
    return CriticalPath(
        steps,
        len(rows),
        float(seconds.sum()),
        float(waited.sum()),
        [row for row in by_category if row[1]],
        done_of_longest(view) if view.end is None else 1.0,
    )


def _chain(needs: TaskWaits) -> Ints:
    """Rows of the tasks on the path, from the first to the last; groups are followed, but not included."""
    if not needs.ran.any():
        return np.zeros(0, np.int64)
    before = _latest_needs(needs).tolist()
    ran = needs.ran.tolist()
    at = int(np.nanargmax(needs.ended))
    found = []
    seen = bytearray(len(ran))  # damaged ledgers may mix the links of two runs, which may form a cycle
    while at >= 0 and not seen[at]:
        seen[at] = True
        if ran[at]:
            found.append(at)
        at = before[at]
    return np.array(found[::-1], np.int64)


def _latest_needs(needs: TaskWaits) -> Ints:
    """For each row its dependency that was done last; -1 if none was."""
    done = needs.finish[needs.parents]
    known = np.flatnonzero(~np.isnan(done))
    order = known[np.lexsort((done[known], needs.children[known]))]
    found = np.full(len(needs), -1, np.int64)
    found[needs.children[order]] = needs.parents[order]  # among several for one child, the last assignment wins
    return found


def done_of_longest(view: RunView) -> float:
    """Done fraction of the longest chain, counted in tasks with an action. With several chains of the same length it is
    the mean over them, step by step, because it is unknown which one ends last."""
    steps = kept_steps(view)
    size = int(steps.max(initial=0))
    if not size:
        return 0.0
    there = np.bincount(steps, minlength=size + 1)[1:]
    over = np.bincount(steps[are_done(view, len(steps))], minlength=size + 1)[1:]
    return float((over[there > 0] / there[there > 0]).mean())  # a cycle in a damaged ledger has steps without tasks


def are_done(view: RunView, size: int) -> Array:
    """Whether each of the first `size` tasks is done."""
    rows = view.attempts
    done = rows.task[(rows.outcome == 0) & rows.final]
    found: Array = np.zeros(size, bool)
    found[done[done < size]] = True
    return found


def kept_steps(view: RunView) -> Ints:
    """By task: its step on a longest chain, from 1; 0 for tasks on no longest chain and for groups. Cached until the
    graph grows, since this is the most expensive computation."""
    size = (len(view.links), sum(view.planned))
    if view.depths is None or view.depths[0] != size:
        view.depths = (size, _steps(view))
    return view.depths[1]


def quick_steps(view: RunView) -> Ints | None:
    """Same as `kept_steps` if that is fast: the plan is not very large, or the result is cached."""
    if not view.links or (view.dependencies > MOST_LINKED and view.depths is None):
        return None
    return kept_steps(view)


def _steps(view: RunView) -> Ints:
    pairs = list(pieces(view.links))
    needed = np.concatenate([np.zeros(0, np.int64), *(pair[0] for pair in pairs)])
    needing = np.concatenate([np.zeros(0, np.int64), *(pair[1] for pair in pairs)])
    linked = (np.frombuffer(record.tasks, "<i4") for record in view.links)
    size = 1 + max((int(column.max(initial=-1)) for column in (*linked, needed, view.attempts.task)), default=-1)
    runs = view.category_of(np.arange(size)) >= 0  # up-to-date tasks and groups are not in the plan
    runs[view.attempts.task] = True
    found: Ints = np.array(steps_of_longest(needed.tolist(), needing.tolist(), runs.tolist()), np.int64)
    return found
