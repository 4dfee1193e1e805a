"""What happened over time: cores and memory in use by category, tasks by state, in at most so many buckets."""

from __future__ import annotations

import msgspec
import numpy as np

from shoal.view.columns import Floats, Ints
from shoal.view.graph import Needs
from shoal.view.run import RunView
from shoal.view.spread import counts_until, even_edges, rank_of, spread, total_over

MOST_SHOWN = 12
"""Categories with a colour of their own; the last stands for all others if there are more."""
OTHERS = "other categories"
BUCKETS = 600


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
    """By shown category: bytes in use."""
    lost: Floats
    """Cores held by attempts that did not succeed; part of `cores`."""
    capacity: Floats
    """Cores that were there."""
    running: Floats
    ready: Floats
    """Tasks that could run and did not; nothing if it is not known what tasks wait for."""
    done: Ints
    failed: Ints
    """At the end of each bucket."""
    total: int
    crowded: bool
    """See `RunView.is_crowded`."""


def shown_categories(view: RunView) -> Shown:
    """The categories that took most core seconds have colours."""
    view.settle()
    rows = view.attempts
    size = len(view.categories)
    work = np.bincount(rows.category, view.held() * (rows.ended - rows.started), size) if len(rows) else np.zeros(size)
    place, count = rank_of(work, MOST_SHOWN)
    names = [""] * count
    for code, at in enumerate(place):
        names[at] = view.categories[code] if not names[at] else OTHERS
    return Shown(names, place)


def intervals(view: RunView, until: float) -> tuple[Floats, Floats, Ints, Ints]:
    """Begin, end, category and node of every attempt, those under way included; times from the run's beginning."""
    view.settle()
    rows, origin = view.attempts, view.origin
    if not view.running or view.end is not None:
        return rows.started - origin, rows.ended - origin, rows.category, rows.node
    tasks = np.array(list(view.running), np.int64)
    begun = np.array([record.time for record in view.running.values()])
    codes = np.maximum(view.category_of(tasks), 0)
    begins = np.concatenate((rows.started, begun)) - origin
    ends = np.concatenate((rows.ended, np.maximum(begun, until))) - origin
    nodes = np.concatenate((rows.node, np.zeros(len(tasks), np.int64)))
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
    now = view.cores_of_categories() if not view.is_crowded() else _means(view, view.held())
    held = np.concatenate((view.held(), now[codes[ended:]]))
    memory = np.concatenate((rows.memory, _means(view, rows.memory)[codes[ended:]]))
    bad = np.zeros(len(begins))
    bad[:ended] = held[:ended] * (rows.outcome != 0)
    final = rows.ended[(rows.outcome == 0) & rows.final] - view.origin
    given_up = rows.ended[(rows.outcome != 0) & rows.final] - view.origin
    return Timeline(
        edges,
        spread(begins, ends, held, places, count, edges),
        spread(begins, ends, memory, places, count, edges),
        total_over(begins, ends, bad, edges),
        capacity_over(view, edges),
        total_over(begins, ends, np.ones(len(begins)), edges),
        ready_over(view, needs, edges, until) if needs is not None else np.zeros(0),
        counts_until(final, edges[1:]),
        counts_until(given_up, edges[1:]),
        view.start.to_run if view.start else 0,
        view.is_crowded(),
    )


def _means(view: RunView, values: Floats) -> Floats:
    """Of a column of the attempts that have ended, by category: what is to be expected of those under way."""
    codes, size = view.attempts.category, len(view.categories)
    found: Floats = np.bincount(codes, values, size) / np.maximum(1, np.bincount(codes, minlength=size))
    return found


def capacity_over(view: RunView, edges: Floats) -> Floats:
    """Cores of the nodes that were there."""
    spans = [(node.cores, span) for node in view.nodes.values() for span in node.present]
    begins = np.array([span[0] - view.origin for _, span in spans])
    ends = np.array([edges[-1] if span[1] is None else span[1] - view.origin for _, span in spans])
    begins[begins == begins.min(initial=np.inf)] = 0.0  # those found first had been there before
    cores = np.array([cores for cores, _ in spans])
    return total_over(np.minimum(begins, ends), ends, cores, edges)


def ready_over(view: RunView, needs: Needs, edges: Floats, until: float | None = None) -> Floats:
    """Tasks of which everything they need was there, and that had not started."""
    ready, started = needs.waited(view, until)
    return total_over(ready, np.maximum(started, ready), np.ones(len(ready)), edges)
