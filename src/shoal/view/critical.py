"""The critical path of a run as it was: from the task that ended last back to the beginning.

Before each task on it stands the one that it needed and that was done last. What lies between the two is time in which
nothing on the path ran: the task waited for cores, or for Shoal.
"""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.columns import Array, Ints
from shoal.view.doomed import pieces
from shoal.view.graph import Needs
from shoal.view.longest import MOST_LINKED, steps_of_longest
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
    """The share of the longest chain of the plan that is behind us, counted in tasks; 1 when the run is over. That of
    `steps` ended last and is another matter."""


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
        done_of_longest(view) if view.end is None else 1.0,
    )


def _chain(needs: Needs) -> Ints:
    """Rows of the tasks on the path, from the first to the last; groups are passed through and not named."""
    if not needs.ran.any():
        return np.zeros(0, np.int64)
    before = _latest_needs(needs).tolist()
    ran = needs.ran.tolist()
    at = int(np.nanargmax(needs.ended))
    found = []
    seen = bytearray(len(ran))  # a damaged ledger may have the links of two runs in one, and these a circle
    while at >= 0 and not seen[at]:
        seen[at] = True
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


def done_of_longest(view: RunView) -> float:
    """Of the longest chain of tasks, counted in tasks that run something, the share that is done. Of several chains
    that are as long it is the mean, step by step: whichever ends last, so much of them lies behind us."""
    steps = kept_steps(view)
    size = int(steps.max(initial=0))
    if not size:
        return 0.0
    there = np.bincount(steps, minlength=size + 1)[1:]
    over = np.bincount(steps[are_done(view, len(steps))], minlength=size + 1)[1:]
    return float((over[there > 0] / there[there > 0]).mean())  # in a damaged ledger a circle has steps without tasks


def are_done(view: RunView, size: int) -> Array:
    """By task, of the first so many."""
    rows = view.attempts
    done = rows.task[(rows.outcome == 0) & rows.final]
    found: Array = np.zeros(size, bool)
    found[done[done < size]] = True
    return found


def kept_steps(view: RunView) -> Ints:
    """By task: which step of a longest chain it is, from 1; 0 for tasks that are on none, and for groups. Worked out
    anew only if there is more of the graph, since that takes longer than all the rest."""
    size = (len(view.links), sum(view.planned))
    if view.depths is None or view.depths[0] != size:
        view.depths = (size, _steps(view))
    return view.depths[1]


def quick_steps(view: RunView) -> Ints | None:
    """As `kept_steps`, if it takes little to say: the plan is not very large, or it has been worked out already."""
    if not view.links or (view.dependencies > MOST_LINKED and view.depths is None):
        return None
    return kept_steps(view)


def _steps(view: RunView) -> Ints:
    pairs = list(pieces(view.links))
    needed = np.concatenate([np.zeros(0, np.int64), *(pair[0] for pair in pairs)])
    needing = np.concatenate([np.zeros(0, np.int64), *(pair[1] for pair in pairs)])
    linked = (np.frombuffer(record.tasks, "<i4") for record in view.links)
    size = 1 + max((int(column.max(initial=-1)) for column in (*linked, needed, view.attempts.task)), default=-1)
    runs = view.category_of(np.arange(size)) >= 0  # what is up to date, and groups, are not planned
    runs[view.attempts.task] = True
    found: Ints = np.array(steps_of_longest(needed.tolist(), needing.tolist(), runs.tolist()), np.int64)
    return found
