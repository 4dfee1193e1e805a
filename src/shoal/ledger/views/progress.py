"""Progress of a run, computed from all its attempts; the model is in `shoal.ledger.views.pace`."""

from __future__ import annotations

import numpy as np

from shoal.ledger.run_fold import Sums, within
from shoal.ledger.views.pace import RATE_SECONDS, RATE_TASKS, SLICES, CategoryPace, Chain, Progress, chain_of
from shoal.ledger.views.run import RunView
from shoal.ledger.views.timeline import even_edges, held_now, total_over
from shoal.ledger.views.waits import quick_steps

__all__ = ["Progress", "progress"]


def progress(view: RunView, now: float | None = None) -> Progress:
    """Progress at `now`, or at the last known time: a run that was killed counts as ended then."""
    view.settle()
    last, over, tallies = view.until(now), not view.is_in_progress(now), _tallies(view)
    return view.progress_with(
        Sums(
            tallies,
            [] if over else _going(view, tallies, last),
            [] if over else _widths(view, last),
            0.0 if over else _rate(view, last),
            _held(view, last),
            float(view.attempts.ended.max(initial=view.origin)),
            None if over else _chain(view, tallies, last),
        ),
        now,
    )


def _tallies(view: RunView) -> list[CategoryPace]:
    rows, size = view.attempts, len(view.categories)
    ok = (rows.outcome == 0) & rows.final
    seconds, codes = (rows.ended - rows.started)[ok], rows.category[ok]
    counts = np.bincount(codes, minlength=size).tolist()
    failed = np.bincount(rows.category[rows.final & ~ok], minlength=size).tolist()
    sums, squares = np.bincount(codes, seconds, size).tolist(), np.bincount(codes, seconds**2, size).tolist()
    return [
        CategoryPace(view.planned[code], counts[code], failed[code], 0, sums[code], squares[code])
        for code in range(size)
    ]


def _going(view: RunView, tallies: list[CategoryPace], last: float) -> list[tuple[CategoryPace, float]]:
    codes = view.category_of(np.array(list(view.running), np.int64)).tolist()
    unplanned = CategoryPace()
    return [
        (tallies[code] if code >= 0 else unplanned, max(0.0, last - record.time))
        for code, record in zip(codes, view.running.values(), strict=True)
    ]


def _chain(view: RunView, tallies: list[CategoryPace], last: float) -> Chain | None:
    """The rest of the longest chain. None if some tasks cannot run any more, because it is unknown which part of the
    chain that affects."""
    steps = quick_steps(view) if not view.cannot_run() and not view.unwanted else None
    if steps is None:
        return None
    left = steps > 0
    over = view.attempts.task[view.attempts.final]
    left[over[over < len(left)]] = False
    tasks = np.flatnonzero(left)
    codes = view.category_of(tasks)
    tasks, codes = tasks[codes >= 0], codes[codes >= 0]
    if not len(tasks):
        return None
    places = steps[tasks]
    first = places == places.min()
    begun = 0.0
    if first.sum() <= len(view.running):  # otherwise one of them has not started
        begun = min(
            min(max(0.0, last - view.running[task].time) if task in view.running else 0.0, tallies[code].mean(0.0))
            for task, code in zip(tasks[first].tolist(), codes[first].tolist(), strict=True)
        )
    keys, counts = np.unique(places * len(tallies) + codes, return_counts=True)
    steps_of, codes_of = np.divmod(keys, len(tallies))
    rows = zip(steps_of.tolist(), [tallies[code] for code in codes_of.tolist()], counts.tolist(), strict=True)
    return chain_of(rows, begun)


def _rate(view: RunView, last: float) -> float:
    rows = view.attempts
    ends = rows.ended[(rows.outcome == 0) & rows.final]
    if not len(ends):
        return 0.0
    # The last records in the ledger are approximately the last in time.
    since = min(last - RATE_SECONDS, float(ends[-RATE_TASKS:].min())) if len(ends) >= RATE_TASKS else view.origin
    if since <= view.origin:  # clocks of other nodes may be behind
        return len(ends) / (last - view.origin) if last > view.origin else 0.0
    return float((ends > since).sum()) / (last - since) if last > since else 0.0


def _widths(view: RunView, last: float) -> list[float]:
    """Concurrency in slices of the elapsed time."""
    rows = view.attempts
    if view.is_cluster() and len(rows) and not view.running:  # short tasks of a cluster are known when they end
        last = max(view.origin + (last - view.origin) / 2, last - float((rows.ended - rows.started).mean()))
    begun = np.array([record.time for record in view.running.values()])
    begins = view.after(np.concatenate((rows.started, begun)))
    ends = view.after(np.concatenate((rows.ended, np.maximum(begun, last))))
    edges = even_edges(0.0, last - view.origin, SLICES)
    widths: list[float] = total_over(begins, ends, np.ones(len(begins)), edges).tolist()
    return widths


def _held(view: RunView, last: float) -> float:
    """Core seconds, equal to those of a timeline of the whole run."""
    total = float((view.held() * view.within()).sum())
    if view.running and view.end is None:
        begun = np.array([within(record.time, last, view.origin) for record in view.running.values()])
        codes = view.category_of(np.array(list(view.running), np.int64))
        total += float((begun * held_now(view, codes))[codes >= 0].sum())
    return total
