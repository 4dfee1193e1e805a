"""Shoal's sizing of one resource: learns peaks of finished tasks and chooses the sizes of the next attempts.

The first size and the size after each exhaustion form the chain with the least expected cost over the expected peaks
(`best_chain` and `outlook`). The next size is looked up by the exhausted size, so it is correct even after the chain
has changed. The cost of a task is its size; for throughput also its share of a node that holds a limited number of
equal tasks. One `Sizer` serves one resource of one category. Measuring and enforcing are done elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import msgspec


def best_choices(costs: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """For each candidate j the index of the best size for tasks known to need candidate j or a larger one.

    `costs` ascend with the candidate sizes; `seconds` are the expected durations of the tasks that need exactly that
    candidate.
    """
    last = len(costs) - 1
    choices = [last] * (last + 1)
    lines: list[tuple[float, float, int]] = []
    least = tail = 0.0
    at = 0
    for j in range(last, -1, -1):
        _push(lines, (costs[j], least, j))
        at = min(at, len(lines) - 1)
        tail += seconds[j]
        while at + 1 < len(lines) and _value(lines[at + 1], tail) <= _value(lines[at], tail):
            at += 1
        least = _value(lines[at], tail)
        choices[j] = lines[at][2]
    return choices


def best_chain(costs: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """Indexes of the sizes to try, in order; the last candidate always ends the chain."""
    choices = best_choices(costs, seconds)
    chain = [choices[0]]
    while chain[-1] + 1 < len(choices):
        chain.append(choices[chain[-1] + 1])
    return chain


def _value(line: tuple[float, float, int], tail: float) -> float:
    return line[0] * tail + line[1]


def _push(lines: list[tuple[float, float, int]], new: tuple[float, float, int]) -> None:
    """Adds a flatter line to the lower envelope and drops lines it makes superfluous; on equal slopes the larger size
    is safer."""
    if lines and lines[-1][0] <= new[0] and lines[-1][1] <= new[1]:
        return
    while len(lines) >= 2:
        (slope1, base1, _), (slope2, base2, _) = lines[-2], lines[-1]
        if (new[1] - base1) * (slope1 - slope2) > (base2 - base1) * (slope1 - new[0]):
            break
        lines.pop()
    lines.append(new)


RATIO = 1.03
HALF_LIFE = 2000.0
"""Number of further tasks after which a task counts half."""
SLACK = 0.15
"""Tolerated average distance of a peak's rank from the middle; more counts as a sign of change."""
ALARM = 3.0
"""Sum of such signs that counts as a change: one false alarm per 100,000 tasks, detection after about ten tasks."""
LATEST = 40
KEPT = 4.0
"""Weight that remains for all tasks before a change."""
RECALLED = 50.0
"""Maximum weight of an earlier run in the next one."""
SHORTEST = 1e-6
_LOG_RATIO = math.log(RATIO)
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)
_RESCALE = 1e6
_LIGHT = 0.01


class Cell(msgspec.Struct, array_like=True):
    """Tasks whose peaks fall into one logarithmic interval."""

    top: float
    weight: float = 0.0
    seconds: float = 0.0
    """Sum of duration times weight."""


class Pending(msgspec.Struct, array_like=True):
    """Tasks that exhausted a size and have not finished yet: their peaks are above it."""

    count: int = 0
    seconds: float = 0.0


class Learned(msgspec.Struct):
    """State of a sketch that is stored between runs."""

    cells: list[Cell] = []
    largest: float = 0.0
    tasks: int = 0


