"""The parts of a run's live page: named plain lists and numbers, computed from the model at one moment.

Long data is cut into several parts, so that only the changed ones need be sent again: a timeline into buckets of a
fixed width (which doubles when there are too many), and a table into groups of rows. Times are in seconds from the
start of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from shoal.core.resources import show_amount
from shoal.ledger.records import decodable_parts
from shoal.ledger.views.progress import progress
from shoal.ledger.views.tables import category_rows, cores_held, failure_causes, node_rows, standing_rows
from shoal.ledger.views.timeline import ShownCategories, Timeline, node_name, shown_categories, timeline
from shoal.ledger.views.waits import TaskWaits, critical_path
from shoal.ui.report.data import files_data, numbers, path_data, short, throttle_data
from shoal.ui.web.charts import MOST_CATEGORIES, graph_data
from shoal.ui.web.watch import Watch, WatchedRun

ROWS_OF_PART = 16


def in_pieces(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Splits the rows of a table into the parts `name.0`, `name.1` and so on."""
    starts = range(0, max(1, len(rows)), ROWS_OF_PART)
    return {f"{name}.{begin // ROWS_OF_PART}": rows[begin : begin + ROWS_OF_PART] for begin in starts}


MOST_BUCKETS = 240
FINEST = 1 / 64
"""Width of the narrowest bucket in seconds."""
BUCKETS_OF_PART = 24
MOST_NODES, MOST_RUNNING, MOST_STEPS = 400, 8, 60
MOST_LINKED, MOST_DEPENDENCIES = 100_000, 1_000_000
"""Maximum number of tasks and dependencies for which views of single dependencies (ready tasks, the critical path) are
computed live. Each takes up to 90 bytes meanwhile; above the limits only reports have these views."""
QUICK = ("standing",)
"""Prefixes of quick parts whose number varies."""
SLOW = ("time", "categories", "nodes", "failures", "throttle", "critical", "graph", "data")


def quick_parts(watch: Watch) -> dict[str, Any]:
    """Parts that change with every task and are cheap to compute."""
    view, now = watch.view, watch.now()
    view.settle()
    found: dict[str, Any] = {"run": _run(watch), "progress": None, "running": [], "net": _net(watch)}
    if view.start is None:
        return found
    current = progress(view, now)
    found["progress"] = _rounded(msgspec.structs.asdict(current)) | {
        "at": round(now if now is not None else view.last_time, 2),
        "attempts": len(view.attempts),
        "cores_held": round(cores_held(view), 3) if watch.live else 0.0,
        "linked": bool(view.links),
    }
    if watch.live:
        if view.is_cluster():
            found |= in_pieces("standing", standing_rows(view)[:MOST_NODES])
        longest = sorted(view.running.values(), key=lambda record: record.time)[:MOST_RUNNING]
        found["running"] = [
            {
                "task": record.task,
                "name": view.names.of(record.task)[:200],
                "attempt": record.attempt,
                "since": round(max(0.0, record.time - view.origin), 3),
                "node": node_name(view, record.node) if view.is_cluster() else None,
            }
            for record in longest
        ]
    return found


def slow_parts(watch: Watch) -> dict[str, Any]:
    """Parts that need a pass over every attempt."""
    found: dict[str, Any] = {}
    for step in slow_steps(watch):
        found |= step
    return found


def slow_steps(watch: Watch) -> Iterator[dict[str, Any]]:
    """The slow parts in steps, between which a large run may grow; each step reads the current model.

    A small run is computed in one step, because there some parts depend on the results of others.
    """
    view, now = watch.view, watch.now()
    if view.start is None:
        return
    view.settle()
    shown = shown_categories(view)
    needs = TaskWaits(view) if _is_small(view) else None
    place = places_of(view, shown)
    steps: list[Callable[[], dict[str, Any]]] = [
        lambda: _timeline(view, shown, needs, now),
        lambda: _categories(view, place),
        lambda: _nodes(view, now, needs),
        lambda: {"failures": [msgspec.structs.asdict(cause) for cause in failure_causes(view)]},
        lambda: {"throttle": _throttle(view), "critical": critical_data(view, needs, place)},
        lambda: {"graph": graph_data(watch, needs, place), "data": files_data(view)},
    ]
    if len(view.attempts) <= MOST_LINKED:
        yield {name: part for step in steps for name, part in step().items()}
        return
    for step in steps:
        yield step()


def _is_small(view: WatchedRun) -> bool:
    """Whether single dependencies are considered."""
    tasks = max(len(view.attempts), view.highest + 1)
    return bool(view.links) and view.dependencies <= MOST_DEPENDENCIES and tasks <= MOST_LINKED


