"""What became of the time of all cores: work that counts, work that was lost, and idleness by its reason."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.run import RunView
from shoal.view.timeline import Timeline


class Figures(msgspec.Struct, frozen=True):
    """Seconds of cores, unless something else is said."""

    makespan: float
    """Seconds from the beginning of the run to its end."""
    cores: float
    capacity: float
    busy: float
    """Held by attempts that succeeded."""
    lost: float
    """Held by attempts that did not."""
    idle: float
    idle_nothing_ready: float | None
    """Of the idle time: no task could have run. None if it is not known what tasks wait for."""
    idle_although_ready: float | None
    """Of the idle time: a task could have run, as far as dependencies go."""
    idle_within_tasks: float
    """Of the idle time: a task had the core and did not keep it busy. Only known where processor time counts."""
    cpu: float
    """Seconds of processors that attempts used."""
    tail: float
    """Seconds at the end in which less than half of the cores were held."""
    most_running: float
    memory_most: float
    """Bytes in use at the same time."""
    memory_there: int
    crowded: bool
    """More attempts ran together than there are cores, so that time is that of processors and not of attempts."""

    @property
    def utilisation(self) -> float:
        return min(1.0, (self.busy + self.lost) / self.capacity) if self.capacity else 0.0


def figures(view: RunView, over_time: Timeline) -> Figures:
    """From the timeline of the whole run."""
    width = float(over_time.edges[1] - over_time.edges[0])
    held, there = over_time.held(), over_time.capacity
    gap = np.maximum(0.0, there - held)
    within = np.minimum(gap, np.maximum(0.0, over_time.running - held)) if over_time.crowded else np.zeros(len(gap))
    nothing_ready = although = None
    if len(over_time.ready):
        with_ready = np.minimum(gap - within, over_time.ready)
        although = float(with_ready.sum()) * width
        nothing_ready = float((gap - within - with_ready).sum()) * width
    rows = view.attempts
    held_all, lost = float(held.sum()) * width, float(over_time.lost.sum()) * width
    return Figures(
        float(over_time.edges[-1] - over_time.edges[0]),
        float(there.max(initial=0.0)),
        float(there.sum()) * width,
        held_all - lost,
        lost,
        float(gap.sum()) * width,
        nothing_ready,
        although,
        float(within.sum()) * width,
        float(rows.cpu.sum(dtype=np.float64)),
        _tail(over_time, width),
        float(over_time.running.max(initial=0.0)),
        float(over_time.memory.sum(axis=0).max(initial=0.0)),
        view.total_memory(),
        over_time.crowded,
    )


def _tail(over_time: Timeline, width: float) -> float:
    """Only what comes after the cores were in use counts: a run that never used them has no tail."""
    busy = np.flatnonzero(over_time.held() >= 0.5 * np.maximum(over_time.capacity, 1e-9))
    if not len(busy):
        return 0.0
    return float(len(over_time.capacity) - 1 - busy[-1]) * width
