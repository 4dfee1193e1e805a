"""Gantt charts and task graphs for live pages: bars for few attempts in a time window, a raster image for many.

The rows of attempts are computed for the whole run and cached, so that zooming and panning is fast.
"""

from __future__ import annotations

import time
from base64 import b64encode
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from shoal.ledger.views.attempts import Ints
from shoal.ledger.views.timeline import (
    GanttSlots,
    ShownCategories,
    cells_of,
    even_edges,
    grouped,
    intervals,
    labels_of,
    shown_categories,
    slots_of,
    spread,
)
from shoal.ledger.views.waits import TaskWaits
from shoal.ui.web.tasks import STATES, state_names, states_of
from shoal.ui.web.watch import GROUPS, Watch, WatchedRun

MOST_ROWS, MOST_PIXELS, MOST_BARS = 96, 6000, 2500
SHARE = 10.0
"""A chart of a growing run is cached for this multiple of the time it took to compute."""


class Chart:
    """All attempts of a run up to one moment, arranged in rows."""

    def __init__(self, watch: Watch) -> None:
        began = time.monotonic()
        view: WatchedRun = watch.view
        now = watch.now()
        self.view, self.size = view, len(view.attempts)
        self.live = watch.live
        self.shown: ShownCategories = shown_categories(view)
        self.slots: GanttSlots = slots_of(view, now)
        begins, ends, codes, _ = intervals(view, view.until(now))
        self.begins, self.ends = begins.copy(), ends.copy()
        self.places: Ints = (self.shown.place[codes] if len(codes) else codes).astype(np.int8)
        going = view.running.values() if view.end is None else ()
        self.tasks: Ints = np.concatenate((view.attempts.task, np.array([each.task for each in going], np.int32)))
        self.going = [each.attempt for each in going]
        """Attempt numbers of the running tasks."""
        self.bad = np.zeros(len(self.begins), bool)
        self.bad[: self.size] = view.attempts.outcome != 0
        self.end = view.until(now) - view.origin
        self.order = np.argsort(self.slots.row, kind="stable").astype(np.int32)
        self.made = time.monotonic()
        self.cost = self.made - began

    def is_good_for(self, watch: Watch) -> bool:
        """Whether it still matches the run, or would be too expensive to recompute now."""
        if self.view is not watch.view:
            return False
        if not watch.live and not self.live and self.size == len(watch.view.attempts):
            return True
        return time.monotonic() - self.made < SHARE * self.cost

    def window(self, begin: float, end: float, rows: int, pixels: int, node: int | None = None) -> dict[str, Any]:
        """The visible part, of all nodes or of one."""
        end = float(even_edges(begin, end, 1)[-1])
        inside = np.flatnonzero((self.ends > begin) & (self.begins < end))
        slots = self.slots
        if node is not None:
            low, high = bisect_left(slots.nodes, node), bisect_right(slots.nodes, node)
            slots = GanttSlots(slots.row - low, slots.nodes[low:high], slots.order[low:high])
            inside = inside[(slots.row[inside] >= 0) & (slots.row[inside] < high - low)]
        head = {"begin": begin, "end": end, "until": self.end, "shown": self.shown.names}
        if len(inside) <= MOST_BARS and len(slots.nodes) <= rows:
            return head | self._bars(inside, slots)
        return head | self._cells(begin, end, min(rows, MOST_ROWS), pixels, slots)

    def _bars(self, inside: Ints, slots: GanttSlots) -> dict[str, Any]:
        names = self.view.names
        tasks = self.tasks[inside].tolist()
        groups = np.arange(len(slots.nodes))
        numbers = self.view.attempts.number
        return {
            "kind": "bars",
            "rows": labels_of(self.view, slots, groups, len(groups)),
            "row": slots.row[inside].tolist(),
            "start": [round(value, 6) for value in self.begins[inside].tolist()],
            "length": [round(value, 6) for value in (self.ends[inside] - self.begins[inside]).tolist()],
            "category": self.places[inside].tolist(),
            "bad": np.flatnonzero(self.bad[inside]).tolist(),
            "task": tasks,
            "name": [names.of(task)[:120] for task in tasks],
            "attempt": [int(numbers[at]) if at < self.size else self.going[at - self.size] for at in inside.tolist()],
        }

    def _cells(self, begin: float, end: float, rows: int, pixels: int, slots: GanttSlots) -> dict[str, Any]:
        groups = grouped(slots, rows)
        count = int(groups[-1]) + 1 if len(groups) else 0
        members = np.bincount(groups, minlength=count)
        ordered = slots.row[self.order]
        start = np.searchsorted(ordered, np.concatenate((np.searchsorted(groups, np.arange(count)), [len(groups)])))
        edges = even_edges(begin, end, pixels)
        picture = np.zeros((count, pixels), np.uint8)
        kinds = len(self.shown.names)
        for row in range(count):  # one row at a time: all together would need a gigabyte
            mine = self.order[start[row] : start[row + 1]]
            inside = mine[(self.ends[mine] > begin) & (self.begins[mine] < end)]
            places = self.places[inside].astype(np.int64)
            held = spread(self.begins[inside], self.ends[inside], np.ones(len(inside)), places, kinds, edges)
            picture[row] = cells_of(held, int(members[row]))
        return {
            "kind": "cells",
            "pixels": pixels,
            "rows": labels_of(self.view, slots, groups, count),
            "cells": b64encode(picture.tobytes()).decode("ascii"),
        }


