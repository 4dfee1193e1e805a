"""The versioned API of a run's live page: resolves paths and queries to replies, and provides the metrics.

The API is read-only. An invalid request gets a sentence and a status. HTTP itself is in `shoal.ui.web.server`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal import __version__
from shoal.ledger.views.progress import progress
from shoal.ledger.views.tables import node_rows
from shoal.ledger.workspace import Workspace
from shoal.ui.web.board import PLAIN, VERSION, Board, Query, Refresher, RefusedRequest, Reply, json_reply, parts_reply
from shoal.ui.web.charts import MOST_PIXELS, MOST_ROWS, Chart
from shoal.ui.web.critical_process import ask_path
from shoal.ui.web.task_description import NO_REASON, ask_net, ask_why, ask_workflow
from shoal.ui.web.tasks import MOST_LISTED, NOT_RUN, STATES, list_tasks, output_of, state_names, task_data, usage_series
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


_TASK = re.compile(r"tasks/(\d{1,9})(/output|/course|/why|/workflow)?")


class Api:
    """The page source of one run."""

    def __init__(self, workspace: Workspace, number: int | None = None) -> None:
        self.watch = Watch(workspace, number, skip_idle=True)
        self.board = Board()
        self.refresher = Refresher(self.watch, self.board)
        self.refresher.start()
        self._chart: Chart | None = None
        self._drawing = threading.Lock()
        self._routes: dict[str, Callable[[Query], Reply]] = {
            "": self._about,
            "run": self._run,
            "gantt": self._gantt,
            "tasks": self._tasks,
            "net": self._net,
            "critical": self._critical,
            "why": self._why,
        }

    def prepare(self) -> None:
        """Reads the ledger and computes what clients request first."""
        self.refresher.bring_up_to_date()
        with self._drawing:
            self._whole_chart()

    def answer(self, path: str, query: Query) -> Reply:
        """The reply to `/api/v1/PATH?QUERY`."""
        try:
            found = _TASK.fullmatch(path)
            if found is not None:
                return self._task(int(found[1]), found[2], query)
            route = self._routes.get(path.rstrip("/"))
            if route is None:
                raise RefusedRequest(f"{path!r} not found; '/api/v{VERSION}/' lists the available paths", 404)
            return route(query)
        except RefusedRequest as refusal:
            return refusal.reply()

    def metrics(self) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            return Reply(metrics(self.watch).encode("utf-8", "replace"), CONTENT_TYPE)

    def _about(self, query: Query) -> Reply:
        paths = [
            "run",
            "events",
            "gantt",
            "tasks",
            "tasks/N",
            "tasks/N/output",
            "tasks/N/course",
            "tasks/N/why",
            "tasks/N/workflow",
            "net",
            "critical",
            "why",
        ]
        return json_reply({"version": VERSION, "shoal": __version__, "paths": paths})

    def _run(self, query: Query) -> Reply:
        self.refresher.bring_up_to_date()
        return parts_reply(self.board)

    def _gantt(self, query: Query) -> Reply:
        rows, pixels = _whole(query, "rows", 64, 1, MOST_ROWS), _whole(query, "pixels", 1024, 8, MOST_PIXELS)
        with self._drawing:
            chart = self._whole_chart()
            if chart is None:
                raise RefusedRequest("no task has run yet", 404)
            begin, end = _real(query, "from", 0.0), _real(query, "to", chart.end)
            if end <= begin:
                raise RefusedRequest("'to' must be greater than 'from'")
            with self.watch.lock:
                node = _node(query, chart)
            return json_reply(chart.window(begin, end, rows, pixels, node))

    def _whole_chart(self) -> Chart | None:
        """The current chart; None if there is nothing to draw."""
        with self.watch.lock:
            self.watch.refresh()
            if self.watch.view.start is None:
                return None
            if self._chart is None or not self._chart.is_good_for(self.watch):
                self._chart = Chart(self.watch)
            return self._chart

    def _tasks(self, query: Query) -> Reply:
        state = query.get("state", "")
        if state and state not in (*STATES, NOT_RUN):
            raise RefusedRequest(f"the state must be one of {', '.join(state_names(self.watch))}")
        after, limit = _whole(query, "after", -1, -1, 1 << 40), _whole(query, "limit", 50, 1, MOST_LISTED)
        category, search = query.get("category", ""), query.get("search", "")
        with self.watch.lock:
            self.watch.refresh()
            watch = self.watch
            return json_reply(
                list_tasks(watch, state=state, category=category, search=search, after=after, limit=limit)
            )

    def _task(self, task: int, more: str | None, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            found = task_data(self.watch, task)
            start = self.watch.view.start
        if found is None or start is None:
            raise RefusedRequest(f"this run has no task {task}", 404)
        workspace = self.watch.workspace
        if more == "/workflow":
            return json_reply(ask_workflow(workspace, found["name"], start.targets, is_last=self.watch.is_last))
        if more == "/why":
            self._require_latest()
            return json_reply(ask_why(workspace, found["name"]))
        attempt = _whole(query, "attempt", 0, 0, 1 << 30) or None
        if more == "/course":
            return json_reply(usage_series(workspace, self.watch, task, attempt))
        if more == "/output":
            written = output_of(workspace, self.watch, task, attempt)
            if written is None:
                raise RefusedRequest("the output of this task was not kept", 404)
            return Reply(written.decode("utf-8", "replace").encode(), PLAIN)
        return json_reply(found)

    def _critical(self, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            number = self.watch.view.number
        return json_reply(ask_path(self.watch.workspace, number))

    def _why(self, query: Query) -> Reply:
        self._require_latest()
        return json_reply(ask_why(self.watch.workspace, None))

    def _require_latest(self) -> None:
        """Rejects earlier runs, because `shoal why` explains the latest run only."""
        with self.watch.lock:
            self.watch.refresh()
            if not self.watch.is_last:
                raise RefusedRequest(NO_REASON)

    def _net(self, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            if self.watch.view.net is None:
                raise RefusedRequest("this run has no Petri net", 404)
        return json_reply(ask_net(self.watch.workspace))


def _node(query: Query, chart: Chart) -> int | None:
    """The number of the node that the query names; None for all nodes."""
    name = query.get("node")
    if not name:
        return None
    found = [number for number, node in chart.view.nodes.items() if node.name == name]
    if not found:
        raise RefusedRequest(f"this run has no node {name!r}", 404)
    return found[-1]


def _whole(query: Query, name: str, default: int, least: int, most: int) -> int:
    """An integer of the query: values above `most` are reduced to it, values below `least` are an error."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = int(text[:20])
    except ValueError:
        raise RefusedRequest(f"{name!r} must be a whole number") from None
    if value < least:
        raise RefusedRequest(f"{name!r} must be at least {least}")
    return min(most, value)


def _real(query: Query, name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text[:40])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:
        raise RefusedRequest(f"{name!r} must be a number")
    return value
