"""The critical path of a run as it was: from the task that ended last back to the beginning.

Before each task on it stands the one that it needed and that was done last. What lies between the two is time in which
nothing on the path ran: the task waited for cores, or for Shoal.
"""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.columns import Ints
from shoal.view.graph import Needs
from shoal.view.run import RunView

MOST_STEPS = 400
"""Steps that are told one by one; of longer paths only the longest of them, and sums of the others."""


class Step(msgspec.Struct, frozen=True):
    """One task of the path."""

    task: int
    name: str
    category: str
    started: float
    ended: float
    waited: float
    """Seconds between the end of the step before, or the beginning of the run, and its start."""


class CriticalPath(msgspec.Struct, frozen=True):
    """From the first task to the last."""

    steps: list[Step]
    length: int
    """Tasks on the path; there may be fewer in `steps`."""
    ran: float
    waited: float
    by_category: list[tuple[str, int, float]]
    """Tasks and seconds on the path; the most first."""
    done: float
    """The share of the path's time that is behind us; 1 when the run is over."""


def critical_path(view: RunView, needs: Needs) -> CriticalPath | None:
    """None if nothing has run."""
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
        Step(
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
        path_progress(needs) if view.end is None else 1.0,
    )


def _chain(needs: Needs) -> Ints:
    """Rows of the tasks on the path, from the first to the last; groups are passed through and not named."""
    if not needs.ran.any():
        return np.zeros(0, np.int64)
    before = _latest_needs(needs).tolist()
    ran = needs.ran.tolist()
    at = int(np.nanargmax(needs.ended))
    found = []
    while at >= 0:
        if ran[at]:
            found.append(at)
        at = before[at]
    return np.array(found[::-1], np.int64)


def _latest_needs(needs: Needs) -> Ints:
    """For each row the one that was done last of those that it needs; -1 if it needs none that was."""
    done = needs.finish[needs.parents]
    known = np.flatnonzero(~np.isnan(done))
    order = known[np.lexsort((done[known], needs.children[known]))]
    found = np.full(len(needs), -1, np.int64)
    found[needs.children[order]] = needs.parents[order]  # of several for one child the last stays
    return found


def path_progress(needs: Needs) -> float:
    """Of the longest chain of tasks, counted in tasks, the share that is done."""
    if not len(needs):
        return 0.0
    depth = _depths(needs)
    over = needs.ran & needs.ok
    return float(depth[over].max(initial=0)) / float(depth.max())


def _depths(needs: Needs) -> Ints:
    """Tasks on the longest chain that ends with each task, itself included; groups do not count."""
    size = len(needs)
    counts = np.diff(needs.parent_start)
    order = np.argsort(needs.parents, kind="stable")
    start = np.searchsorted(needs.parents[order], np.arange(size + 1)).tolist()
    children = needs.children[order].tolist()
    left = counts.tolist()
    depth = [1] * size
    front = [row for row in range(size) if not left[row]]
    for row in front:  # grows while we walk it
        here = depth[row]
        for child in children[start[row] : start[row + 1]]:
            left[child] -= 1
            if here >= depth[child]:
                depth[child] = here + 1
            if not left[child]:
                front.append(child)
    return np.array(depth, np.int64)
