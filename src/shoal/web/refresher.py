"""The thread that keeps the board up to date: it looks at the ledger while anybody looks at the board.

Quick parts follow within half a second, also while the others are worked out. What takes a look at every attempt is
done as often as it is cheap: a large run is drawn anew every few seconds, and never more than a tenth of the time is
spent on that. It is counted by the clock: on a machine that is busy with the tasks everything takes longer, and so is
done less often.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from shoal.web.board import Board
from shoal.web.failing import AGAIN_SECONDS, Attempts
from shoal.web.parts import QUICK, SLOW, quick_parts, slow_steps
from shoal.web.thrift import give_back
from shoal.web.watch import Watch

LOOK_SECONDS = 0.1
LEAST_SECONDS = 0.4
IDLE_SECONDS = 2.0
"""A run that goes on is drawn anew after so long, even if nothing was written."""
SHARE = 9.0
"""Pause after each round, in times of what it took."""
LONGEST_SECONDS = 0.4
"""Pause after quick parts at the most: what happens is to be seen within a second."""


class _Pace:
    """When something is to be done again, by what it took the last time."""

    def __init__(self, longest: float = float("inf")) -> None:
        self.due = 0.0
        self.last = float("-inf")
        self._longest = longest

    def took(self, began: float) -> None:
        self.last = time.monotonic()
        pause = max(LEAST_SECONDS - (self.last - began), SHARE * (self.last - began))
        self.due = self.last + min(pause, self._longest)


class Refresher(threading.Thread):
    """Reads and publishes until it is stopped."""

    def __init__(self, watch: Watch, board: Board) -> None:
        super().__init__(name="refresher", daemon=True)
        self.watch = watch
        self.board = board
        self._wanted = threading.Event()
        self._stop_now = threading.Event()
        self._turn = threading.Lock()
        self._first = False
        self._quick, self._slow = _Pace(LONGEST_SECONDS), _Pace()
        self._quick_version = self._slow_version = -1
        """What of the run the board has."""
        watch.reading = self._tell_reading

    def wake(self) -> None:
        """Somebody looks from now on."""
        self._wanted.set()

    def bring_up_to_date(self) -> None:
        """For somebody who looks once."""
        with self._turn:
            self._round()

    def stop(self) -> None:
        """One last round, then no more."""
        self._stop_now.set()
        self._wanted.set()

    def run(self) -> None:
        rounds = Attempts(self.board, "ledger")
        while not self._stop_now.is_set():
            if not self.board.watchers:
                self._wanted.wait()
            self._wanted.clear()
            self._stop_now.wait(LOOK_SECONDS if rounds.do(self.bring_up_to_date) else AGAIN_SECONDS)
        self._quick, self._slow = _Pace(), _Pace()
        if self._first:
            rounds.do(self.bring_up_to_date)
        self.board.close()

    def _round(self) -> None:
        now = time.monotonic()
        watch = self.watch
        # Whoever asks for something reads the ledger, too: not only what is read here is news.
        behind = watch.has_grown() or not self._quick_version == self._slow_version == watch.version
        if not (behind or watch.live):
            return
        if now >= self._quick.due:
            self._tell_quick()
        now = time.monotonic()
        idle = watch.live and now - self._slow.last > IDLE_SECONDS
        if (self._slow_version != watch.version or idle) and now >= self._slow.due:
            self._tell_slow()
            self._slow.took(now)
        self._first = True

    def _tell_quick(self) -> None:
        began = time.monotonic()
        with self.watch.lock:
            self.watch.refresh()
            if not self._first:
                give_back()
            found = quick_parts(self.watch)
            self._quick_version = self.watch.version
        self.board.publish({**found, "reading": None}, gone=QUICK)
        self._quick.took(began)

    def _tell_slow(self) -> None:
        view, version, steps = self.watch.view, self.watch.version, slow_steps(self.watch)
        found: dict[str, Any] = {}
        while self.watch.view is view:  # or another run has begun meanwhile
            with self.watch.lock:
                step = next(steps, None)
            if step is None:
                self.board.publish(found, gone=SLOW)
                self._slow_version = version
                return
            found |= step
            if self._first and time.monotonic() >= self._quick.due:
                self._tell_quick()

    def _tell_reading(self, offset: int) -> None:
        """While a large ledger is read for the first time."""
        if not self._first:
            self.board.publish({"reading": {"bytes": offset, "attempts": len(self.watch.view.attempts)}})
