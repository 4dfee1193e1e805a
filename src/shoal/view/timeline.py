"""What happened over time: cores and memory in use by category, tasks by state, in at most so many buckets."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.attempts import Attempts
from shoal.view.columns import Floats, Ints
from shoal.view.graph import Needs
from shoal.view.run import RunView
from shoal.view.spread import counts_until, even_edges, rank_of, spread, total_over
from shoal.view.underway import not_told

MOST_SHOWN = 12
"""Categories with a colour of their own; the last stands for all others if there are more."""
OTHERS = "other categories"
BUCKETS = 600
_MEASURED = 0.1
"""The part of their time for which the memory of attempts must be known to be drawn."""


class Shown(msgspec.Struct, frozen=True):
    """Which categories are drawn apart."""

    names: list[str]
    place: Ints
    """By code of a category: which of these."""


class Timeline(msgspec.Struct, frozen=True):
    """Columns by bucket; times count from the beginning of the run."""

    edges: Floats
    cores: Floats
    """By shown category: cores held, or used where attempts share them."""
    memory: Floats
    """By shown category: bytes in use; nothing where nearly all attempts were over before anybody could measure it."""
    lost: Floats
    """Cores held by attempts that did not succeed; part of `cores`."""
    capacity: Floats
    """Cores that were there."""
    running: Floats
    ready: Floats
    """Tasks that could run and did not; nothing if it is not known what tasks wait for."""
    done: Floats
    failed: Floats
    """Means like `running` and `ready`, so that no task counts twice; the last bucket says how it stands at its end."""
    total: int
    crowded: bool
    """See `RunView.is_crowded`."""
    untold: Floats
    """Cores held on the nodes of a cluster by attempts of which nothing else is known yet; not in `cores`."""

    def held(self) -> Floats:
        """Cores that were held by anything."""
        found: Floats = self.cores.sum(axis=0) + self.untold
        return found


def shown_categories(view: RunView) -> Shown:
    """The categories that have colours: all in the order of the plan, so that page and report give each the same; of
    too many those that took most core seconds."""
    if len(view.categories) <= MOST_SHOWN:
        return Shown(list(view.categories) or [""], np.arange(len(view.categories)))
    view.settle()
    rows = view.attempts
    size = len(view.categories)
    work = np.bincount(rows.category, view.held() * view.within(), size) if len(rows) else np.zeros(size)
    place, count = rank_of(work, MOST_SHOWN)
    names = [""] * count
    for code, at in enumerate(place):
        names[at] = view.categories[code] if not names[at] else OTHERS
    return Shown(names, place)


def intervals(view: RunView, until: float) -> tuple[Floats, Floats, Ints, Ints]:
    """Begin, end, category and node of every attempt, those under way included; times from the run's beginning."""
    view.settle()
    rows = view.attempts
    if not view.running or view.end is not None:
        return view.after(rows.started), view.after(rows.ended), rows.category, rows.node
    tasks = np.array(list(view.running), np.int64)
    begun = np.array([record.time for record in view.running.values()])
    codes = np.maximum(view.category_of(tasks), 0)
    begins = view.after(np.concatenate((rows.started, begun)))
    ends = view.after(np.concatenate((rows.ended, np.maximum(begun, until))))
    nodes = np.concatenate((rows.node, np.array([record.node for record in view.running.values()], np.int64)))
    return begins, ends, np.concatenate((rows.category, codes)), nodes


