"""Who ran what when, for a window of time: bars where few attempts are in sight, cells of a picture where many are.

The rows of attempts are worked out for the whole run and kept, so that moving about in it is quick.
"""

from __future__ import annotations

import time
from base64 import b64encode
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np

from shoal.view.columns import Ints
from shoal.view.gantt import Slots, cells_of, grouped, labels_of, slots_of
from shoal.view.spread import even_edges, spread
from shoal.view.timeline import Shown, intervals, shown_categories
from shoal.web.watch import Watch, WatchedRun

MOST_ROWS, MOST_PIXELS, MOST_BARS = 96, 6000, 2500
SHARE = 10.0
"""A chart of a growing run is kept so many times as long as it took to make."""


class Chart:
    """All attempts of a run up to one moment, in rows."""

    def __init__(self, watch: Watch) -> None:
        began = time.monotonic()
        view: WatchedRun = watch.view
        now = watch.now()
        self.view, self.size = view, len(view.attempts)
        self.live = watch.live
        self.shown: Shown = shown_categories(view)
        self.slots: Slots = slots_of(view, now)
        begins, ends, codes, _ = intervals(view, view.until(now))
        self.begins, self.ends = begins.copy(), ends.copy()
        self.places: Ints = (self.shown.place[codes] if len(codes) else codes).astype(np.int8)
        going = view.running.values() if view.end is None else ()
        self.tasks: Ints = np.concatenate((view.attempts.task, np.array([each.task for each in going], np.int32)))
        self.going = [each.attempt for each in going]
        """Which attempts of their tasks those under way are."""
        self.bad = np.zeros(len(self.begins), bool)
        self.bad[: self.size] = view.attempts.outcome != 0
        self.end = view.until(now) - view.origin
        self.order = np.argsort(self.slots.row, kind="stable").astype(np.int32)
        self.made = time.monotonic()
        self.cost = self.made - began

    def is_good_for(self, watch: Watch) -> bool:
        """Whether it still shows the run as it is, or it would take too long to make it anew."""
        if self.view is not watch.view:
            return False
        if not watch.live and not self.live and self.size == len(watch.view.attempts):
            return True
        return time.monotonic() - self.made < SHARE * self.cost

    def window(self, begin: float, end: float, rows: int, pixels: int, node: int | None = None) -> dict[str, Any]:
        """What is in sight, of all nodes or of one."""
        end = float(even_edges(begin, end, 1)[-1])
        inside = np.flatnonzero((self.ends > begin) & (self.begins < end))
        slots = self.slots
        if node is not None:
            low, high = bisect_left(slots.nodes, node), bisect_right(slots.nodes, node)
            slots = Slots(slots.row - low, slots.nodes[low:high], slots.order[low:high])
            inside = inside[(slots.row[inside] >= 0) & (slots.row[inside] < high - low)]
        head = {"begin": begin, "end": end, "until": self.end, "shown": self.shown.names}
        if len(inside) <= MOST_BARS and len(slots.nodes) <= rows:
            return head | self._bars(inside, slots)
        return head | self._cells(begin, end, min(rows, MOST_ROWS), pixels, slots)

    def _bars(self, inside: Ints, slots: Slots) -> dict[str, Any]:
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

    def _cells(self, begin: float, end: float, rows: int, pixels: int, slots: Slots) -> dict[str, Any]:
        groups = grouped(slots, rows)
        count = int(groups[-1]) + 1 if len(groups) else 0
        members = np.bincount(groups, minlength=count)
        ordered = slots.row[self.order]
        start = np.searchsorted(ordered, np.concatenate((np.searchsorted(groups, np.arange(count)), [len(groups)])))
        edges = even_edges(begin, end, pixels)
        picture = np.zeros((count, pixels), np.uint8)
        kinds = len(self.shown.names)
        for row in range(count):  # one at a time: all together would need a gigabyte
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