class Sketch:
    """Weighted histogram of the peaks of one resource of one category, with change detection."""

    def __init__(self, learned: Learned | None = None) -> None:
        self.cells: dict[int, Cell] = {}
        self.order: list[int] = []
        """Numbers of the cells, ascending."""
        self.pending: dict[float, Pending] = {}
        self.gain = 1.0
        """Weight of the next task; it grows, which is cheaper than shrinking all other weights."""
        self.seen = 0
        """Number of ended attempts, finished or exhausted."""
        self.tasks = 0
        self.largest = 0.0
        self.changes = 0
        self.marks: Sequence[float] = ()
        self.ranks: Sequence[float] = ()
        """Sizes and the share of tasks up to each, as of the last decision."""
        self._latest: deque[tuple[float, float] | None] = deque(maxlen=LATEST)
        """Peaks and durations of the latest first attempts; None for exhausted ones."""
        self._rising = self._falling = 0.0
        self._since_rise = self._since_fall = 0
        """Number of tasks for which each sum of signs has been above zero."""
        if learned is not None:
            self._recall(learned)

    def completed(self, peak: float, seconds: float, exhausted: float | None) -> bool:
        """Records a finished task and the size it had exhausted before; returns whether a change was detected."""
        seconds = max(seconds, SHORTEST)
        self.seen += 1
        self.tasks += 1
        self.largest = max(self.largest, peak)
        if exhausted is not None:
            self._resolve(exhausted)
            self._count(peak, seconds)
            return False
        since = self._detect_change(self._rank(peak))
        self._latest.append((peak, seconds))
        if since:
            self._discount_old_tasks(since)
        else:
            self._count(peak, seconds)
        return since > 0

    def exhausted(self, size: float, seconds: float, before: float | None) -> bool:
        """Records an attempt that needed more than its size; returns whether a change was detected."""
        self.seen += 1
        pending = self.pending.setdefault(size, Pending())
        pending.count += 1
        pending.seconds += max(seconds, SHORTEST)
        if before is not None:
            self._resolve(before)
            return False
        since = self._detect_change((1 + self._share_within(size)) / 2)
        self._latest.append(None)
        if since:
            self._discount_old_tasks(since)
        return since > 0

    def learned(self) -> Learned:
        """State to store: peaks with their weights in units of one task."""
        cells = [self.cells[number] for number in self.order]
        kept = [Cell(cell.top, cell.weight / self.gain, cell.seconds / self.gain) for cell in cells]
        return Learned(kept, self.largest, self.tasks)

    def _recall(self, learned: Learned) -> None:
        """Starts with the state of an earlier run, with limited weight: much may have changed since."""
        total = sum(cell.weight for cell in learned.cells)
        factor = min(1.0, RECALLED / total) if total > 0 else 0.0
        for cell in learned.cells:
            if cell.weight > 0 and cell.seconds >= 0 and cell.top >= 0:
                self.cells[cell_of(cell.top)] = Cell(cell.top, cell.weight * factor, cell.seconds * factor)
        self.order = sorted(self.cells)
        self.largest = learned.largest
        self.tasks = learned.tasks

    def _resolve(self, size: float) -> None:
        """Removes one pending task: it has finished, or exhausted a larger size."""
        pending = self.pending.get(size)
        if pending is None:
            return
        pending.seconds -= pending.seconds / pending.count
        pending.count -= 1
        if not pending.count:
            del self.pending[size]

    def _rank(self, peak: float) -> float:
        """Share of tasks below a peak, with its own cell counted half; 0.5 if nothing is known."""
        if not self.ranks:
            return 0.5
        at = bisect_left(self.marks, peak)
        below = self.ranks[at - 1] if at else 0.0
        return (below + self.ranks[min(at, len(self.ranks) - 1)]) / 2

    def _share_within(self, size: float) -> float:
        at = bisect_right(self.marks, size)
        return self.ranks[at - 1] if at else 0.0

    def _detect_change(self, rank: float) -> int:
        """Updates the change detection (two one-sided cumulative sums); returns the age of a detected change in tasks,
        or 0."""
        if not self.ranks:
            return 0
        self._rising = max(0.0, self._rising + rank - 0.5 - SLACK)
        self._falling = max(0.0, self._falling + 0.5 - rank - SLACK)
        self._since_rise = self._since_rise + 1 if self._rising else 0
        self._since_fall = self._since_fall + 1 if self._falling else 0
        if self._rising >= ALARM:
            return self._since_rise
        return self._since_fall if self._falling >= ALARM else 0

    def _discount_old_tasks(self, recent: int) -> None:
        """Reduces the weight of everything but the latest tasks."""
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
        """Multiplies all weights and drops negligible ones."""
        for number in list(self.order):
            cell = self.cells[number]
            cell.weight *= factor
            cell.seconds *= factor
            if cell.weight < _LIGHT * self.gain:
                del self.cells[number]
        self.order = sorted(self.cells)


def cell_of(peak: float) -> int:
    """Number of the cell of a peak; a peak of 0 has its own cell."""
    return math.ceil(math.log(peak) / _LOG_RATIO) if peak > SHORTEST else -1_000_000


BEYOND = ((1.0, 0.5), (2.0, 0.25), (4.0, 0.125))
"""Expected position of an unseen larger peak: steps above the largest peak, with probabilities. The rest is at the
top."""
_AT_TOP = 1.0 - sum(chance for _, chance in BEYOND)
_LEAST_STEP = 0.3
"""Minimum step relative to the largest peak after one sample; the spread of several samples is more informative."""


class SizeRow(NamedTuple):
    """Tasks that need exactly this size."""

    size: float
    weight: float
    seconds: float


def outlook(known: Sketch, top: float, start: float) -> list[SizeRow]:
    """Expected peaks by ascending size, the last at `top` or above; stores their ranks in the sketch.

    `start` is the expected size while nothing is known.
    """
    rows = with_pending(_seen_and_unseen(known, top) if known.order else _unknown(known, top, start), known)
    if known.order:
        total = sum(row.weight for row in rows)
        known.marks = [row.size for row in rows]
        known.ranks = list(accumulate(row.weight / total for row in rows))
    return rows


