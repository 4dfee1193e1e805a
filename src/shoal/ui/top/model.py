"""The data model of `shoal top`, refreshed by a thread, so that the display responds to keys at once.

The refresh thread owns the watch; requests for single tasks take the watch's lock. Data that needs the workflow itself,
such as the explanation of a task's state, comes from separate processes; another thread waits for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.ledger.views.throttle import throttle_note
from shoal.ledger.views.timeline import node_name
from shoal.ui.top.view import ASKING
from shoal.ui.web.run_page import quick_parts, slow_parts
from shoal.ui.web.task_description import ask_workflow
from shoal.ui.web.tasks import MOST_LISTED, list_tasks, output_of, task_data
from shoal.ui.web.watch import Watch

SECONDS = 0.5
_SHARE = 3.0
"""Minimum interval between passes over all attempts, as a multiple of their duration."""
MOST_UNDER_WAY = 500
Standing: TypeAlias = tuple[str, int, int | None]
"""State of a task, number of its ended attempts, and number of the running one."""


class TopModel:
    """Parts of the page's model, and data of opened tasks."""

    def __init__(self, watch: Watch, wake: int) -> None:
        self._watch = watch
        self._wake = wake
        self.parts: dict[str, Any] = {}
        """Replaced as a whole; empty until the ledger has been read."""
        self.read = 0
        """Bytes of the ledger read so far."""
        self.listing: tuple[str, str] | None = None
        """Category and state of the listed tasks, if any."""
        self._descriptions: dict[int, tuple[Standing, dict[str, Any]]] = {}
        """By task: its standing at the time of the request, and the workflow's description."""
        self._requested: set[int] = set()
        """Tasks with a pending request."""
        self.failure: Exception | None = None
        """The exception that ended a thread. The display raises it after restoring the terminal."""
        self._outputs: dict[int, bytes | None] = {}
        self._slow: dict[str, Any] = {}
        self._due = 0.0
        self._slow_version = -1
        self._again = threading.Event()
        self._over = False
        watch.reading = self._count_bytes
        self._thread = threading.Thread(target=self._guarded, args=(self._follow,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._again.set()
        self._thread.join(SECONDS)

    def refresh(self) -> None:
        """Requests an immediate refresh, because other data is wanted."""
        self._again.set()

    def _guarded(self, work: Callable[..., None], *words: Any) -> None:
        """The outermost frame of each thread: records an exception, which would otherwise go unnoticed."""
        try:
            work(*words)
        except Exception as error:
            self.failure = error
            self._wake_display()

    def _follow(self) -> None:
        while not self._over:
            with self._watch.lock:
                self.parts = self._compute()
            self._wake_display()
            self._again.wait(SECONDS)
            self._again.clear()

    def _count_bytes(self, offset: int) -> None:
        self.read = offset

    def _wake_display(self) -> None:
        try:
            os.write(self._wake, b"m")
        except OSError:  # the pipe is full, or the program is ending
            pass

    def _compute(self) -> dict[str, Any]:
        watch, began = self._watch, time.monotonic()
        watch.refresh()
        if (self._slow_version != watch.version or watch.live) and began >= self._due:
            self._slow, self._slow_version = slow_parts(watch), watch.version
            self._due = time.monotonic() + _SHARE * (time.monotonic() - began)
        found = {**self._slow, **quick_parts(watch)}
        view = watch.view
        found["throttle_note"] = throttle_note(view.throttle)
        found["under_way"] = self._under_way()
        listing = self.listing
        if listing is not None and view.start is not None:
            category, state = listing
            found["tasks"] = list_tasks(watch, state=state, category=category, search="", after=-1, limit=MOST_LISTED)
        return found

    def _under_way(self) -> list[dict[str, Any]]:
        """Running tasks, longest first."""
        watch, view = self._watch, self._watch.view
        if view.end is not None or not watch.live:
            return []
        longest = sorted(view.running.values(), key=lambda record: record.time)[:MOST_UNDER_WAY]
        return [
            {
                "task": record.task,
                "name": view.names.of(record.task)[:200],
                "attempt": record.attempt,
                "since": max(0.0, record.time - view.origin),
                "category": self._category(record.task),
                "node": node_name(view, record.node),
            }
            for record in longest
        ]

    def _category(self, task: int) -> str:
        import numpy as np

        code = int(self._watch.view.category_of(np.array([task]))[0])
        return self._watch.view.categories[code] if code >= 0 else ""

    # ---- single tasks ------------------------------------------------------------------------------------------------

    def task(self, task: int) -> tuple[dict[str, Any] | None, bytes | None]:
        """The task's current ledger data, and the end of its output."""
        with self._watch.lock:
            found = task_data(self._watch, task)
        if found is None:
            return None, None
        if found["running"] is not None:
            self._outputs.pop(task, None)
            return found, output_of(self._watch.workspace, self._watch, task, None)
        return found, self._outputs.get(task)

    def description(self, task: int, found: dict[str, Any]) -> dict[str, Any] | None:
        """The workflow's description of a task with the ledger data `found`; None if it is not available yet.

        If the task's standing has changed since the request, the description is requested again. Meanwhile no
        explanation is returned: that of another state would be wrong.
        """
        standing = standing_of(found)
        known = self._descriptions.get(task)
        if known is not None and known[0] == standing:
            return known[1]
        if task not in self._requested:
            self._requested.add(task)
            words = (self._request, task, found["name"], standing)
            threading.Thread(target=self._guarded, args=words, daemon=True).start()
        return {**known[1], "why": None, "problem": ASKING} if known is not None else None

    def forget(self, task: int) -> None:
        """Discards the description of a task that is opened again, so that it is requested anew."""
        self._descriptions.pop(task, None)

    def _request(self, task: int, name: str, standing: Standing) -> None:
        """Requests the description of a task from the workflow, and its output from the ledger."""
        watch = self._watch
        self._outputs[task] = output_of(watch.workspace, watch, task, None)
        self._wake_display()
        words = watch.view.start.targets if watch.view.start is not None else []
        answer = ask_workflow(watch.workspace, name, list(words), is_last=watch.is_last)
        self._descriptions[task] = standing, answer
        self._requested.discard(task)
        self._wake_display()


def standing_of(found: dict[str, Any]) -> Standing:
    """The properties of a task on which a description depends: while they are equal, it stays valid."""
    running = found["running"]
    return found["state"], len(found["attempts"]), running["attempt"] if running is not None else None
