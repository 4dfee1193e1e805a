"""Who ran what when: attempts on the slots of nodes, exactly for few of them, as cells of a picture for many.

The slot of an attempt is not recorded. It follows from the times: the lowest one of its node that was free when it
started, so that a node has as many as it ever ran attempts at the same time.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from shoal.view.columns import Array, Floats, Ints
from shoal.view.run import RunView
from shoal.view.spread import even_edges, spread
from shoal.view.timeline import Shown, intervals

ROWS, PIXELS = 64, 1024
_LEVELS = 15
"""Degrees of fill that a cell can have; 0 is for nothing at all."""


class Slots(msgspec.Struct, frozen=True):
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


def slots_of(view: RunView, until: float | None = None) -> Slots:
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
    return Slots(slot, row_nodes, row_order)


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
    shown: Shown,
    slots: Slots,
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


def grouped(slots: Slots, rows: int) -> Ints:
    """For each row of the slots which row of the picture it goes to."""
    total = len(slots.nodes)
    if total <= rows:
        return np.arange(total)
    return np.arange(total) * rows // total


def labels_of(view: RunView, slots: Slots, groups: Ints, count: int) -> list[str]:
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
