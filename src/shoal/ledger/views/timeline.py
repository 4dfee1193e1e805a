"""Time series of a run in buckets, and its Gantt chart: cores and memory by category, tasks by state, attempts in
slots."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from shoal.ledger.views.attempts import Array, AttemptColumns, Floats, Ints
from shoal.ledger.views.core_use import unexplained
from shoal.ledger.views.run import RunView
from shoal.ledger.views.waits import TaskWaits

_AT_ONCE = 1 << 17
"""Number of intervals processed at once: for a million, the intermediate arrays would need a hundred megabytes."""


def spread(begins: Floats, ends: Floats, weights: Floats, groups: Ints, count: int, edges: Floats) -> Floats:
    """Mean weight of the active intervals in each bucket, by group: a row per group, a column per bucket.

    `edges` are equidistant; parts of intervals before the first or after the last edge are ignored.
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
            # An event in a bucket counts from that bucket's end, with a correction for the part of the bucket after it.
            key = groups[part] * (buckets + 1) + np.minimum(clipped.astype(np.int64), buckets)
            weight = sign * weights[part]
            whole += np.bincount(key, weight, size)
            moment += np.bincount(key, weight * clipped, size)
    steps = np.cumsum(whole.reshape(count, buckets + 1), axis=1)
    moments_so_far = np.cumsum(moment.reshape(count, buckets + 1), axis=1)
    found = np.zeros((count, buckets + 1))
    found[:, 1:] = steps[:, :-1] * np.arange(1, buckets + 1) - moments_so_far[:, :-1]
    means: Floats = np.diff(found, axis=1)
    means[means < 1e-9] = 0.0  # rounding errors of differences
    return means


def total_over(begins: Floats, ends: Floats, weights: Floats, edges: Floats) -> Floats:
    """Same as `spread` for one group."""
    found: Floats = spread(begins, ends, weights, np.zeros(len(begins), np.int64), 1, edges)[0]
    return found


def counts_until(moments: Floats, edges: Floats) -> Ints:
    """For each edge, the number of times at or before it."""
    found: Ints = np.searchsorted(np.sort(moments), edges, side="right").astype(np.int64)
    return found


def even_edges(begin: float, end: float, buckets: int) -> Floats:
    """Edges of equal buckets. The minimum width keeps them distinct in floating point, even late in a long run."""
    return np.linspace(begin, max(end, begin + max(1e-6, 1e-9 * abs(begin))), buckets + 1)


def rank_of(values: Array, most: int) -> tuple[Ints, int]:
    """Ranks positions by value, largest first; returns the rank of each and the number of ranks.

    With more than `most` positions, the smallest ones share the last rank.
    """
    order = np.argsort(-np.asarray(values, np.float64), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if len(order) <= most:
        return place, max(1, len(order))
    return np.minimum(place, most - 1), most


MOST_SHOWN = 12
"""Maximum number of categories with a colour of their own; if there are more, the last colour stands for all others."""
OTHERS = "other categories"
BUCKETS = 600
_MEASURED = 0.1
"""Memory is drawn if it is known for at least this fraction of the attempts' time."""


class ShownCategories(msgspec.Struct, frozen=True):
    """The categories that are drawn separately."""

    names: list[str]
    place: Ints
    """By category code: index into `names`."""


class Timeline(msgspec.Struct, frozen=True):
    """Columns by bucket; times are relative to the start of the run."""

    edges: Floats
    cores: Floats
    """By shown category: cores allocated, or used where attempts share them."""
    memory: Floats
    """By shown category: bytes in use; 0 if nearly all attempts were too short for a measurement."""
    lost: Floats
    """Cores allocated to attempts that did not succeed; part of `cores`."""
    capacity: Floats
    """Cores of the present nodes."""
    running: Floats
    ready: Floats
    """Tasks that could run and did not; empty if the dependencies are unknown."""
    done: Floats
    failed: Floats
    """`done` and `failed` are means like `running` and `ready`, so that no task counts twice; the last bucket has the
    values at its end."""
    total: int
    crowded: bool
    """See `RunFold.is_oversubscribed`."""
    untold: Floats
    """Allocated cores that nodes of a cluster reported and no known attempt explains; not in `cores`."""

    def held(self) -> Floats:
        """All allocated cores."""
        found: Floats = self.cores.sum(axis=0) + self.untold
        return found


def shown_categories(view: RunView) -> ShownCategories:
    """The categories with colours. All are in the order of the plan, so that page and report use the same colours. If
    there are too many, those with most core seconds are selected."""
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
    """Start, end, category and node of every attempt, including running ones; times are relative to the start of the
    run."""
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
    """Computes the series of the run up to `until` (a clock time), or of a window in seconds from its start."""
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
    if view.is_in_progress(until) and view.is_cluster():
        said_running, said_cores = view.reported_use.over(edges, view.origin, last)
        more, untold = unexplained(said_running, running, there), unexplained(said_cores, cores.sum(axis=0), there)
    running += more
    ready = np.maximum(0.0, ready_over(view, needs, edges, until) - more) if needs is not None else np.zeros(0)
    total = view.to_run()
    done, failed = _so_far(final, edges), _so_far(given_up, edges)
    if total:  # unknown for a net
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
        view.is_oversubscribed(),
        untold,
    )


def _so_far(moments: Floats, edges: Floats) -> Floats:
    """Number of these times that have passed: the mean in each bucket, and the value at the end of the last one."""
    found = total_over(moments, np.full(len(moments), edges[-1]), np.ones(len(moments)), edges).round(3)
    found[-1:] = counts_until(moments, edges[-1:])
    return found


