"""How far a run is and when it will be over, with how much that may be wrong.

What is left is counted by category with mean and spread of those that are done, and divided by the number of tasks
that ran at the same time lately. The band is two standard deviations: of the sum of what is left, as if its tasks were
drawn from the same lot as those that are done; of the means themselves, which few tasks know badly; and of the number
of tasks at the same time, as it went up and down so far. A throttle that is still growing may double that twice.
"""

from __future__ import annotations

from math import sqrt

import msgspec
import numpy as np

from shoal.view.run import RunView
from shoal.view.spread import even_edges, total_over

_DEVIATIONS = 2.0
_UNKNOWN_SPREAD = 1.0
"""Of a category of which at most one task is done: as much as its mean."""
_SLICES, _LATELY = 12, 3
"""Of the time so far, to see how many tasks ran at the same time."""
_GROWTH = 4.0


class Progress(msgspec.Struct, frozen=True):
    """The state of a run at one moment."""

    to_run: int
    up_to_date: int
    done: int
    failed: int
    running: int
    waiting: int
    elapsed: float
    left: float | None
    """Seconds; None if nothing can be said yet, 0 when the run is over."""
    least: float | None
    most: float | None
    rate: float
    """Tasks per second since the beginning."""


def progress(view: RunView, now: float | None = None) -> Progress:
    """As of `now`, or of the last moment that is known."""
    view.settle()
    rows, last = view.attempts, view.until(now)
    to_run = view.start.to_run if view.start else 0
    total = view.start.total if view.start else 0
    done = int(((rows.outcome == 0) & rows.final).sum())
    failed = int(((rows.outcome != 0) & rows.final).sum())
    running = len(view.running) if view.end is None else 0
    elapsed = max(0.0, last - view.origin)
    waiting = max(0, to_run - done - failed - running)
    left, band = _left(view, last) if view.end is None else (0.0, 0.0)
    least = None if left is None else max(0.0, left - band)
    if least is not None and view.throttle and view.throttle[-1].state == "growing":
        least /= _GROWTH
    return Progress(
        to_run,
        total - to_run,
        done,
        failed,
        running,
        waiting,
        elapsed,
        left,
        least,
        None if left is None else left + band,
        done / elapsed if elapsed > 0 else 0.0,
    )


def _left(view: RunView, last: float) -> tuple[float | None, float]:
    """Seconds to the end, and how many more or less that may be."""
    rows = view.attempts
    size = len(view.categories)
    ok = (rows.outcome == 0) & rows.final
    seconds = (rows.ended - rows.started)[ok]
    codes = rows.category[ok]
    if not len(seconds):
        return None, 0.0
    counts = np.bincount(codes, minlength=size).astype(np.float64)
    sums, squares = np.bincount(codes, seconds, size), np.bincount(codes, seconds**2, size)
    over = np.bincount(rows.category[rows.final], minlength=size)
    open_tasks = np.maximum(0, np.array(view.planned) - over)
    mean_of_all = float(seconds.mean())
    work = variance = 0.0
    for code in range(size):
        known, count = counts[code], float(open_tasks[code])
        mean = sums[code] / known if known else mean_of_all
        spread = (
            sqrt(max(0.0, squares[code] / known - mean**2) * known / (known - 1))
            if known > 1
            else _UNKNOWN_SPREAD * mean
        )
        work += count * mean
        variance += count * spread**2 + (count * spread) ** 2 / max(1.0, known)
    begun = sum(last - record.time for record in view.running.values())
    width, swing = _width(view, last)
    if width <= 0:
        return None, 0.0
    left = max(0.0, float(work) - begun) / width
    return left, _DEVIATIONS * sqrt(variance / width**2 + (left * swing) ** 2)


def _width(view: RunView, last: float) -> tuple[float, float]:
    """How many tasks ran at the same time lately, and by what share of that the number went up and down."""
    rows = view.attempts
    if view.is_cluster():  # what runs there is known only when it ends
        last = max(view.origin + (last - view.origin) / 2, last - float((rows.ended - rows.started).mean()))
    begun = np.array([record.time for record in view.running.values()])
    begins = np.concatenate((rows.started, begun)) - view.origin
    ends = np.concatenate((rows.ended, np.maximum(begun, last))) - view.origin
    edges = even_edges(0.0, last - view.origin, _SLICES)
    widths = total_over(begins, ends, np.ones(len(begins)), edges)
    lately = float(widths[-_LATELY:].mean()) or float(widths.mean())
    # The mean of several slices varies less than each of them.
    return lately, float(widths.std()) / lately / sqrt(_LATELY) if lately > 0 else 0.0
