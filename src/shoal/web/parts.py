"""What the live page shows, as named parts of plain lists and numbers, computed from the model at one moment.

Long things are cut into several parts, so that only those that changed need be sent again: a timeline has buckets of a
fixed width (which doubles when there are too many), and a table a fixed number of rows. Times are in seconds from the
beginning of the run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from shoal.model.resources import FRACTION, show_bytes
from shoal.view.critical import critical_path
from shoal.view.data import numbers, path_data, short, throttle_data
from shoal.view.graph import Needs
from shoal.view.progress import progress
from shoal.view.tables import category_rows, failure_causes, node_rows
from shoal.view.timeline import MOST_SHOWN, Shown, Timeline, shown_categories, timeline
from shoal.web.watch import GROUPS, Watch, WatchedRun

MOST_BUCKETS = 240
FINEST = 1 / 64
"""Seconds of the narrowest bucket."""
BUCKETS_OF_PART, ROWS_OF_PART = 24, 16
MOST_CATEGORIES, MOST_NODES, MOST_RUNNING, MOST_STEPS = 200, 400, 8, 60
MOST_LINKED = 100_000
"""Beyond so many tasks what follows from single dependencies (ready tasks, the critical path) is left to reports."""
SLOW = ("time", "categories", "nodes", "failures", "throttle", "critical", "graph", "data")


def quick_parts(watch: Watch) -> dict[str, Any]:
    """What changes with every task, and is quick to say."""
    view, now = watch.view, watch.now()
    view.settle()
    found: dict[str, Any] = {"run": _run(watch), "progress": None, "running": [], "net": _net(view)}
    if view.start is None:
        return found
    told = progress(view, now)
    found["progress"] = _rounded(msgspec.structs.asdict(told)) | {
        "at": round(now if now is not None else view.last_time, 2),
        "attempts": len(view.attempts),
        "linked": bool(view.links),
    }
    if view.end is None and watch.live:
        longest = sorted(view.running.values(), key=lambda record: record.time)[:MOST_RUNNING]
        found["running"] = [
            {
                "task": record.task,
                "name": view.names.of(record.task)[:200],
                "attempt": record.attempt,
                "since": round(record.time - view.origin, 3),
            }
            for record in longest
        ]
    return found


def slow_parts(watch: Watch) -> dict[str, Any]:
    """What takes a look at every attempt."""
    view, now = watch.view, watch.now()
    if view.start is None:
        return {}
    view.settle()
    shown = steady_categories(view)
    needs = Needs(view) if view.links and len(view.attempts) <= MOST_LINKED and view.highest < MOST_LINKED else None
    found = _timeline(view, shown, needs, now)
    rows = category_rows(view)
    place = places_of(view, shown)
    categories = [_rounded(msgspec.structs.asdict(row)) | {"place": place[row.name]} for row in rows[:MOST_CATEGORIES]]
    found |= _in_pieces("categories", categories)
    found |= _in_pieces("nodes", [_rounded(msgspec.structs.asdict(row)) for row in node_rows(view, now)[:MOST_NODES]])
    found["failures"] = [msgspec.structs.asdict(cause) for cause in failure_causes(view)]
    found["throttle"] = _throttle(view)
    found["critical"] = critical_data(view, needs, place)
    found["graph"] = _graph(view, place)
    found["data"] = _data(view)
    return found


def steady_categories(view: WatchedRun) -> Shown:
    """The categories that are drawn apart; in the order of the plan, so that they keep their colours in a live run."""
    if len(view.categories) <= MOST_SHOWN:
        return Shown(list(view.categories) or [""], np.arange(len(view.categories)))
    return shown_categories(view)


def places_of(view: WatchedRun, shown: Shown) -> dict[str, int]:
    """Which colour each category has."""
    return {name: int(shown.place[code]) for code, name in enumerate(view.categories)}


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: short(value) if isinstance(value, float) else value for key, value in row.items()}


def _in_pieces(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    starts = range(0, max(1, len(rows)), ROWS_OF_PART)
    return {f"{name}.{begin // ROWS_OF_PART}": rows[begin : begin + ROWS_OF_PART] for begin in starts}


def _run(watch: Watch) -> dict[str, Any]:
    view = watch.view
    start = view.start
    return {
        "workflow": watch.name,
        "outcome": watch.outcome(),
        "live": watch.live,
        "id": start.run if start else None,
        "number": view.runs,
        "host": start.host if start else None,
        "version": start.version if start else None,
        "targets": start.targets if start else [],
        "began": start.time if start else None,
        "cluster": view.is_cluster(),
        "cores": view.total_cores(),
        "memory": view.total_memory(),
        "resources": [
            [name, show_bytes(amount) if name in ("memory", "disk") else f"{amount / FRACTION:g}"]
            for name, amount in (start.node if start else [])
            if "=" not in name
        ],
    }


def width_of(seconds: float) -> float:
    """Of the buckets of a run of so many seconds: they double when there would be too many."""
    width = FINEST
    while seconds > MOST_BUCKETS * width:
        width *= 2
    return width


def _timeline(view: WatchedRun, shown: Shown, needs: Needs | None, now: float | None) -> dict[str, Any]:
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
        "ready": bool(len(over_time.ready)),
    }
    found: dict[str, Any] = {"time": head}
    for begin in range(0, count, BUCKETS_OF_PART):
        found[f"time.{begin // BUCKETS_OF_PART}"] = _buckets(over_time, begin, count, part_of_last)
    return found


def _buckets(over_time: Timeline, begin: int, count: int, part_of_last: float) -> dict[str, Any]:
    """Some columns; the last bucket is not over yet, and its means are of the part that is."""
    end = min(count, begin + BUCKETS_OF_PART)
    scale = np.ones(end - begin)
    if end == count:
        scale[-1] = 1 / max(part_of_last, 1e-3)

    def means(values: Any) -> list[float]:
        """Nothing stands for nothing but zeros."""
        found = values[begin:end] * scale
        return numbers(found.tolist()) if found.any() else []

    return {
        "cores": [means(row) for row in over_time.cores],
        "memory": [means(row) for row in over_time.memory],
        "lost": means(over_time.lost),
        "capacity": numbers(over_time.capacity[begin:end].tolist()),
        "running": means(over_time.running),
        "ready": means(over_time.ready) if len(over_time.ready) else [],
        "done": over_time.done[begin:end].tolist(),
        "failed": over_time.failed[begin:end].tolist(),
    }


def _throttle(view: WatchedRun) -> list[dict[str, Any]]:
    """The curves, and of each the last decision in words."""
    last = {(record.node, record.category): record for record in view.throttle}
    found = throttle_data(view)
    for curve in found:
        record = last[curve["node"], curve["category"]]
        curve["points"] = curve["points"][-MOST_STEPS:]
        curve["state"], curve["reason"] = record.state, record.reason
    return found


def critical_data(view: WatchedRun, needs: Needs | None, place: dict[str, int]) -> dict[str, Any] | None:
    """The chain of tasks that ended last, and how much of the longest one is done."""
    path = critical_path(view, needs) if needs is not None else None
    if path is None:
        return None
    steps = sorted(path.steps, key=lambda step: step.started)[-MOST_STEPS:]
    return path_data(path, steps, place)


def _graph(view: WatchedRun, place: dict[str, int]) -> dict[str, Any]:
    """Categories and what they need of each other, with how far each is."""
    rows = view.attempts
    size = len(view.categories)
    over = rows.final
    good = np.bincount(rows.category[over & (rows.outcome == 0)], minlength=size)
    bad = np.bincount(rows.category[over & (rows.outcome != 0)], minlength=size)
    tasks = np.array(list(view.running), np.int64)
    codes = view.category_of(tasks)
    running = np.bincount(codes[codes >= 0], minlength=size) if view.end is None else np.zeros(size, np.int64)
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


def _data(view: WatchedRun) -> dict[str, Any]:
    rows, nodes = view.attempts, view.nodes.values()
    return {
        "sources": view.sources,
        "source_bytes": view.source_bytes,
        "made": short(float(rows.made[rows.outcome == 0].sum(dtype=np.float64))) if len(rows) else 0,
        "read": rows.read,
        "written": rows.written,
        "fetched": sum(node.fetched for node in nodes),
        "stolen": sum(node.stolen for node in nodes),
        "pushed": sum(node.pushed for node in nodes),
    }


def _net(view: WatchedRun) -> dict[str, Any] | None:
    if view.net is None:
        return None
    mark = view.mark
    return {
        "name": view.net.name,
        "tokens": mark.tokens if mark else {},
        "running": mark.running if mark and view.end is None else {},
        "done": mark.done if mark else {},
        "problems": [str(problem)[:300] for problem in mark.problems[:20]] if mark else [],
    }