def _categories(view: WatchedRun, place: dict[str, int]) -> dict[str, Any]:
    rows = category_rows(view)[:MOST_CATEGORIES]
    # A new category has no colour yet.
    return in_pieces(
        "categories", [_rounded(msgspec.structs.asdict(row)) | {"place": place.get(row.name, 0)} for row in rows]
    )


def _nodes(view: WatchedRun, now: float | None, needs: TaskWaits | None) -> dict[str, Any]:
    rows = node_rows(view, now, needs)[:MOST_NODES]
    return in_pieces("nodes", [_rounded(msgspec.structs.asdict(row)) for row in rows])


def places_of(view: WatchedRun, shown: ShownCategories) -> dict[str, int]:
    """The colour index of each category."""
    return {name: int(shown.place[code]) for code, name in enumerate(view.categories)}


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: short(value) if isinstance(value, float) else value for key, value in row.items()}


def _run(watch: Watch) -> dict[str, Any]:
    view = watch.view
    start = view.start
    return {
        "workflow": watch.name,
        "outcome": watch.outcome(),
        "live": watch.live,
        "id": start.run if start else None,
        "number": view.number,
        "host": start.host if start else None,
        "version": start.version if start else None,
        "targets": decodable_parts(start.targets) if start else [],
        "began": start.time if start else None,
        "cluster": view.is_cluster(),
        "nodes": len(view.nodes),
        "cores": view.total_cores(),
        "memory": view.total_memory(),
        "resources": [
            [name, show_amount(name, amount)] for name, amount in (start.node if start else []) if "=" not in name
        ],
    }


def width_of(seconds: float) -> float:
    """Width of the buckets for a run of this duration: it doubles when there would be too many."""
    width = FINEST
    while seconds > MOST_BUCKETS * width:
        width *= 2
    return width


def _timeline(view: WatchedRun, shown: ShownCategories, needs: TaskWaits | None, now: float | None) -> dict[str, Any]:
    last = max(view.until(now) - view.origin, 1e-3)
    width = width_of(last)
    count = int(np.ceil(last / width))
    over_time = timeline(view, shown, needs, until=now, window=(0.0, count * width), buckets=count)
    part_of_last = (last - (count - 1) * width) / width
    head = {
        "width": width,
        "buckets": count,
        "end": round(last, 3),
        "shown": shown.names,
        "total": over_time.total,
        "crowded": over_time.crowded,
        "memory_most": round(view.most_memory()),
        "ready": bool(len(over_time.ready)),
    }
    found: dict[str, Any] = {"time": head}
    for begin in range(0, count, BUCKETS_OF_PART):
        found[f"time.{begin // BUCKETS_OF_PART}"] = _buckets(over_time, begin, count, part_of_last)
    return found


def _buckets(over_time: Timeline, begin: int, count: int, part_of_last: float) -> dict[str, Any]:
    """Some buckets of the timeline; the means of the last one cover only its elapsed part."""
    end = min(count, begin + BUCKETS_OF_PART)
    scale = np.ones(end - begin)
    if end == count:
        scale[-1] = 1 / max(part_of_last, 1e-3)

    def means(values: Any) -> list[float]:
        """Means per bucket; an empty list stands for all zeros."""
        found = values[begin:end] * scale
        return numbers(found.tolist()) if found.any() else []

    return {
        "cores": [means(row) for row in over_time.cores],
        "memory": [means(row) for row in over_time.memory],
        "lost": means(over_time.lost),
        "untold": means(over_time.untold),
        "capacity": numbers(over_time.capacity[begin:end].tolist()),
        "running": means(over_time.running),
        "ready": means(over_time.ready) if len(over_time.ready) else [],
        "done": over_time.done[begin:end].tolist(),
        "failed": over_time.failed[begin:end].tolist(),
    }


def _throttle(view: WatchedRun) -> list[dict[str, Any]]:
    """Throttle curves with the latest decision of each in words."""
    found = throttle_data(view)
    for curve, record in zip(found, view.throttle, strict=True):
        curve["points"] = curve["points"][-MOST_STEPS:]
        curve["state"], curve["reason"] = record.state, record.reason
    return found


def critical_data(view: WatchedRun, needs: TaskWaits | None, place: dict[str, int]) -> dict[str, Any] | None:
    """The chain of tasks that ended last, and the completed share of the longest chain."""
    path = critical_path(view, needs) if needs is not None else None
    if path is None:
        return None
    steps = sorted(path.steps, key=lambda step: step.started)[-MOST_STEPS:]
    return path_data(path, steps, place)


def _net(watch: Watch) -> dict[str, Any] | None:
    view = watch.view
    if view.net is None:
        return None
    mark = view.mark
    return {
        "name": view.net.name,
        "tokens": mark.tokens if mark else {},
        "running": mark.running if mark and watch.live else {},
        "done": mark.done if mark else {},
        "problems": [str(problem)[:300] for problem in mark.problems[:20]] if mark else [],
    }