MOST_CATEGORIES = 200
MOST_TASKS, MOST_LINES = 120, 1_200
"""Above these numbers, boxes and lines cannot be distinguished: the graph collapses to categories."""


def graph_data(watch: Watch, needs: TaskWaits | None, place: dict[str, int]) -> dict[str, Any]:
    """`nodes` and `edges` of the categories; `tasks` contains those of single tasks, or is None. `single`: whether
    single dependencies are kept up to date."""
    return _by_category(watch, place) | {"tasks": _by_task(watch, needs), "single": needs is not None}


def _by_category(watch: Watch, place: dict[str, int]) -> dict[str, Any]:
    """Categories with their progress, and the dependencies between them."""
    view = watch.view
    rows = view.attempts
    size = len(view.categories)
    over = rows.final
    good = np.bincount(rows.category[over & (rows.outcome == 0)], minlength=size)
    bad = np.bincount(rows.category[over & (rows.outcome != 0)], minlength=size)
    tasks = np.array(list(view.running), np.int64)
    codes = view.category_of(tasks)
    running = np.bincount(codes[codes >= 0], minlength=size) if watch.live else np.zeros(size, np.int64)
    nodes = [
        {
            "name": name,
            "place": place.get(name, 0),
            "planned": view.planned[code],
            "done": int(good[code]),
            "failed": int(bad[code]),
            "running": int(running[code]),
        }
        for code, name in enumerate(view.categories[:MOST_CATEGORIES])
    ]
    edges = [
        [came, goes, count]
        for (came, goes), count in sorted(view.edges.items())
        if GROUPS not in (came, goes) and max(came, goes) < len(nodes)
    ]
    return {"nodes": nodes, "edges": edges}


def _by_task(watch: Watch, needs: TaskWaits | None) -> dict[str, Any] | None:
    """Tasks with their states and dependencies; None if there are too many to draw."""
    view = watch.view
    if needs is None or len(needs) > 2 * MOST_TASKS:
        return None
    rows = np.flatnonzero(~needs.is_group()).tolist()
    edges = sorted({(came, goes) for goes in rows for came in _needed(needs, goes)})
    if not 0 < len(rows) <= MOST_TASKS or len(edges) > MOST_LINES:
        return None
    states, names = states_of(watch), list(state_names(watch))
    ready = needs.ready(view) if watch.live else np.zeros(len(needs), bool)
    at = {row: position for position, row in enumerate(rows)}
    codes = view.category_of(needs.tasks[rows]).tolist()
    nodes = [
        {
            "task": (task := int(needs.tasks[row])),
            "name": view.names.of(task)[:200],
            "category": view.categories[code] if code >= 0 else None,
            "state": _state(names[states[task]] if states[task] < len(names) else names[0], bool(ready[row])),
        }
        for row, code in zip(rows, codes, strict=True)
    ]
    return {"nodes": nodes, "edges": [[at[came], at[goes]] for came, goes in edges]}


def _state(name: str, is_ready: bool) -> str:
    """For a task that is not started: `ready` or `waiting`."""
    if name != STATES[0]:
        return name
    return "ready" if is_ready else "waiting"


def _needed(needs: TaskWaits, row: int) -> set[int]:
    """The tasks that a task depends on, also through groups."""
    is_group = needs.is_group()
    found: set[int] = set()
    seen, left = {row}, [row]
    while left:
        one = left.pop()
        for parent in needs.parents[needs.parent_start[one] : needs.parent_start[one + 1]].tolist():
            if parent in seen:
                continue
            seen.add(parent)
            if is_group[parent]:
                left.append(parent)
            else:
                found.add(parent)
    return found