def _unknown(known: Sketch, top: float, start: float) -> list[SizeRow]:
    count = sum(pending.count for pending in known.pending.values())
    mean = sum(pending.seconds for pending in known.pending.values()) / count if count else 1.0
    return [SizeRow(start, 1.0, mean), SizeRow(top, 0.2, 0.2 * mean)]


def _seen_and_unseen(known: Sketch, top: float) -> list[SizeRow]:
    cells = [known.cells[number] for number in known.order]
    rows = [SizeRow(cell.top, cell.weight, cell.seconds) for cell in cells]
    weight = sum(row.weight for row in rows)
    mean = sum(row.weight * row.size for row in rows) / weight
    samples = weight / known.gain
    largest = rows[-1].size
    # The next record of an exponential tail is one scale above the last; (largest - mean) / ln(n) estimates the scale.
    step = max((largest - mean) / max(1.0, math.log(samples + 1)), _LEAST_STEP * largest / samples)
    seconds = sum(row.seconds for row in rows) / samples
    rows += [SizeRow(largest + steps * step, chance * known.gain, chance * seconds) for steps, chance in BEYOND]
    rows.append(SizeRow(max(top, rows[-1].size), _AT_TOP * known.gain, _AT_TOP * seconds))
    return rows


def with_pending(rows: Sequence[SizeRow], known: Sketch) -> list[SizeRow]:
    """Distributes each pending task over the rows above its exhausted size, in proportion to their weights."""
    waiting = sorted(known.pending.items(), reverse=True)
    if not waiting:
        return list(rows)
    left_weight = sum(row.weight for row in rows)
    left_seconds = sum(row.seconds for row in rows)
    by_weight = by_seconds = 1.0
    spread: list[SizeRow] = []
    for size, weight, seconds in rows:
        while waiting and waiting[-1][0] < size:
            _, pending = waiting.pop()
            by_weight += pending.count * known.gain / left_weight
            by_seconds += pending.seconds * known.gain / left_seconds
        spread.append(SizeRow(size, weight * by_weight, seconds * by_seconds))
        # The last row must keep a positive weight: the difference of sums may be rounded to zero.
        left_weight = max(left_weight - weight, 1e-9 * left_weight)
        left_seconds = max(left_seconds - seconds, 1e-9 * left_seconds)
    return spread


SIZER_MODES = ("fixed", "max", "min-waste", "max-throughput")
START_SHARE = 4
"""Before anything is known a task gets 1/N of the node."""
PLACE = 0.5
"""For throughput: share of a task's cost that is its place among equal ones; the rest is its size."""
ROOM = 1.15
"""A size that leaves no room for a further task is raised to the unused remainder, by at most this factor."""
MARGIN = 1.03
"""For the least waste sizes are raised by at most this factor."""
RETHINK = 0.03
"""Sizes are decided again when the number of attempts has grown by this share, and at least every N attempts."""
RETHINK_ATTEMPTS = 20


class SizerRow(msgspec.Struct):
    """One row of the table of categories."""

    maximum: str
    """The declared number; `~n` the largest peak; `>n` a task exhausted n and none was larger; `na` nothing is
    known."""
    first: float
    tasks: int
    retries: int
    changes: int
    """Number of detected changes, after which earlier peaks lost their weight."""
    waste: float
    """Share of size times duration that was not used."""


