"""What happened over time: cores and memory in use by category, tasks by state, in at most so many buckets."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from shoal.ledger.views.attempts import Array, AttemptColumns, Floats, Ints
from shoal.ledger.views.core_use import not_told
from shoal.ledger.views.run import RunView
from shoal.ledger.views.waits import TaskWaits

_AT_ONCE = 1 << 17
"""Intervals that are looked at together: of a million the numbers in between would need a hundred megabytes."""


def spread(begins: Floats, ends: Floats, weights: Floats, groups: Ints, count: int, edges: Floats) -> Floats:
    """Mean weight at work in each bucket, by group: a row per group, a column per bucket.

    `edges` are equally far from each other; what lies before the first or behind the last is left out.
    """
    buckets = len(edges) - 1
    first, width = float(edges[0]), float(edges[1] - edges[0])
    if not len(begins):
        return np.zeros((count, buckets))
    size = count * (buckets + 1)
    whole, moment = np.zeros(size), np.zeros(size)
    for moments, sign in ((begins, 1.0), (ends, -1.0)):
        for at in range(0, len(moments), _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            clipped = np.clip((moments[part] - first) / width, 0.0, buckets)
            # An event in a bucket counts at that bucket's end, for the part of the bucket behind it.
            key = groups[part] * (buckets + 1) + np.minimum(clipped.astype(np.int64), buckets)
            weight = sign * weights[part]
            whole += np.bincount(key, weight, size)
            moment += np.bincount(key, weight * clipped, size)
    steps = np.cumsum(whole.reshape(count, buckets + 1), axis=1)
    moments_so_far = np.cumsum(moment.reshape(count, buckets + 1), axis=1)
    found = np.zeros((count, buckets + 1))
    found[:, 1:] = steps[:, :-1] * np.arange(1, buckets + 1) - moments_so_far[:, :-1]
    means: Floats = np.diff(found, axis=1)
    means[means < 1e-9] = 0.0  # what is left of differences that should be nothing
    return means


def total_over(begins: Floats, ends: Floats, weights: Floats, edges: Floats) -> Floats:
    """The same for one group."""
    found: Floats = spread(begins, ends, weights, np.zeros(len(begins), np.int64), 1, edges)[0]
    return found


def counts_until(moments: Floats, edges: Floats) -> Ints:
    """How many of the moments lie at or before each edge."""
    found: Ints = np.searchsorted(np.sort(moments), edges, side="right").astype(np.int64)
    return found


def even_edges(begin: float, end: float, buckets: int) -> Floats:
    """Edges of equal buckets; never of no width, not even late in a long run, where numbers are further apart."""
    return np.linspace(begin, max(end, begin + max(1e-6, 1e-9 * abs(begin))), buckets + 1)


def rank_of(values: Array, most: int) -> tuple[Ints, int]:
    """For each position its place among the largest, and how many places there are; those that are left share the last.

    With no more than `most` positions each has a place of its own.
    """
    order = np.argsort(-np.asarray(values, np.float64), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if len(order) <= most:
        return place, max(1, len(order))
    return np.minimum(place, most - 1), most


MOST_SHOWN = 12
"""Categories with a colour of their own; the last stands for all others if there are more."""
OTHERS = "other categories"
BUCKETS = 600
_MEASURED = 0.1
"""The part of their time for which the memory of attempts must be known to be drawn."""


class ShownCategories(msgspec.Struct, frozen=True):
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


def shown_categories(view: RunView) -> ShownCategories:
    """The categories that have colours: all in the order of the plan, so that page and report give each the same; of
    too many those that took most core seconds."""
    if len(view.categories) <= MOST_SHOWN:
        return ShownCategories(list(view.categories) or [""], np.arange(len(view.categories)))
    view.settle()
    rows = view.attempts
    size = len(view.categories)
    work = np.bincount(rows.category, view.held() * view.within(), size) if len(rows) else np.zeros(size)
    place, count = rank_of(work, MOST_SHOWN)
    names = [""] * count
    for code, at in enumerate(place):
        names[at] = view.categories[code] if not names[at] else OTHERS
    return ShownCategories(names, place)


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
    shown: ShownCategories,
    needs: TaskWaits | None = None,
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


def _measured(rows: AttemptColumns) -> Floats:
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


def ready_over(view: RunView, needs: TaskWaits, edges: Floats, until: float | None = None) -> Floats:
    """Tasks of which everything they need was there, and that had not started."""
    ready, started = needs.waited(view, until)
    return total_over(ready, np.maximum(started, ready), np.ones(len(ready)), edges)


ROWS, PIXELS = 64, 1024
_LEVELS = 15
"""Degrees of fill that a cell can have; 0 is for nothing at all."""


class GanttSlots(msgspec.Struct, frozen=True):
    """A row for each slot of each node, from above."""

    row: Array
    """Of each attempt."""
    nodes: list[int]
    """Of each row: the node's number."""
    order: list[int]
    """Of each row: which slot of its node, from 0."""


