"""Core use over time: tasks with a special core request, cores allocated on cluster nodes, and detection of shared
cores.

Tasks that request other cores than their category declares are stored sparsely, since most runs have none. For all
others the category decides; `RunView.cores_of` combines both. Queries for single tasks need no numpy.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from shoal.core.resources import FRACTION
from shoal.ledger.records import NONE_REQUESTED, CoresAsked, NodeTold, numbers

if TYPE_CHECKING:
    from shoal.ledger.views.attempts import Array, Floats, Ints


class SpecialCores:
    """Tasks with a core request of their own. If a task is recorded twice, the last record is valid."""

    def __init__(self) -> None:
        self._records: list[CoresAsked] = []
        self._requested: dict[int, int] | None = None
        self._sorted: tuple[Ints, Ints] | None = None

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, task: int) -> bool:
        return bool(self._records) and task in self._by_task()

    def add(self, record: CoresAsked) -> None:
        self._records.append(record)
        self._requested = self._sorted = None

    def of(self, task: int, otherwise: int) -> int:
        """Cores that a task requests, or `otherwise`, the request of its category."""
        return self._by_task().get(task, otherwise) if self._records else otherwise

    def _by_task(self) -> dict[int, int]:
        if self._requested is None:
            rows = (zip(numbers(each.tasks), numbers(each.cores), strict=True) for each in self._records)
            self._requested = dict(chain.from_iterable(rows))
        return self._requested

    def _columns(self) -> tuple[Ints, Ints]:
        """The sorted task numbers, and the request of each."""
        if self._sorted is None:
            import numpy as np

            columns = [[np.frombuffer(c, "<i4") for c in (each.tasks, each.cores)] for each in self._records[::-1]]
            tasks, requested = (
                np.concatenate([np.zeros(0, np.int64), *(pair[at][::-1] for pair in columns)]).astype(np.int64)
                for at in (0, 1)
            )
            tasks, last = np.unique(tasks, return_index=True)
            self._sorted = tasks, requested[last]
        return self._sorted

    @property
    def tasks(self) -> Ints:
        return self._columns()[0]

    @property
    def requested(self) -> Ints:
        """In units of 1/10,000 core; `NONE_REQUESTED` for tasks that request none."""
        return self._columns()[1]

    def among(self, tasks: Ints) -> tuple[Ints, Ints]:
        """Indices of those of the given tasks that are stored here, and their requests."""
        import numpy as np

        known, requested = self._columns()
        if not len(known):
            return np.zeros(0, np.int64), requested
        place = np.minimum(np.searchsorted(known, tasks), len(known) - 1)
        found = np.flatnonzero(known[place] == tasks)
        return found, requested[place[found]]


def as_cores(requested: Ints) -> Floats:
    """Converts requests to cores; a task without a request is allocated one."""
    import numpy as np

    found: Floats = np.where(requested == NONE_REQUESTED, 1.0, requested / FRACTION)
    return found


def are_declared(requested: Ints) -> Array:
    """Whether each request declares cores."""
    found: Array = requested != NONE_REQUESTED
    return found


MOST_MOMENTS = 2048
_APART = 0.5
_LITTLE = 0.05
"""Maximum relative difference between node reports and ended attempts that counts as equal: nodes report at intervals
only."""


class ReportedUse:
    """Running tasks and allocated cores over time, as reported by all nodes."""

    def __init__(self) -> None:
        self._reported: dict[int, tuple[int, float]] = {}
        self._running, self._cores = 0, 0.0
        self._moments: list[tuple[float, int, float]] = []
        self._apart = _APART

    def take(self, report: NodeTold) -> None:
        """Takes the report of a node."""
        if report.running is not None:
            self._note(report.time, report.node, (report.running, report.cores / FRACTION))

    def leave(self, time: float, node: int) -> None:
        """A node has left, and its tasks with it."""
        self._note(time, node, (0, 0.0))

    def _note(self, time: float, node: int, stands: tuple[int, float]) -> None:
        before = self._reported.get(node, (0, 0.0))
        self._reported[node] = stands
        self._running += stands[0] - before[0]
        self._cores += stands[1] - before[1]
        if self._moments and time < self._moments[-1][0] + self._apart:
            self._moments[-1] = (self._moments[-1][0], self._running, self._cores)
            return
        self._moments.append((time, self._running, self._cores))
        if len(self._moments) > MOST_MOMENTS:
            self._moments, self._apart = self._moments[::2], 2 * self._apart

    def core_seconds(self, until: float) -> float:
        """Core seconds allocated up to this time."""
        ends = [moment for moment, _, _ in self._moments[1:]] + [until]
        return sum(cores * max(0.0, end - began) for (began, _, cores), end in zip(self._moments, ends, strict=False))

    def over(self, edges: Floats, origin: float, until: float) -> tuple[Floats, Floats]:
        """Mean number of running tasks and allocated cores in each bucket, up to this time."""
        import numpy as np  # here, because sums do not need it

        from shoal.ledger.views.timeline import total_over

        begins = np.array([moment for moment, _, _ in self._moments]) - origin
        ends = np.append(begins[1:], max(until - origin, begins[-1] if len(begins) else 0.0))[: len(begins)]
        running, cores = (np.array([moment[at] for moment in self._moments], np.float64) for at in (1, 2))
        return total_over(begins, ends, running, edges), total_over(begins, ends, cores, edges)


def unexplained(reported: Floats, known: Floats, there: Floats) -> Floats:
    """The part of the node reports in the last buckets that attempts do not explain yet. In earlier buckets all
    attempts have ended and are known."""
    import numpy as np

    missing = reported - known
    enough = missing <= _LITTLE * np.maximum(there, 1.0)
    enough[-1:] = False  # attempts that have just started
    settled = np.flatnonzero(enough)
    found: Floats = np.maximum(0.0, missing)
    found[: settled[-1] + 1 if len(settled) else 0] = 0.0
    return found


OVERSUBSCRIBED = 1.02
"""Tasks share cores if they were allocated at least this multiple of the available cores."""
_PIECES, _FINEST = 256, 1 / 64


class Oversubscription:
    """Overlap of attempts: their allocated cores over time. O(1) per attempt, constant size."""

    def __init__(self) -> None:
        self._width = _FINEST
        self._steps: dict[int, float] = {}
        """By interval: the change of the allocated cores in it."""
        self._inside: dict[int, float] = {}
        """Core seconds of these changes within the interval."""
        self._first = self._last = 0

    def copy(self) -> Oversubscription:
        other = Oversubscription()
        other._width, other._first, other._last = self._width, self._first, self._last
        other._steps, other._inside = self._steps.copy(), self._inside.copy()
        return other

    def add(self, begin: float, end: float, cores: float) -> None:
        """Adds an attempt."""
        if end <= begin or not cores:
            return
        self._reach(begin, end)
        for moment, change in ((begin, cores), (end, -cores)):
            at = int(moment // self._width)
            self._change(at, change, change * ((at + 1) * self._width - moment))

    def add_all(self, begins: Floats, ends: Floats, cores: Floats) -> None:
        """Adds many attempts."""
        import numpy as np

        count = (ends > begins) & (cores != 0)
        begins, ends, cores = begins[count], ends[count], cores[count]
        if not len(begins):
            return
        self._reach(float(begins.min()), float(ends.max()))
        for moments, changes in ((begins, cores), (ends, -cores)):
            places = np.floor_divide(moments, self._width).astype(np.int64)
            left = changes * ((places + 1) * self._width - moments)
            first = int(places.min())
            steps, inside = np.bincount(places - first, changes), np.bincount(places - first, left)
            for at in np.unique(places).tolist():
                self._change(at, float(steps[at - first]), float(inside[at - first]))

    def is_oversubscribed(self, cores: float) -> bool:
        held = fits = running = 0.0
        there, before = cores * self._width, self._first
        for at in sorted(self._steps):
            between = running * self._width  # in each interval without a start or an end
            held += between * (at - before)
            fits += min(between, there) * (at - before)
            here = between + self._inside[at]
            held += here
            fits += min(here, there)
            running += self._steps[at]
            before = at + 1
        return cores > 0 and held > OVERSUBSCRIBED * fits

    def _change(self, at: int, step: float, inside: float) -> None:
        self._steps[at] = self._steps.get(at, 0.0) + step
        self._inside[at] = self._inside.get(at, 0.0) + inside

    def _reach(self, begin: float, end: float) -> None:
        first, last = int(begin // self._width), int(end // self._width)
        if self._steps:
            first, last = min(first, self._first), max(last, self._last)
        while last - first >= _PIECES:
            self._widen()
            first, last = first >> 1, last >> 1
        self._first, self._last = first, last

    def _widen(self) -> None:
        steps, inside, width = self._steps, self._inside, self._width
        self._steps, self._inside, self._width = {}, {}, 2 * width
        for at, step in steps.items():
            self._change(at >> 1, step, inside[at] + (0.0 if at & 1 else step * width))
