"""Metrics of a run in the OpenMetrics text format, for Prometheus and compatible systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.ledger.views.progress import progress
from shoal.ledger.views.tables import node_rows
from shoal.ui.web.tasks import NOT_RUN
from shoal.ui.web.watch import Watch

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Sample = tuple[dict[str, str], float]


def metrics(watch: Watch) -> str:
    """The metrics text; empty if nothing has been run yet."""
    view, now = watch.view, watch.now()
    lines: list[str] = []
    if view.start is not None:
        current = progress(view, now)
        who = {"workflow": watch.name, "run": view.start.run, "outcome": watch.outcome()}
        states = [("done", current.done), ("failed", current.failed), ("running", current.running)]
        if watch.live:
            states += [("not started", current.waiting), ("cannot run", current.cannot_run)]
        else:
            states.append((NOT_RUN, current.waiting + current.cannot_run))
        states += [("cancelled", current.cancelled), ("up to date", current.up_to_date)]
        lines += family("shoal_run", "info", "Identity of the run.", [(who, 1)])
        lines += family("shoal_tasks", "gauge", "Tasks by state.", [({"state": s}, n) for s, n in states])
        lines += family("shoal_elapsed_seconds", "gauge", "Time since the start of the run.", [({}, current.elapsed)])
        if current.left is not None and current.least is not None and current.most is not None:
            band = [("expected", current.left), ("least", current.least), ("most", current.most)]
            lines += family(
                "shoal_left_seconds", "gauge", "Estimated time remaining.", [({"bound": b}, s) for b, s in band]
            )
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
        *family("shoal_attempts", "counter", "Finished attempts.", counts),
        *family("shoal_attempt_seconds", "counter", "Wall time of finished attempts.", seconds),
    ]


def _by_node(watch: Watch) -> list[str]:
    rows = [msgspec.structs.asdict(row) for row in node_rows(watch.view, watch.now())]
    return node_families(rows)


NODE_FAMILIES = (
    ("shoal_node_cores", "gauge", "Cores of a node.", "cores"),
    ("shoal_node_core_seconds", "counter", "Core time allocated to attempts.", "busy"),
    ("shoal_node_cores_held", "gauge", "Cores allocated to tasks now.", "cores_held"),
    ("shoal_node_memory_used_ratio", "gauge", "Memory of the machine in use by all processes.", "memory_used"),
    ("shoal_node_running_tasks", "gauge", "Tasks running on the node.", "running"),
    ("shoal_node_fetched_bytes", "counter", "Bytes fetched from other nodes.", "fetched"),
    ("shoal_node_fetched_files", "counter", "Files fetched from other nodes.", "fetched_files"),
    ("shoal_node_hits", "counter", "Reads of files that were already on the node.", "hits"),
    ("shoal_node_hit_bytes", "counter", "Bytes of these reads.", "hit_bytes"),
    ("shoal_node_stolen_tasks", "counter", "Tasks stolen from other nodes.", "stolen"),
    ("shoal_node_pushed_tasks", "counter", "Tasks pushed to it by other nodes.", "pushed"),
)
QUEUES = ("wait", "local", "shared")


def node_families(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Metrics of nodes. Values that are None, and metrics without values, are left out."""
    found: list[str] = []
    for name, kind, help_text, key in NODE_FAMILIES:
        samples: list[Sample] = [({"node": row["name"]}, row[key]) for row in rows if row.get(key) is not None]
        found += family(name, kind, help_text, samples) if samples else []
    queued: list[Sample] = [
        ({"node": row["name"], "queue": queue}, row[queue])
        for row in rows
        for queue in QUEUES
        if row.get(queue) is not None
    ]
    return found + (family("shoal_node_queued_tasks", "gauge", "Queued tasks of the node.", queued) if queued else [])


def family(name: str, kind: str, help_text: str, samples: Sequence[Sample]) -> list[str]:
    """One metric with its samples."""
    suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
    lines = [f"# TYPE {name} {kind}", f"# HELP {name} {help_text}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{suffix}{'{' + inside + '}' if inside else ''} {value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