def timeline(
    view: RunView,
    shown: Shown,
    needs: Needs | None = None,
    *,
    until: float | None = None,
    window: tuple[float, float] | None = None,
    buckets: int = BUCKETS,
) -> Timeline:
    """The whole run up to `until` (a moment of the clock), or a window of it in seconds from its beginning."""
    view.settle()
    last = view.until(until)
    begin, end = window or (0.0, last - view.origin)
    edges = even_edges(begin, end, buckets)
    begins, ends, codes, _ = intervals(view, last)
    places, count = shown.place[codes] if len(codes) else codes, len(shown.names)
    ended = len(view.attempts)
    rows = view.attempts
    held, memory = view.held(), _measured(rows)
    if len(begins) > ended:
        held = np.concatenate((held, held_now(view, codes[ended:])))
        memory = np.concatenate((memory, _means(view, memory)[codes[ended:]]))
    bad = np.flatnonzero(rows.outcome != 0)
    final = view.after(rows.ended[(rows.outcome == 0) & rows.final])
    given_up = view.after(rows.ended[(rows.outcome != 0) & rows.final])
    cores = spread(begins, ends, held, places, count, edges)
    there, running = capacity_over(view, edges), total_over(begins, ends, np.ones(len(begins)), edges)
    more, untold = np.zeros(buckets), np.zeros(buckets)
    if view.goes_on(until) and view.is_cluster():
        said_running, said_cores = view.underway.over(edges, view.origin, last)
        more, untold = not_told(said_running, running, there), not_told(said_cores, cores.sum(axis=0), there)
    running += more
    ready = np.maximum(0.0, ready_over(view, needs, edges, until) - more) if needs is not None else np.zeros(0)
    total = view.to_run()
    done, failed = _so_far(final, edges), _so_far(given_up, edges)
    if total:  # of a net nobody knows it
        left = total - done[-1] - failed[-1] if view.end is None or edges[-1] < last - view.origin else 0.0
        passed = (last - view.origin - edges[-2]) / (edges[-1] - edges[-2])
        _end_in_step(left, running, ready, min(1.0, max(0.0, passed)))
    return Timeline(
        edges,
        cores,
        spread(begins, ends, memory, places, count, edges),
        total_over(begins[bad], ends[bad], held[bad], edges),
        there,
        running,
        ready,
        done,
        failed,
        total,
        view.is_crowded(),
        untold,
    )


def _so_far(moments: Floats, edges: Floats) -> Floats:
    """How many of these moments lay behind us, on average in each bucket, and at the end of the last."""
    found = total_over(moments, np.full(len(moments), edges[-1]), np.ones(len(moments)), edges).round(3)
    found[-1:] = counts_until(moments, edges[-1:])
    return found


def _end_in_step(left: float, running: Floats, ready: Floats, passed: float) -> None:
    """At the end of the last bucket no more tasks run or are ready than are left, though on average there may have been
    more in it. Only this part of it has passed, and means count with no more."""
    if left < 0:
        return  # there are more tasks than were counted when the run began
    running[-1] = min(running[-1], left * passed)
    ready[-1:] = np.minimum(ready[-1:], left * passed - running[-1])


def _measured(rows: Attempts) -> Floats:
    """What attempts used of memory, if that is known for a good part of their time: a few would look like all."""
    seconds = rows.ended - rows.started
    known = float(seconds[rows.memory > 0].sum()) >= _MEASURED * float(seconds.sum())
    return rows.memory if known else np.zeros(len(rows))


def held_now(view: RunView, codes: Ints) -> Floats:
    """Cores of the attempts under way, of these categories; see `RunView.held`."""
    tasks = np.array(list(view.running), np.int64)
    found = view.cores_of(tasks, codes)
    if view.is_crowded():
        usual = _means(view, view.held())
        usual[np.bincount(view.attempts.category, view.within(), len(usual)) <= 0] = 1.0  # nobody knows what it uses
        found = np.where(view.declare_cores(tasks, codes), found, usual[codes])
    return found


def _means(view: RunView, values: Floats) -> Floats:
    """Of a column of the attempts that have ended, by category: what is to be expected of those under way."""
    codes, size = view.attempts.category, len(view.categories)
    found: Floats = np.bincount(codes, values, size) / np.maximum(1, np.bincount(codes, minlength=size))
    return found


def capacity_over(view: RunView, edges: Floats) -> Floats:
    """Cores of the nodes that were there."""
    found = np.array(view.there(view.origin + float(edges[-1]))).reshape(-1, 4)
    cores, begins, ends = found[:, 1], view.after(found[:, 2]), view.after(found[:, 3])
    return total_over(begins, ends, cores, edges)


def ready_over(view: RunView, needs: Needs, edges: Floats, until: float | None = None) -> Floats:
    """Tasks of which everything they need was there, and that had not started."""
    ready, started = needs.waited(view, until)
    return total_over(ready, np.maximum(started, ready), np.ones(len(ready)), edges)
