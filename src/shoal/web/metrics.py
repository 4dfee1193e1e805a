"""A run in the OpenMetrics text format, for Prometheus and its like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.view.progress import progress
from shoal.view.tables import node_rows
from shoal.web.watch import Watch

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Sample = tuple[dict[str, str], float]


def metrics(watch: Watch) -> str:
    """The text; an empty exposition if nothing has been run yet."""
    view, now = watch.view, watch.now()
    lines: list[str] = []
    if view.start is not None:
        told = progress(view, now)
        who = {"workflow": watch.name, "run": view.start.run, "outcome": watch.outcome()}
        states = [("done", told.done), ("failed", told.failed), ("running", told.running), ("waiting", told.waiting)]
        lines += _family("shoal_run", "info", "Which run this is.", [(who, 1)])
        lines += _family("shoal_tasks", "gauge", "Tasks by state.", [({"state": s}, n) for s, n in states])
        lines += _family("shoal_elapsed_seconds", "gauge", "Since the beginning of the run.", [({}, told.elapsed)])
        if told.left is not None and told.least is not None and told.most is not None:
            band = [("expected", told.left), ("least", told.least), ("most", told.most)]
            lines += _family("shoal_left_seconds", "gauge", "To the end.", [({"bound": b}, s) for b, s in band])
        lines += _by_category(watch)
        lines += _by_node(watch)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _by_category(watch: Watch) -> list[str]:
    view = watch.view
    rows = view.attempts
    size = len(view.categories)
    counts, seconds = [], []
    for code, outcome in enumerate(rows.outcomes):
        mine = rows.outcome == code
        numbers = np.bincount(rows.category[mine], minlength=size)
        spent = np.bincount(rows.category[mine], (rows.ended - rows.started)[mine], size)
        for category, name in enumerate(view.categories):
            if numbers[category]:
                labels = {"category": name, "outcome": outcome}
                counts.append((labels, float(numbers[category])))
                seconds.append((labels, float(spent[category])))
    return [
        *_family("shoal_attempts", "counter", "Attempts that have ended.", counts),
        *_family("shoal_attempt_seconds", "counter", "Time of attempts that have ended.", seconds),
    ]


def _by_node(watch: Watch) -> list[str]:
    rows = node_rows(watch.view, watch.now())
    return [
        *_family("shoal_node_cores", "gauge", "Cores of a node.", [({"node": r.name}, r.cores) for r in rows]),
        *_family("shoal_node_core_seconds", "counter", "Held by attempts.", [({"node": r.name}, r.busy) for r in rows]),
        *_family("shoal_node_fetched_bytes", "counter", "From others.", [({"node": r.name}, r.fetched) for r in rows]),
        *_family("shoal_node_stolen_tasks", "counter", "From others.", [({"node": r.name}, r.stolen) for r in rows]),
    ]


def _family(name: str, kind: str, told: str, samples: Sequence[Sample]) -> list[str]:
    suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
    lines = [f"# TYPE {name} {kind}", f"# HELP {name} {told}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{suffix}{'{' + inside + '}' if inside else ''} {value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
