"""Parts of what pages and reports tell of a run, as plain lists and numbers: those that take little to load.

Times are in seconds from the beginning of the run. Numbers are cut to what a drawing can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.view.critical import CriticalPath, Step
from shoal.view.nodes import moved
from shoal.view.run import RunView

DIGITS = 5


def numbers(values: Iterable[float]) -> list[float]:
    """Cut to a few digits; whole ones without a point."""
    return [short(value) for value in values]


def short(value: float) -> float:
    """A number with as many digits as a drawing can show."""
    cut = float(f"{value:.{DIGITS}g}")
    return int(cut) if cut == int(cut) else cut


def path_data(path: CriticalPath, steps: Sequence[Step], place: Mapping[str, int]) -> dict[str, Any]:
    """A chain of tasks, of which these steps are shown; `place` says where the colour of a category stands."""
    return {
        "tasks": path.length,
        "ran": short(path.ran),
        "waited": short(path.waited),
        "done": short(path.done),
        "by_category": [
            {"name": name, "tasks": tasks, "seconds": short(spent), "place": place.get(name, 0)}
            for name, tasks, spent in path.by_category
        ],
        "steps": [
            {
                "task": step.task,
                "name": step.name[:120],
                "category": step.category,
                "place": place.get(step.category, 0),
                "start": short(step.started),
                "end": short(step.ended),
                "waited": short(step.waited),
            }
            for step in steps
        ],
    }


def throttle_data(view: RunView) -> list[dict[str, Any]]:
    """One curve for each category and node: how many might run, did run, and what came of it."""
    found = []
    for curve in view.throttle.curves():
        last = curve.last
        points = [
            [
                short(max(0.0, point.time - view.origin)),
                None if point.cap < 0 else point.cap,
                point.running,
                point.waiting,
                short(point.use),
                short(point.rate),
                point.reason,
            ]
            for point in curve.points()
        ]
        found.append(
            {
                "node": last.node,
                "category": last.category,
                "dominant": last.dominant,
                "decided": curve.decided,
                "points": points,
            }
        )
    return found


def files_data(view: RunView) -> dict[str, Any]:
    """What was read, made and moved, in bytes and times."""
    rows = view.attempts
    return {
        "sources": view.sources,
        "source_bytes": view.source_bytes,
        "made": short(float(rows.made[rows.outcome == 0].sum(dtype=np.float64))) if len(rows) else 0,
        "read": rows.read,
        "written": rows.written,
        **msgspec.structs.asdict(moved(view)),
    }