class Cells(msgspec.Struct, frozen=True):
    """A picture: one byte per cell, row by row; category (from 1; 0: idle) in the upper half, fill in the lower."""

    begin: float
    end: float
    pixels: int
    labels: list[str]
    cells: bytes


def slots_of(view: RunView, until: float | None = None) -> GanttSlots:
    """Puts every attempt into a slot."""
    begins, ends, _, nodes = intervals(view, view.until(until))
    slot = np.zeros(len(begins), np.int32)
    numbers = sorted({*view.nodes, *np.unique(nodes).tolist()})
    row_nodes: list[int] = []
    row_order: list[int] = []
    for number in numbers:
        mine = np.flatnonzero(nodes == number)
        taken, count = _lowest_free(begins[mine], ends[mine])
        slot[mine] = taken + len(row_nodes)
        row_nodes += [number] * count
        row_order += range(count)
    return GanttSlots(slot, row_nodes, row_order)


def _lowest_free(begins: Floats, ends: Floats) -> tuple[Array, int]:
    """For each interval the lowest number that no other one has at the same time, and how many numbers that takes."""
    order = np.lexsort((ends, begins)).astype(np.int32)
    ranks = np.arange(len(order), dtype=np.int32)
    # Its number is free again for those that begin behind so many others, and never before itself.
    behind = np.maximum(np.searchsorted(begins[order], ends[order]).astype(np.int32), ranks + 1)
    order_of_ends = np.argsort(behind, kind="stable").astype(np.int32)
    until = array("i", np.searchsorted(behind[order_of_ends], ranks, side="right").astype(np.int32).tobytes())
    released = array("i", order_of_ends.tobytes())
    taken: list[int] = []
    free, at = -1, 0  # bits, without an end
    for upto in until:
        while at < upto:
            free |= 1 << taken[released[at]]
            at += 1
        lowest = free & -free
        free ^= lowest
        taken.append(lowest.bit_length() - 1)
    found = np.empty(len(order), np.int32)
    found[order] = taken
    return found, int(found.max(initial=-1)) + 1


def gantt(
    view: RunView,
    shown: ShownCategories,
    slots: GanttSlots,
    *,
    until: float | None = None,
    window: tuple[float, float] | None = None,
    rows: int = ROWS,
    pixels: int = PIXELS,
) -> Cells:
    """At most so many rows of so many cells, each with the category that had most of it and how full it was."""
    last = view.until(until)
    begin, end = window or (0.0, last - view.origin)
    edges = even_edges(begin, end, pixels)
    begins, ends, codes, _ = intervals(view, last)
    places = shown.place[codes] if len(codes) else codes
    groups = grouped(slots, rows)
    of_attempt = groups[slots.row] if len(slots.row) else slots.row
    order = np.argsort(of_attempt, kind="stable")
    count = int(groups[-1]) + 1 if len(groups) else 0
    start = np.searchsorted(of_attempt[order], np.arange(count + 1))
    members = np.bincount(groups, minlength=count)
    picture = np.zeros((count, pixels), np.uint8)
    for row in range(count):  # one at a time: all together would need a gigabyte
        mine = order[start[row] : start[row + 1]]
        inside = mine[(ends[mine] > begin) & (begins[mine] < end)]
        held = spread(begins[inside], ends[inside], np.ones(len(inside)), places[inside], len(shown.names), edges)
        picture[row] = cells_of(held, int(members[row]))
    return Cells(begin, end, pixels, labels_of(view, slots, groups, count), picture.tobytes())


def cells_of(held: Floats, members: int) -> Array:
    """One row of a picture, from the mean number of attempts at work by category; `members` slots make up the row."""
    total = held.sum(axis=0)
    fill = np.ceil(np.clip(total / members, 0.0, 1.0) * _LEVELS).astype(np.uint8)
    dominant = held.argmax(axis=0).astype(np.uint8) + 1
    return np.where(fill > 0, (dominant << 4) | fill, 0).astype(np.uint8)


def grouped(slots: GanttSlots, rows: int) -> Ints:
    """For each row of the slots which row of the picture it goes to."""
    total = len(slots.nodes)
    if total <= rows:
        return np.arange(total)
    return np.arange(total) * rows // total


def labels_of(view: RunView, slots: GanttSlots, groups: Ints, count: int) -> list[str]:
    """What stands beside each row of a picture."""
    labels = []
    for row in range(count):
        inside = np.flatnonzero(groups == row)
        first, last = int(inside[0]), int(inside[-1])
        name, other = node_name(view, slots.nodes[first]), node_name(view, slots.nodes[last])
        if first == last:
            labels.append(f"{name} · {slots.order[first] + 1}")
        elif name == other:
            labels.append(f"{name} · {slots.order[first] + 1} to {slots.order[last] + 1}")
        else:
            labels.append(f"{name} to {other}")
    return labels


def node_name(view: RunView, number: int) -> str:
    """The name of a node, or something that stands for it."""
    node = view.nodes.get(number)
    return node.name if node is not None else f"node {number}"
