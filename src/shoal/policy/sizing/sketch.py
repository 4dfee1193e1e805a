"""What is remembered of the tasks of a category: a bounded table of peaks with weights, and the latest few in full.

Peaks fall into cells of equal ratio, so the table has at most a few hundred rows however many tasks there are; a row
keeps the largest peak in it, so no size is ever rounded below what was seen. Older tasks weigh less. When the latest
peaks no longer look like the others, what was known before the change is let fade at once. Only first attempts are
looked at for that: tasks that were retried come to their end later, and are larger, than those that were not. What to
make of it all is left to `outlook` and `sizer`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

RATIO = 1.03
HALF_LIFE = 2000.0
"""After so many further tasks a task counts half."""
SLACK = 0.15
"""How far from its middle the rank of a peak may lie, on average, before it counts as a sign of change."""
ALARM = 3.0
"""So much of such signs together is a change: one false alarm in some 100,000 tasks, some ten tasks to notice."""
LATEST = 40
KEPT = 4.0
"""The weight that is left to everything before a change."""
RECALLED = 50.0
"""The most weight that an earlier run has in the next one."""
SHORTEST = 1e-6
_LOG_RATIO = math.log(RATIO)
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_RESCALE = 1e6
_LIGHT = 0.01


class Cell(msgspec.Struct, array_like=True):
    """The tasks whose peaks lie within one ratio of each other."""

    top: float
    weight: float = 0.0
    seconds: float = 0.0
    """Durations times weights."""


class Pending(msgspec.Struct, array_like=True):
    """Tasks that exhausted a size and have not come to their end yet: their peaks lie somewhere above it."""

    count: int = 0
    seconds: float = 0.0


class Learned(msgspec.Struct):
    """What is kept of a sketch from one run to the next."""

    cells: list[Cell] = []
    largest: float = 0.0
    tasks: int = 0


class Sketch:
    """Weighted peaks of one resource of one category."""

    def __init__(self, learned: Learned | None = None) -> None:
        self.cells: dict[int, Cell] = {}
        self.order: list[int] = []
        """The numbers of the cells, ascending."""
        self.pending: dict[float, Pending] = {}
        self.gain = 1.0
        """The weight of the next task; it grows, which is cheaper than making all others shrink."""
        self.seen = 0
        """Attempts that have ended, well or by exhaustion."""
        self.tasks = 0
        self.largest = 0.0
        self.changes = 0
        self.marks: Sequence[float] = ()
        self.ranks: Sequence[float] = ()
        """Sizes, and the share of tasks up to each, as they were when sizes were last decided."""
        self._latest: deque[tuple[float, float] | None] = deque(maxlen=LATEST)
        """Peaks and durations of the latest first attempts; None for those that were exhausted."""
        self._rising = self._falling = 0.0
        self._since_rise = self._since_fall = 0
        """For how many tasks each sum of signs has been above zero."""
        if learned is not None:
            self._recall(learned)

    def completed(self, peak: float, seconds: float, exhausted: float | None) -> bool:
        """Takes note of a finished task, and of what it had exhausted before; says whether a change was noticed."""
        seconds = max(seconds, SHORTEST)
        self.seen += 1
        self.tasks += 1
        self.largest = max(self.largest, peak)
        if exhausted is not None:
            self._resolve(exhausted)
            self._count(peak, seconds)
            return False
        since = self._watch(self._rank(peak))
        self._latest.append((peak, seconds))
        if since:
            self._fade(since)
        else:
            self._count(peak, seconds)
        return since > 0

    def exhausted(self, size: float, seconds: float, before: float | None) -> bool:
        """Takes note of an attempt that needed more than it got; says whether a change was noticed."""
        self.seen += 1
        pending = self.pending.setdefault(size, Pending())
        pending.count += 1
        pending.seconds += max(seconds, SHORTEST)
        if before is not None:
            self._resolve(before)
            return False
        since = self._watch((1 + self._share_within(size)) / 2)
        self._latest.append(None)
        if since:
            self._fade(since)
        return since > 0

    def learned(self) -> Learned:
        """What is worth keeping: peaks with their weights in units of one task."""
        cells = [self.cells[number] for number in self.order]
        kept = [Cell(cell.top, cell.weight / self.gain, cell.seconds / self.gain) for cell in cells]
        return Learned(kept, self.largest, self.tasks)

    def _recall(self, learned: Learned) -> None:
        """Begins with what an earlier run learned, at no more than a modest weight: much may have changed since."""
        total = sum(cell.weight for cell in learned.cells)
        factor = min(1.0, RECALLED / total) if total > 0 else 0.0
        for cell in learned.cells:
            if cell.weight > 0 and cell.seconds >= 0 and cell.top >= 0:
                self.cells[cell_of(cell.top)] = Cell(cell.top, cell.weight * factor, cell.seconds * factor)
        self.order = sorted(self.cells)
        self.largest = learned.largest
        self.tasks = learned.tasks

    def _resolve(self, size: float) -> None:
        """One of the tasks that exhausted a size has come to its end, or exhausted a larger one."""
        pending = self.pending.get(size)
        if pending is None:
            return
        pending.seconds -= pending.seconds / pending.count
        pending.count -= 1
        if not pending.count:
            del self.pending[size]

    def _rank(self, peak: float) -> float:
        """The share of tasks below a peak, its own cell counted half; a half if nothing is known."""
        if not self.ranks:
            return 0.5
        at = bisect_left(self.marks, peak)
        below = self.ranks[at - 1] if at else 0.0
        return (below + self.ranks[min(at, len(self.ranks) - 1)]) / 2

    def _share_within(self, size: float) -> float:
        at = bisect_right(self.marks, size)
        return self.ranks[at - 1] if at else 0.0

    def _watch(self, rank: float) -> int:
        """Adds up signs of change (two sums that only grow by ranks off the middle); how long ago it began, or 0."""
        if not self.ranks:
            return 0
        self._rising = max(0.0, self._rising + rank - 0.5 - SLACK)
        self._falling = max(0.0, self._falling + 0.5 - rank - SLACK)
        self._since_rise = self._since_rise + 1 if self._rising else 0
        self._since_fall = self._since_fall + 1 if self._falling else 0
        if self._rising >= ALARM:
            return self._since_rise
        return self._since_fall if self._falling >= ALARM else 0

    def _fade(self, recent: int) -> None:
        """Lets everything but the latest tasks fade to little."""
        self.changes += 1
        self.marks, self.ranks = (), ()
        self._rising = self._falling = 0.0
        self._since_rise = self._since_fall = 0
        total = sum(cell.weight for cell in self.cells.values()) / self.gain
        self._scale(min(1.0, KEPT / total) if total else 1.0)
        for attempt in islice(self._latest, max(0, len(self._latest) - recent), None):
            if attempt is not None:
                self._count(*attempt)

    def _count(self, peak: float, seconds: float) -> None:
        number = cell_of(peak)
        cell = self.cells.get(number)
        if cell is None:
            cell = self.cells[number] = Cell(peak)
            insort(self.order, number)
        elif peak > cell.top:
            cell.top = peak
        cell.weight += self.gain
        cell.seconds += seconds * self.gain
        self.gain *= _GROWTH
        if self.gain > _RESCALE:
            factor, self.gain = 1.0 / self.gain, 1.0
            self._scale(factor)

    def _scale(self, factor: float) -> None:
        """Multiplies all weights and forgets what is then as good as nothing."""
        for number in list(self.order):
            cell = self.cells[number]
            cell.weight *= factor
            cell.seconds *= factor
            if cell.weight < _LIGHT * self.gain:
                del self.cells[number]
        self.order = sorted(self.cells)


def cell_of(peak: float) -> int:
    """The number of the cell that a peak falls into; nothing at all has a cell of its own."""
    return math.ceil(math.log(peak) / _LOG_RATIO) if peak > SHORTEST else -1_000_000
