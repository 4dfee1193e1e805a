"""The graph of a run for the live page: every task if they are few, and in any case the categories."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.view.graph import Needs
from shoal.web.tasks import STATES, state_names, states_of
from shoal.web.watch import GROUPS, Watch

MOST_CATEGORIES = 200
MOST_TASKS, MOST_LINES = 120, 1_200
"""More than these cannot be told apart on a page: the graph collapses to categories."""


def graph_data(watch: Watch, needs: Needs | None, place: dict[str, int]) -> dict[str, Any]:
    """`nodes` and `edges` of the categories; `tasks` has those of single tasks, or is None. `single`: whether single
    dependencies are looked at all the time."""
    return _by_category(watch, place) | {"tasks": _by_task(watch, needs), "single": needs is not None}


def _by_category(watch: Watch, place: dict[str, int]) -> dict[str, Any]:
    """Categories and what they need of each other, with how far each is."""
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


def _by_task(watch: Watch, needs: Needs | None) -> dict[str, Any] | None:
    """Every task with its state, and which needs which; None if there are too many to draw."""
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
    """Of a task that is not started it is known here whether it waits for others."""
    if name != STATES[0]:
        return name
    return "ready" if is_ready else "waiting"


def _needed(needs: Needs, row: int) -> set[int]:
    """The tasks that one needs, also through those that only group others."""
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
