"""What can be asked of a watched run, by path and query: the versioned interface behind the page, and metrics.

Nothing here changes anything. What is asked wrongly gets a sentence and a status; HTTP itself is left to
`shoal.web.server`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal import __version__
from shoal.engine.workspace import Workspace
from shoal.web.board import Board
from shoal.web.chart import MOST_PIXELS, MOST_ROWS, Chart
from shoal.web.described import ask_net, ask_workflow
from shoal.web.distant import ask_path
from shoal.web.metrics import CONTENT_TYPE, metrics
from shoal.web.refresher import Refresher
from shoal.web.tasks import MOST_LISTED, STATES, list_tasks, output_of, task_data
from shoal.web.watch import Watch

VERSION = 1
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
_TASK = re.compile(r"tasks/(\d{1,9})(/output|/workflow)?")
Query = Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """What is sent back."""

    body: bytes
    type: str = JSON
    status: int = 200


class Refused(Exception):  # noqa: N818  an answer, not an error of ours
    """Something was asked that there is not, or wrongly."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class Api:
    """One run, and everything that can be asked about it."""

    def __init__(self, workspace: Workspace, number: int | None = None) -> None:
        self.watch = Watch(workspace, number)
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
        }

    def answer(self, path: str, query: Query) -> Reply:
        """The answer to `/api/v1/PATH?QUERY`."""
        try:
            found = _TASK.fullmatch(path)
            if found is not None:
                return self._task(int(found[1]), found[2], query)
            route = self._routes.get(path.rstrip("/"))
            if route is None:
                raise Refused(f"there is no {path!r} here; '/api/v{VERSION}/' lists what there is", 404)
            return route(query)
        except Refused as refusal:
            return Reply(msgspec.json.encode({"error": str(refusal)}), status=refusal.status)

    def metrics(self) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            return Reply(metrics(self.watch).encode("utf-8", "replace"), CONTENT_TYPE)

    def _about(self, query: Query) -> Reply:
        paths = ["run", "events", "gantt", "tasks", "tasks/N", "tasks/N/output", "tasks/N/workflow", "net", "critical"]
        return _json({"version": VERSION, "shoal": __version__, "paths": paths})

    def _run(self, query: Query) -> Reply:
        self.refresher.bring_up_to_date()
        version, parts = self.board.since(0)
        return Reply(b'{"version":%d,"as_of":%d,"parts":%b}' % (VERSION, version, parts))

    def _gantt(self, query: Query) -> Reply:
        rows, pixels = _whole(query, "rows", 64, 1, MOST_ROWS), _whole(query, "pixels", 1024, 8, MOST_PIXELS)
        with self._drawing:
            with self.watch.lock:
                self.watch.refresh()
                if self.watch.view.start is None:
                    raise Refused("nothing has been run yet", 404)
                chart = self._chart
                if chart is None or not chart.is_good_for(self.watch):
                    chart = self._chart = Chart(self.watch)
            begin, end = _real(query, "from", 0.0), _real(query, "to", chart.end)
            if end <= begin:
                raise Refused("'to' must be more than 'from'")
            return _json(chart.window(begin, end, rows, pixels))

    def _tasks(self, query: Query) -> Reply:
        state = query.get("state", "")
        if state and state not in STATES:
            raise Refused(f"a state is one of {', '.join(STATES)}")
        after, limit = _whole(query, "after", -1, -1, 1 << 40), _whole(query, "limit", 50, 1, MOST_LISTED)
        category, search = query.get("category", ""), query.get("search", "")
        with self.watch.lock:
            self.watch.refresh()
            view = self.watch.view
            return _json(list_tasks(view, state=state, category=category, search=search, after=after, limit=limit))

    def _task(self, task: int, more: str | None, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            found = task_data(self.watch, task)
            start = self.watch.view.start
        if found is None or start is None:
            raise Refused(f"this run has no task {task}", 404)
        workspace = self.watch.workspace
        if more == "/workflow":
            return _json(ask_workflow(workspace, found["name"], start.targets))
        if more == "/output":
            attempt = _whole(query, "attempt", 0, 0, 1 << 30) or None
            written = output_of(workspace, self.watch, task, attempt)
            if written is None:
                raise Refused("nothing is kept of what it wrote", 404)
            return Reply(written.decode("utf-8", "replace").encode(), PLAIN)
        return _json(found)

    def _critical(self, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            number = self.watch.view.runs
        return _json(ask_path(self.watch.workspace, number))

    def _net(self, query: Query) -> Reply:
        with self.watch.lock:
            self.watch.refresh()
            if self.watch.view.net is None:
                raise Refused("this is no run of a net", 404)
        return _json(ask_net(self.watch.workspace))


def _json(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))


def _whole(query: Query, name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        return max(least, min(most, int(text[:20])))
    except ValueError:
        raise Refused(f"{name!r} must be a whole number") from None


def _real(query: Query, name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text[:40])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:
        raise Refused(f"{name!r} must be a number")
    return value