class Sizer:
    """Chooses the size of the next attempt of a task, and learns from ended attempts."""

    def __init__(
        self,
        node_size: float,
        mode: str = "max-throughput",
        *,
        explicit_max: float | None = None,
        explicit_min: float = 0,
        unit: float = 1,
        places: int | None = None,
        learned: Learned | None = None,
        hopeful: bool = False,
    ) -> None:
        """`hopeful`: before anything is known, a task gets 1/`places` of the node instead of a larger part."""
        if mode not in SIZER_MODES:
            raise ValueError(f"unknown mode {mode!r}")
        self.mode = mode
        self.explicit_max = explicit_max
        self.explicit_min = explicit_min
        self.unit = unit
        self.hopeful = hopeful
        self.known = Sketch(learned)
        self.retries = 0
        self.allocated = self.used = 0.0
        self._sizes: list[float] = []
        self._answers: list[float] = []
        """Best size for a task that is known to need a candidate size or more."""
        self._due = 0
        """Number of ended attempts at which sizes are decided again."""
        self._places: dict[int, int] = {}
        """By panel (profile) that shares this sizer."""
        self.resize(node_size, places)

    def resize(self, node_size: float, places: int | None = None, panel: int = 0) -> None:
        """Sets the amount of the node.

        `places` is how many such tasks fit by their other resources: a share below that gains nothing. Tasks of one
        category may request different cores. Then the panel with the most places decides; otherwise the few tasks that
        request all cores would make the others get all of the memory.
        """
        if places:
            self._places[panel] = places
            places = max(self._places.values())
        self.node_size = max(node_size, self.unit)
        self.top = self.node_size if self.explicit_max is None else min(self.node_size, self.explicit_max)
        share = self._in_units(self.node_size // places) if places else 0
        self.bottom = min(self.top, max(self.explicit_min, self.unit, share))
        self._due = 0

    def ask(self, tried: Sequence[float] = ()) -> float:
        """The size for the next attempt of a task that has exhausted the sizes in `tried`."""
        if self.known.seen >= self._due:
            self._decide()
        at = bisect_right(self._sizes, max(tried)) if tried else 0
        return self._answers[at] if at < len(self._answers) else self.top

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Whether a task has exhausted everything the node has."""
        return bool(tried) and max(tried) >= self.top

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """Learns from an attempt: it ended by itself with this peak, or exceeded its limit `exhausted_at`.

        `tried` are the sizes that the same task had exhausted before, `size` is the size of this attempt.
        """
        before = max(tried) if tried else None
        if exhausted_at is not None:
            self.retries += 1
            self.allocated += exhausted_at * duration
            changed = self.known.exhausted(exhausted_at, duration, before)
        else:
            if size is not None:
                self.allocated += size * duration
                self.used += min(peak, size) * duration
            changed = self.known.completed(peak, duration, before)
        if changed:
            self._due = 0

    def learned(self) -> Learned:
        """State to store for the next run."""
        return self.known.learned()

    def describe(self) -> SizerRow:
        known = self.known
        exhausted = max(known.pending, default=0.0)
        if self.explicit_max is not None:
            maximum = f"{self.explicit_max:g}"
        elif exhausted > known.largest:
            maximum = f">{exhausted:g}"
        else:
            maximum = f"~{known.largest:g}" if known.tasks else "na"
        waste = 1.0 - self.used / self.allocated if self.allocated else 0.0
        return SizerRow(maximum, self.ask(), known.tasks, self.retries, known.changes, waste)

    def _decide(self) -> None:
        seen = self.known.seen
        self._due = seen + max(1, min(RETHINK_ATTEMPTS, int(RETHINK * seen)))
        if self.mode == "fixed":
            self._sizes = self._answers = [self.top]
            return
        start = self.bottom if self.hopeful else max(self.unit, self._in_units(self.top / START_SHARE))
        rows = outlook(self.known, self.top, start)
        if self.mode == "max":
            self._sizes = self._above_all(rows)
            self._answers = [self._roomy(size) for size in self._sizes]
            return
        self._sizes, seconds = self._candidates(rows)
        choices = best_choices([self._cost(size) for size in self._sizes], seconds)
        roomy = {at: self._roomy(self._sizes[at]) for at in sorted(set(choices))}
        self._answers = [roomy[at] for at in choices]

    def _above_all(self, rows: Sequence[SizeRow]) -> list[float]:
        """The largest peak with a margin, then the whole node; the whole node at once while nothing is known."""
        if not self.known.order:
            return [self.top]
        largest = self.known.cells[self.known.order[-1]].top
        first = next(row.size for row in rows if row.size > largest)
        return [self._fitted(first), self.top]

    def _candidates(self, rows: Sequence[SizeRow]) -> tuple[list[float], list[float]]:
        """The rows as valid sizes, each once, the last one the whole node."""
        sizes: list[float] = []
        seconds: list[float] = []
        for row in rows:
            size = self._fitted(row.size)
            if sizes and size <= sizes[-1]:
                seconds[-1] += row.seconds
            else:
                sizes.append(size)
                seconds.append(row.seconds)
        return sizes, seconds

    def _fitted(self, size: float) -> float:
        return min(self.top, max(self.bottom, math.ceil(size / self.unit) * self.unit))

    def _in_units(self, share: float) -> float:
        """Rounded down, so that the node holds as many shares as it was divided into."""
        return share // self.unit * self.unit

    def _cost(self, size: float) -> float:
        if self.mode == "min-waste":
            return size
        return PLACE * self.node_size / (self.node_size // size) + (1 - PLACE) * size

    def _roomy(self, size: float) -> float:
        """The size with a margin; for throughput up to the share of as many equal tasks as fit anyway."""
        if self.mode == "min-waste":
            return self._fitted(size * MARGIN)
        share = self._in_units(self.node_size // (self.node_size // size))
        return min(self.top, max(size, min(share, self._fitted(size * ROOM))))
