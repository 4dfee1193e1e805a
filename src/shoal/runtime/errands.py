"""What others want done to a flow in the thread of its job server, and who is told how that went.

A function of the driver that puts a token of the wrong type fails the task that called it, not the workflow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from shoal.errors import RunError
from shoal.flow.net.transition import told
from shoal.schedulers.events import Event, Look

Action = Callable[[], object]


class Errands:
    """Actions for one loop. Who asks waits for the answer, unless the loop has not begun or it is the loop itself."""

    def __init__(self, post: Callable[[Callable[[], Event | None]], None]) -> None:
        """`post` has something called in the thread of the loop, which is the one that opens this."""
        self._post = post
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._waiting: dict[int, Future[None]] = {}
        self._number = 0
        self.problems: list[str] = []
        """A sentence for each action that failed and for which nobody waited."""

    def open(self) -> None:
        """The loop begins, in this thread."""
        self._thread, self._is_over = threading.current_thread(), False

    def close(self) -> None:
        """The loop has ended: nobody waits any longer."""
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(RunError("the job server ended before it came to that"))

    def ask(self, action: Action) -> None:
        """Has it done; raises what it raised, if that can be waited for."""
        waits = self._thread not in (None, threading.current_thread())
        with self._lock:
            if self._is_over:
                raise RunError("the job server has ended and does nothing any more")
            self._number += 1
            number = self._number
            answer: Future[None] = Future()
            if waits:
                self._waiting[number] = answer
        self._post(lambda: self._perform(number, action))
        if waits:
            answer.result()

    def _perform(self, number: int, action: Action) -> Event:
        error: Exception | None = None
        try:
            action()
        except Exception as raised:  # it is the user's: whoever asked for it is told, and the loop goes on
            error = raised
        with self._lock:
            answer = self._waiting.pop(number, None)
        if answer is None:
            self.problems += [told(error)] if error is not None else []
        elif error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
        return Look()