def _end_in_step(left: float, running: Floats, ready: Floats, passed: float) -> None:
    """Corrects the last bucket: at its end no more tasks run or are ready than remain, although its means may be
    higher. If only the fraction `passed` of it has elapsed, its means are scaled accordingly."""
    if left < 0:
        return  # there are more tasks than the run counted at its start
    running[-1] = min(running[-1], left * passed)
    ready[-1:] = np.minimum(ready[-1:], left * passed - running[-1])


def _measured(rows: AttemptColumns) -> Floats:
    """Memory of attempts, if it is known for enough of their time; a few measurements would look like the total."""
    seconds = rows.ended - rows.started
    known = float(seconds[rows.memory > 0].sum()) >= _MEASURED * float(seconds.sum())
    return rows.memory if known else np.zeros(len(rows))


def held_now(view: RunView, codes: Ints) -> Floats:
    """Cores of the running attempts, which have these categories; see `RunView.held`."""
    tasks = np.array(list(view.running), np.int64)
    found = view.cores_of(tasks, codes)
    if view.is_oversubscribed():
        usual = _means(view, view.held())
        usual[np.bincount(view.attempts.category, view.within(), len(usual)) <= 0] = 1.0  # no measurement yet
        found = np.where(view.declare_cores(tasks, codes), found, usual[codes])
    return found


def _means(view: RunView, values: Floats) -> Floats:
    """Mean by category of a column of the ended attempts, as estimate for the running ones."""
    codes, size = view.attempts.category, len(view.categories)
    found: Floats = np.bincount(codes, values, size) / np.maximum(1, np.bincount(codes, minlength=size))
    return found


def capacity_over(view: RunView, edges: Floats) -> Floats:
    """Cores of the present nodes."""
    found = np.array(view.presence(view.origin + float(edges[-1]))).reshape(-1, 4)
    cores, begins, ends = found[:, 1], view.after(found[:, 2]), view.after(found[:, 3])
    return total_over(begins, ends, cores, edges)


def ready_over(view: RunView, needs: TaskWaits, edges: Floats, until: float | None = None) -> Floats:
    """Number of ready tasks that had not started."""
    ready, started = needs.waited(view, until)
    return total_over(ready, np.maximum(started, ready), np.ones(len(ready)), edges)


ROWS, PIXELS = 64, 1024
_LEVELS = 15
"""Number of fill levels of a cell; 0 means empty."""


class GanttSlots(msgspec.Struct, frozen=True):
    """Rows of a Gantt chart: one for each slot of each node, from top to bottom."""

    row: Array
    """The row of each attempt."""
    nodes: list[int]
    """The node number of each row."""
    order: list[int]
    """The slot of each row within its node, from 0."""


class Cells(msgspec.Struct, frozen=True):
    """A rasterised Gantt chart: one byte per cell, row by row, with the category (from 1; 0: idle) in the upper half
    and the fill level in the lower half."""

    begin: float
    end: float
    pixels: int
    labels: list[str]
    cells: bytes


def slots_of(view: RunView, until: float | None = None) -> GanttSlots:
    """Assigns every attempt to a slot."""
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
    """Assigns each interval the lowest slot that is free during it; returns the slots and their number."""
    order = np.lexsort((ends, begins)).astype(np.int32)
    ranks = np.arange(len(order), dtype=np.int32)
    # A slot becomes free for intervals that begin after this number of others, and not before the interval itself.
    behind = np.maximum(np.searchsorted(begins[order], ends[order]).astype(np.int32), ranks + 1)
    order_of_ends = np.argsort(behind, kind="stable").astype(np.int32)
    until = array("i", np.searchsorted(behind[order_of_ends], ranks, side="right").astype(np.int32).tobytes())
    released = array("i", order_of_ends.tobytes())
    taken: list[int] = []
    free, at = -1, 0  # a bit set of unlimited size
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
    """Draws at most `rows` rows of `pixels` cells, each with its main category and its fill level."""
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
    for row in range(count):  # one row at a time: all together would need a gigabyte
        mine = order[start[row] : start[row + 1]]
        inside = mine[(ends[mine] > begin) & (begins[mine] < end)]
        held = spread(begins[inside], ends[inside], np.ones(len(inside)), places[inside], len(shown.names), edges)
        picture[row] = cells_of(held, int(members[row]))
    return Cells(begin, end, pixels, labels_of(view, slots, groups, count), picture.tobytes())


def cells_of(held: Floats, members: int) -> Array:
    """One row of a chart, from the mean number of active attempts by category; `members` is the number of slots in
    it."""
    total = held.sum(axis=0)
    fill = np.ceil(np.clip(total / members, 0.0, 1.0) * _LEVELS).astype(np.uint8)
    dominant = held.argmax(axis=0).astype(np.uint8) + 1
    return np.where(fill > 0, (dominant << 4) | fill, 0).astype(np.uint8)


def grouped(slots: GanttSlots, rows: int) -> Ints:
    """For each slot the row of the chart that shows it."""
    total = len(slots.nodes)
    if total <= rows:
        return np.arange(total)
    return np.arange(total) * rows // total


def labels_of(view: RunView, slots: GanttSlots, groups: Ints, count: int) -> list[str]:
    """The label of each row of a chart."""
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
    """The name of a node, or a generic name if it is unknown."""
    node = view.nodes.get(number)
    return node.name if node is not None else f"node {number}"
