"""What a ledger tells of time: how long tasks took, how much that differs between runs, and what a run costs beside.

Only attempts that succeeded count. What the numbers are used for is left to `shoal.engine.expect`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from shoal.engine.workspace import Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import Record, RunEnded, RunStarted, SourcesSeen, TaskEnded, TasksPlanned, decode

MOST_REPEATS = 8
"""Earlier runs of one task that are remembered."""


class Overheads(msgspec.Struct, frozen=True):
    """Seconds that a run takes beside its tasks."""

    per_task: float = 0.0
    """Between the end of a task and the start of the next one on the same core, if one is ready."""
    at_ends: float = 0.0
    """Before the first task and after the last one."""


class Took(msgspec.Struct, frozen=True):
    """How a task went the last time it succeeded."""

    seconds: float
    category: str
    """Empty if the ledger does not tell any more."""
    sizes: tuple[int, ...]
    """Of the files it made."""
    cpu: float = 0.0
    """Seconds of processor time."""


class Measured:
    """The fold over the records of a ledger."""

    def __init__(self) -> None:
        self.last: dict[bytes, Took] = {}
        """By place."""
        self.earlier: dict[bytes, list[tuple[int, float]]] = {}
        """By place: number of an earlier run, and seconds there."""
        self.sources: dict[str, int] = {}
        self.overheads = Overheads()
        self.runs = 0
        self._start: RunStarted | None = None
        self._categories: dict[int, str] = {}
        self._intervals: list[tuple[float, float]] = []
        self._run_of: dict[bytes, int] = {}

    def take(self, record: Record) -> None:
        """Adds one record."""
        match record:
            case TaskEnded():
                if record.outcome == "ok":
                    self._task_done(record)
            case TasksPlanned():
                self._categories.update(zip(record.first, record.categories, strict=True))
            case SourcesSeen():
                self.sources.update(zip(record.names, record.sizes, strict=True))
            case RunStarted():
                self._start = record
                self.runs += 1
                self._categories, self._intervals = {}, []
            case RunEnded():
                if self._start is not None and self._intervals:
                    self.overheads = overheads_of(self._intervals, self._start.time, record.time)

    def _task_done(self, record: TaskEnded) -> None:
        place = record.place
        seconds = max(0.0, record.ended - record.started)
        before = self.last.get(place)
        if before is not None:
            repeats = self.earlier.setdefault(place, [])
            repeats.append((self._run_of[place], before.seconds))
            del repeats[:-MOST_REPEATS]
        sizes = tuple(max(0, size) for size, _ in record.outputs)
        self.last[place] = Took(seconds, self._categories.get(record.task, ""), sizes, record.user + record.system)
        self._run_of[place] = self.runs
        self._intervals.append((record.started, record.ended))

    def by_category(self) -> dict[str, list[Took]]:
        """All that is known, sorted by what the ledger calls the category."""
        found: dict[str, list[Took]] = {}
        for took in self.last.values():
            if took.category:
                found.setdefault(took.category, []).append(took)
        return found

    def factors(self, places: Iterable[bytes]) -> list[float]:
        """By how much longer these tasks together took in each earlier run than the last time, and 1 for the last."""
        now: dict[int, float] = {}
        then: dict[int, float] = {}
        for place in places:
            for run, seconds in self.earlier.get(place, ()):
                now[run] = now.get(run, 0.0) + self.last[place].seconds
                then[run] = then.get(run, 0.0) + seconds
        return [1.0, *(then[run] / now[run] for run in sorted(now) if now[run] > 0)]


def read_measured(workspace: Workspace, before: str | None = None) -> Measured:
    """Folds a ledger; with `before`, only what stands in it before the run of that name."""
    measured = Measured()
    for payload in LedgerReader(workspace.ledger).payloads():
        record = decode(payload)
        if before is not None and isinstance(record, RunStarted) and record.run == before:
            break
        if record is not None:
            measured.take(record)
    return measured


def overheads_of(intervals: Sequence[tuple[float, float]], began: float, ended: float) -> Overheads:
    """From when the tasks of one run started and ended.

    Each start is taken together with the latest end before it that has no start yet: a core that waited because nothing
    was ready is so left to those that started after it had waited.
    """
    first = min(start for start, _ in intervals)
    last = max(end for _, end in intervals)
    free: list[float] = []
    gaps: list[float] = []
    moments = sorted([(start, 1) for start, _ in intervals] + [(end, 0) for _, end in intervals])
    for moment, starts in moments:
        if not starts:
            insort(free, moment)
        elif at := bisect_right(free, moment):
            gaps.append(moment - free.pop(at - 1))
    per_task = median(gaps) if gaps else 0.0
    return Overheads(per_task, max(0.0, first - began) + max(0.0, ended - last))
