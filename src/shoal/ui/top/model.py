"""The model behind `shoal top`, kept up to date by a thread of its own, so that keys are answered at once.

The thread owns the watch but for what is asked of single tasks, which is done under the watch's lock. What needs the
workflow itself (why a task is where it is) comes from other processes and is waited for by another thread.
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
"""What takes a look at every attempt is done anew after so many times as long as it took."""
MOST_UNDER_WAY = 500
Standing: TypeAlias = tuple[str, int, int | None]
"""The state of a task, how many of its attempts have ended, and the number of the one that runs."""


class TopModel:
    """Parts of the page's model, and whatever else is looked at."""

    def __init__(self, watch: Watch, wake: int) -> None:
        self._watch = watch
        self._wake = wake
        self.parts: dict[str, Any] = {}
        """Replaced as a whole; empty until the ledger has been read."""
        self.read = 0
        """Bytes of the ledger so far."""
        self.listing: tuple[str, str] | None = None
        """Category and state of the tasks that are listed, if any are."""
        self._told: dict[int, tuple[Standing, dict[str, Any]]] = {}
        """What the workflow said of tasks, and how they stood when it was asked."""
        self._asking: set[int] = set()
        """Tasks of which an answer is under way."""
        self.failure: Exception | None = None
        """What has ended one of the threads; whoever draws raises it, when the terminal can be given back."""
        self._outputs: dict[int, bytes | None] = {}
        self._slow: dict[str, Any] = {}
        self._due = 0.0
        self._slow_version = -1
        self._again = threading.Event()
        self._over = False
        watch.reading = self._note_reading
        self._thread = threading.Thread(target=self._guarded, args=(self._follow,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._again.set()
        self._thread.join(SECONDS)

    def refresh(self) -> None:
        """Something else is wanted: do not wait."""
        self._again.set()

    def _guarded(self, work: Callable[..., None], *words: Any) -> None:
        """The top of each thread: nobody would see there what went wrong."""
        try:
            work(*words)
        except Exception as error:
            self.failure = error
            self._tell()

    def _follow(self) -> None:
        while not self._over:
            with self._watch.lock:
                self.parts = self._compute()
            self._tell()
            self._again.wait(SECONDS)
            self._again.clear()

    def _note_reading(self, offset: int) -> None:
        self.read = offset

    def _tell(self) -> None:
        try:
            os.write(self._wake, b"m")
        except OSError:  # the pipe is full, or the program is about to end
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
        """The running tasks, the longest first."""
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

    # ---- one task ------------------------------------------------------------------------------------------------

    def task(self, task: int) -> tuple[dict[str, Any] | None, bytes | None]:
        """What the ledger says of one task now, and the end of its output."""
        with self._watch.lock:
            found = task_data(self._watch, task)
        if found is None:
            return None, None
        if found["running"] is not None:
            self._outputs.pop(task, None)
            return found, output_of(self._watch.workspace, self._watch, task, None)
        return found, self._outputs.get(task)

    def told(self, task: int, found: dict[str, Any]) -> dict[str, Any] | None:
        """What the workflow says of a task that stands as `found` says; None if it has not said anything yet.

        A task that stands otherwise than when it was asked is asked of again. Meanwhile no reason is told: that of
        another state would be false.
        """
        standing = standing_of(found)
        known = self._told.get(task)
        if known is not None and known[0] == standing:
            return known[1]
        if task not in self._asking:
            self._asking.add(task)
            words = (self._ask, task, found["name"], standing)
            threading.Thread(target=self._guarded, args=words, daemon=True).start()
        return {**known[1], "why": None, "problem": ASKING} if known is not None else None

    def forget(self, task: int) -> None:
        """It is opened once more, and asked of anew."""
        self._told.pop(task, None)

    def _ask(self, task: int, name: str, standing: Standing) -> None:
        """Asks the workflow about a task, and the ledger for its output."""
        watch = self._watch
        self._outputs[task] = output_of(watch.workspace, watch, task, None)
        self._tell()
        words = watch.view.start.targets if watch.view.start is not None else []
        answer = ask_workflow(watch.workspace, name, list(words), is_last=watch.is_last)
        self._told[task] = standing, answer
        self._asking.discard(task)
        self._tell()


def standing_of(found: dict[str, Any]) -> Standing:
    """What of a task an answer is about: as long as this stays the same, so does the answer."""
    running = found["running"]
    return found["state"], len(found["attempts"]), running["attempt"] if running is not None else None
