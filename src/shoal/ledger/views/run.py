"""A run as numpy columns, for pages and reports: attempts are rows, tasks are numbers. `shoal.ledger.run_fold`
interprets the records.

`take` adds one record, `take_ends` a batch of ended attempts, by far the most frequent record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.core.resources import FRACTION
from shoal.ledger.records import CoresAsked, RunStarted, TaskEnded, TasksPlanned, TaskStarted
from shoal.ledger.run_fold import UNKNOWN, RunFold
from shoal.ledger.views.attempts import (
    Array,
    AttemptColumns,
    EndColumns,
    Floats,
    GrowingColumn,
    Ints,
    PackedNames,
    columns_of,
)
from shoal.ledger.views.core_use import Oversubscription, are_declared, as_cores

_PIECE = 1 << 16
_MOST_LOOKED_AT = 4 * _PIECE
"""Maximum number of attempts sorted at once. If a long attempt overlaps with more of them, the earlier ones are
skipped: their sum is already known except for the part of the long one."""


class ConcurrentPeak:
    """Maximum over time of a quantity summed over concurrent attempts, updated incrementally."""

    def __init__(self) -> None:
        self._known, self._most = 0, 0.0

    def most(self, rows: AttemptColumns, weigh: Callable[[Ints], Floats]) -> float:
        """The maximum, with `weigh` giving the quantity of some rows. Only new rows and those that overlap with them
        are processed."""
        while self._known < len(rows):
            upto = min(len(rows), self._known + _PIECE)
            began = rows.started[self._known : upto].min()
            late = np.flatnonzero(rows.ended[:upto] >= began)[-_MOST_LOOKED_AT:]
            self._most = max(self._most, most_of(rows.started[late], rows.ended[late], weigh(late)))
            self._known = upto
        return self._most


def most_of(begins: Floats, ends: Floats, held: Floats) -> float:
    if (held == 1.0).all():
        begins.sort()
        ends.sort()
        running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
        return float(running.max())
    order = np.argsort(np.concatenate((ends, begins)), kind="stable")
    return float(np.cumsum(np.concatenate((-held, held))[order]).max())


_BATCH = 4096


class RunView(RunFold):
    """One run with its attempts as columns."""

    def _begin(self, start: RunStarted | None) -> None:
        super()._begin(start)
        self.names = PackedNames()
        self.categories: list[str] = []
        self._codes: dict[str, int] = {}
        self._category_of = GrowingColumn("i4")
        """By task: code of its category plus one; 0 for a task that is not in the plan."""
        self.planned: list[int] = []
        """Number of tasks by category."""
        self.attempts = AttemptColumns(start.to_run if start else 0)
        self._pending: list[TaskEnded] = []
        self.depths: tuple[tuple[int, int], Ints] | None = None
        """Cached depths of tasks in the graph, with the number of links and tasks for which they are valid; see
        `shoal.ledger.views.waits`."""
        self._final_row = GrowingColumn("i4")
        """By task: the row of its last final attempt plus one; 0 for a task that has not ended."""
        self._held: tuple[int, bool, Floats] | None = None
        """Cached result with its key: number of attempts, and whether they shared cores."""
        self._oversubscription = 0, Oversubscription()
        """With the number of attempts that it includes."""
        self._most_memory = ConcurrentPeak()

    def _start_attempt(self, record: TaskStarted) -> None:
        super()._start_attempt(record)
        if not self.categories:  # the TasksPlanned records are damaged
            self._code(UNKNOWN)

    def _attempt_ended(self, record: TaskEnded) -> None:
        self._pending.append(record)
        if len(self._pending) >= _BATCH:
            self.settle()

    def take_ends(self, batch: EndColumns) -> None:
        """Adds ended attempts in the order of the ledger; later attempts of their tasks may be known already."""
        if self.idle is not None:
            return
        self.settle()
        if self.running:
            for task, number in zip(batch.task.tolist(), batch.number.tolist(), strict=True):
                self._stop_attempt(task, number)
        self._add(batch)

    def _declare(self, category: str, amounts: dict[str, int]) -> None:
        super()._declare(category, amounts)
        self._held, self._oversubscription = None, (0, Oversubscription())

    def _ask_cores(self, record: CoresAsked) -> None:
        super()._ask_cores(record)
        self._held, self._oversubscription = None, (0, Oversubscription())

    def settle(self) -> None:
        """Moves buffered records into the columns. Every query calls this first."""
        if self._pending:
            batch, self._pending = self._pending, []
            self._add(columns_of(batch))

    def _add(self, batch: EndColumns) -> None:
        if not len(batch.task):
            return
        self._category_of.reach(int(batch.task.max()) + 1)
        codes = self._category_of.values[batch.task] - 1
        if (codes < 0).any():
            codes[codes < 0] = self._code(UNKNOWN)
        first = len(self.attempts)
        self.attempts.add(batch, codes)
        self._note_final_rows(batch, first)
        if self.unwanted:
            self.unwanted.difference_update(batch.task[batch.final].tolist())
        self.last_time = max(self.last_time, float(batch.ended.max()))

    def _note_final_rows(self, batch: EndColumns, first: int) -> None:
        """Only the last final attempt of a task stays final: a result may be lost with a node, and the task may fail
        when it runs again."""
        rows = np.flatnonzero(batch.final)
        if not len(rows):
            return
        tasks, places = batch.task[rows], first + rows + 1
        self._final_row.reach(int(tasks.max()) + 1)
        words = self._final_row.values
        before = words[tasks]
        words[tasks] = places
        again = words[tasks] != places
        if before.any() or again.any():
            self.attempts.final[before[before > 0] - 1] = False
            self.attempts.final[places[again] - 1] = False

    def _plan(self, record: TasksPlanned) -> None:
        self.settle()
        if not record.first:
            return
        tasks = np.array(record.first, np.int64)
        self.names.add(tasks, record.names)
        try:
            codes = np.array(list(map(self._codes.__getitem__, record.categories)))
        except KeyError:  # a category is new
            codes = np.array([self._code(category) for category in record.categories])
        self._category_of.reach(int(tasks.max()) + 1)
        self._category_of.values[tasks] = codes + 1
        for code, number in enumerate(np.bincount(codes, minlength=len(self.categories)).tolist()):
            self.planned[code] += number

    def _code(self, category: str) -> int:
        code = self._codes.get(category)
        if code is None:
            code = self._codes[category] = len(self.categories)
            self.categories.append(category)
            self.planned.append(0)
        return code

    # ---- queries -------------------------------------------------------------------------------------------------

    def is_planned(self, task: int) -> bool:
        return 0 <= task < len(self._category_of) and bool(self._category_of.values[task])

    def is_over(self, task: int) -> bool:
        return 0 <= task < len(self._final_row) and bool(self._final_row.values[task])

    def ended(self) -> int:
        self.settle()
        return int(self.attempts.final.sum())

    def category_of(self, tasks: Ints) -> Ints:
        """Category codes of tasks; -1 for those that are not in the plan."""
        codes = np.full(len(tasks), -1, np.int64)
        known = tasks < len(self._category_of)
        codes[known] = self._category_of.values[tasks[known]] - 1
        return codes

    def cores_of_categories(self) -> Floats:
        """Cores allocated to a task of each category unless it is in `special_cores`; 1 where none are declared."""
        return np.array(
            [self.declared.get(name, {}).get("cores", FRACTION) / FRACTION for name in self.categories], np.float64
        )

    def cores_of(self, tasks: Ints, codes: Ints, unplanned: float = 1.0) -> Floats:
        """Cores allocated to an attempt of each of these tasks: the declared number, or one. `codes` are their category
        codes; -1 or the number of categories stands for a task that is not in the plan."""
        found: Floats = np.append(self.cores_of_categories(), unplanned)[codes]
        rows, requested = self.special_cores.among(tasks)
        found[rows] = as_cores(requested)
        return found

    def declare_cores(self, tasks: Ints, codes: Ints) -> Array:
        """Whether each of these tasks declares its cores."""
        found: Array = np.array([*("cores" in self.declared.get(name, {}) for name in self.categories), False])[codes]
        rows, requested = self.special_cores.among(tasks)
        found[rows] = are_declared(requested)
        return found

    def _oversubscription_of_ended(self) -> Oversubscription:
        rows, (known, oversubscription) = self.attempts, self._oversubscription
        if known < len(rows):
            cores = self.cores_of(rows.task[known:], rows.category[known:])
            oversubscription.add_all(rows.started[known:], rows.ended[known:], cores)
            self._oversubscription = len(rows), oversubscription
        return oversubscription

    def most_memory(self) -> float:
        """Maximum memory of concurrent attempts in bytes, if each used its peak during its whole time."""
        self.settle()
        rows = self.attempts
        return self._most_memory.most(rows, lambda late: rows.memory[late].astype(np.float64))

    def held(self) -> Floats:
        """Cores of each attempt: the declared number, or one; the used cores where cores were shared."""
        rows, crowded = self.attempts, self.is_oversubscribed()
        if self._held is None or self._held[:2] != (len(rows), crowded):
            found = self.cores_of(rows.task, rows.category)
            if crowded:
                took = np.maximum(rows.ended - rows.started, 1e-6)
                used = np.minimum(rows.cpu / took, self.total_cores())
                found = np.where(self.declare_cores(rows.task, rows.category), found, used)
            self._held = (len(rows), crowded, found)
        return self._held[2]

    def cannot_run(self) -> int:
        return int(self.are_doomed().sum())

    def are_doomed(self) -> Array:
        """By task: whether it depends on a failed or cancelled one and has not ended otherwise."""
        self.settle()
        rows = self.attempts
        found: Array = np.zeros(len(self._category_of), bool)
        for tasks in self._find_doomed(rows.task[rows.final & (rows.outcome != 0)]):
            found[tasks[tasks < len(found)]] = True
        found &= self._category_of.values > 0
        word = self._final_row.values[: len(found)]
        found[: len(word)] &= word == 0
        if self.unwanted:
            found[[task for task in self.unwanted if task < len(found)]] = False
        return found

    def within(self) -> Floats:
        """Seconds of each attempt within the run. An attempt may begin before the record of its run: the client
        attached later, or clocks differ."""
        rows = self.attempts
        found: Floats = np.maximum(0.0, rows.ended - np.maximum(rows.started, self.origin))
        return found

    def after(self, moments: Floats) -> Floats:
        """Converts clock times to seconds since the start of the run."""
        found: Floats = np.maximum(0.0, moments - self.origin)
        return found
