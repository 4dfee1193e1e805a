"""The data of a report: a run as plain lists and numbers, also for programs (`shoal report --json`).

Times are in seconds from the start of the run, except absolute ones. Numbers are rounded to what a drawing can show, so
that a million tasks fit into a small page.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.core.resources import show_amount
from shoal.ledger.records import decodable_parts
from shoal.ledger.views.progress import progress
from shoal.ledger.views.run import RunView
from shoal.ledger.views.tables import TimeFigures, category_rows, failure_causes, figures, node_rows, transfer_totals
from shoal.ledger.views.timeline import (
    PIXELS,
    ROWS,
    GanttSlots,
    ShownCategories,
    Timeline,
    gantt,
    intervals,
    node_name,
    shown_categories,
    slots_of,
    timeline,
)
from shoal.ledger.views.waits import CriticalPath, PathStep, TaskWaits, critical_path
from shoal.sim.what_if import Replayed, replay
from shoal.ui.report.story import StoryFacts, advice, summary

DIGITS = 5


def numbers(values: Iterable[float]) -> list[float]:
    """Rounds to a few digits; integers are written without a decimal point."""
    return [short(value) for value in values]


def short(value: float) -> float:
    """Rounds a number to the digits that a drawing can show."""
    cut = float(f"{value:.{DIGITS}g}")
    return int(cut) if cut == int(cut) else cut


def path_data(path: CriticalPath, steps: Sequence[PathStep], place: Mapping[str, int]) -> dict[str, Any]:
    """A chain of tasks with the steps to show; `place` contains the colour index of each category."""
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
    """One curve per category and node: allowed tasks, running tasks and their rate."""
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
    """Amounts of data read, made and moved, in bytes and counts."""
    rows = view.attempts
    return {
        "sources": view.sources,
        "source_bytes": view.source_bytes,
        "made": short(float(rows.made[rows.outcome == 0].sum(dtype=np.float64))) if len(rows) else 0,
        "read": rows.read,
        "written": rows.written,
        **msgspec.structs.asdict(transfer_totals(view)),
    }


FORMAT = 1
MOST_BARS = 20_000
"""Maximum number of attempts that are drawn as single bars."""
MOST_SLOTS = 1000
"""Maximum number of rows; browsers draw nothing on a canvas that is much higher."""
MOST_NODES = 400
DEEP = 16
"""Resolution of the raster image relative to the width of a page, for zooming."""


def run_data(
    view: RunView, *, workflow: str, now: float | None = None, predicted: float | None = None
) -> dict[str, Any]:
    """All data shown of a run; `now` is given for an active run."""
    view.settle()
    needs = TaskWaits(view)
    shown = shown_categories(view)
    over_time = timeline(view, shown, needs if view.links else None, until=now)
    known = StoryFacts(
        view,
        progress(view, now),
        figures(view, over_time),
        category_rows(view),
        failure_causes(view),
        critical_path(view, needs) if view.links else None,
        replay(view, needs, over_time),
        predicted,
        view.is_in_progress(now),
    )
    slots = slots_of(view, now)
    places = {name: int(shown.place[code]) for code, name in enumerate(view.categories)}
    return {
        "format": FORMAT,
        "run": _run(view, workflow, now),
        "summary": summary(known),
        "advice": advice(known),
        "progress": msgspec.to_builtins(known.progress),
        "figures": _figures(known.figures) | {"utilisation": short(known.utilisation)},
        "shown": shown.names,
        "timeline": timeline_data(over_time),
        "gantt": gantt_data(view, shown, slots, now),
        "categories": [_trimmed(msgspec.structs.asdict(row)) for row in known.categories],
        "nodes": [_trimmed(msgspec.structs.asdict(row)) for row in node_rows(view, now, needs)[:MOST_NODES]],
        "failures": [msgspec.structs.asdict(cause) for cause in known.causes],
        "critical": path_data(known.path, known.path.steps, places) if known.path is not None else None,
        "replayed": _replayed(known.replayed, predicted),
        "throttle": throttle_data(view),
        "data": files_data(view),
    }


def _trimmed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: short(value) if isinstance(value, float) else value for key, value in row.items()}


def _figures(found: TimeFigures) -> dict[str, Any]:
    return _trimmed(msgspec.structs.asdict(found))


def _run(view: RunView, workflow: str, now: float | None) -> dict[str, Any]:
    start, end = view.start, view.end
    assert start is not None
    return {
        "workflow": workflow,
        "id": start.run,
        "host": start.host,
        "version": start.version,
        "targets": decodable_parts(start.targets),
        "began": start.time,
        "until": view.until(now),
        "outcome": end.outcome if end is not None else "running" if view.is_in_progress(now) else "killed",
        "cluster": view.is_cluster(),
        "nodes": len(view.nodes),
        "linked": bool(view.links),
        "cores": short(view.total_cores()),
        "resources": [[name, show_amount(name, amount)] for name, amount in start.node if "=" not in name],
        "number": view.number,
    }


def timeline_data(over_time: Timeline) -> dict[str, Any]:
    """The columns by bucket."""
    return {
        "begin": float(over_time.edges[0]),
        "end": float(over_time.edges[-1]),
        "buckets": len(over_time.edges) - 1,
        "cores": [numbers(row) for row in over_time.cores.tolist()],
        "memory": [numbers(row) for row in over_time.memory.tolist()],
        "lost": numbers(over_time.lost.tolist()),
        "untold": numbers(over_time.untold.tolist()) if over_time.untold.any() else [],
        "capacity": numbers(over_time.capacity.tolist()),
        "running": numbers(over_time.running.tolist()),
        "ready": numbers(over_time.ready.tolist()),
        "done": over_time.done.tolist(),
        "failed": over_time.failed.tolist(),
        "total": over_time.total,
    }


def gantt_data(view: RunView, shown: ShownCategories, slots: GanttSlots, now: float | None) -> dict[str, Any]:
    """Bars if there are few attempts and rows, otherwise a raster image with a higher resolution than any page."""
    if len(slots.row) <= MOST_BARS and len(slots.nodes) <= MOST_SLOTS:
        return _bars(view, shown, slots, now)
    picture = gantt(view, shown, slots, until=now, rows=ROWS, pixels=DEEP * PIXELS)
    return {
        "kind": "cells",
        "begin": picture.begin,
        "end": picture.end,
        "pixels": picture.pixels,
        "rows": picture.labels,
        "cells": b64encode(picture.cells).decode("ascii"),
    }


def _bars(view: RunView, shown: ShownCategories, slots: GanttSlots, now: float | None) -> dict[str, Any]:
    last = view.until(now)
    begins, ends, codes, _ = intervals(view, last)
    rows = view.attempts
    going = list(view.running.values()) if view.end is None else []
    tasks = [*rows.task.tolist(), *(record.task for record in going)]
    attempts = [*rows.number.tolist(), *(record.attempt for record in going)]
    return {
        "kind": "bars",
        "begin": 0.0,
        "end": last - view.origin,
        "rows": [f"{name} · {order + 1}" for name, order in _row_names(view, slots)],
        "row": slots.row.tolist(),
        "start": [round(value, 6) for value in begins.tolist()],
        "length": [round(value, 6) for value in (ends - begins).tolist()],
        "category": shown.place[codes].tolist() if len(codes) else [],
        "bad": np.flatnonzero(rows.outcome != 0).tolist(),
        "name": [view.names.of(task)[:120] for task in tasks],
        "attempt": attempts if max(attempts, default=1) > 1 else [],
    }


def _row_names(view: RunView, slots: GanttSlots) -> list[tuple[str, int]]:
    return [(node_name(view, node), order) for node, order in zip(slots.nodes, slots.order, strict=True)]


def _replayed(replayed: Replayed | None, predicted: float | None) -> dict[str, Any] | None:
    if replayed is None:
        return None
    found = _trimmed(msgspec.structs.asdict(replayed))
    found["supposed"] = [
        {"what": row.what, "category": row.category, "cores": row.cores, "seconds": short(row.seconds)}
        for row in replayed.supposed
    ]
    simulated = replayed.simulated
    found["simulated"] = None if simulated is None else {"seconds": short(simulated.seconds), "nodes": simulated.nodes}
    found["foreseen"] = None if predicted is None else short(predicted)
    return found
