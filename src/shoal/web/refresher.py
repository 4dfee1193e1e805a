"""The thread that keeps the board up to date: it looks at the ledger while anybody looks at the board.

Quick parts follow within half a second. What takes a look at every attempt is done as often as it is cheap: a large run
is drawn anew every few seconds, and never more than a quarter of the time is spent on that.
"""

from __future__ import annotations

import threading
import time

from shoal.web.board import Board
from shoal.web.parts import SLOW, quick_parts, slow_parts
from shoal.web.thrift import give_back
from shoal.web.watch import Watch

LOOK_SECONDS = 0.1
LEAST_SECONDS = 0.4
IDLE_SECONDS = 2.0
"""A run that goes on is drawn anew after so long, even if nothing was written."""
SHARE = 3.0
"""Pause after each round, in times of what it took."""


class _Pace:
    """When something is to be done again, by what it took the last time."""

    def __init__(self) -> None:
        self.due = 0.0
        self.last = float("-inf")

    def took(self, began: float) -> None:
        self.last = time.monotonic()
        self.due = self.last + max(LEAST_SECONDS - (self.last - began), SHARE * (self.last - began))


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
        self._quick, self._slow = _Pace(), _Pace()
        self._behind = True
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
        while not self._stop_now.is_set():
            if not self.board.watchers:
                self._wanted.wait()
            self._wanted.clear()
            with self._turn:
                self._round()
            self._stop_now.wait(LOOK_SECONDS)
        self._quick, self._slow = _Pace(), _Pace()
        if self._first:
            self.bring_up_to_date()
        self.board.close()

    def _round(self) -> None:
        now = time.monotonic()
        watch = self.watch
        idle = watch.live and now - self._slow.last > IDLE_SECONDS
        if not (self._behind or watch.has_grown() or idle or not self._first or watch.live):
            return
        if now >= self._quick.due:
            with watch.lock:
                self._behind |= watch.refresh()
                if not self._first:
                    give_back()
                found = quick_parts(watch)
            self.board.publish({**found, "reading": None})
            self._quick.took(now)
        now = time.monotonic()
        if (self._behind or idle) and now >= self._slow.due:
            with watch.lock:
                found = slow_parts(watch)
            self.board.publish(found, gone=SLOW)
            self._slow.took(now)
            self._behind = False
        self._first = True

    def _tell_reading(self, offset: int) -> None:
        """While a large ledger is read for the first time."""
        if not self._first:
            self.board.publish({"reading": {"bytes": offset, "attempts": len(self.watch.view.attempts)}})
