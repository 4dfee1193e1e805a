"""Publishing for live pages: a board of versioned JSON parts, the thread that refreshes it, and the API's interfaces.

A client that names the version it has gets only the parts that changed since. A part has changed if its JSON has.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from shoal.errors import ShoalError
from shoal.ui.web.companion import give_back
from shoal.ui.web.run_page import QUICK, SLOW, quick_parts, slow_steps
from shoal.ui.web.watch import Watch

_encoder = msgspec.json.Encoder()
GONE = b"null"


class Board:
    """Versioned parts, written by one thread and awaited by many."""

    def __init__(self) -> None:
        self.epoch = os.urandom(4).hex()
        """Identifies this board: versions of another board have no meaning here."""
        self.version = 0
        self.watchers = 0
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, parts: Mapping[str, Any], gone: tuple[str, ...] = ()) -> int:
        """Publishes `parts` and withdraws published parts with a prefix in `gone` that are not in `parts`. Returns the
        number of changed parts."""
        fresh = {name: _encoder.encode(value) for name, value in parts.items()}
        with self._changed:
            for name, (_, value) in self._parts.items():
                if name not in fresh and value != GONE and name.startswith(gone):
                    fresh[name] = GONE
            changed = {name: value for name, value in fresh.items() if self._parts.get(name, (0, b""))[1] != value}
            if changed:
                self.version += 1
                self._parts |= {name: (self.version, value) for name, value in changed.items()}
                self._changed.notify_all()
        return len(changed)

    def watch(self, more: int) -> None:
        """Changes the number of watching clients."""
        with self._changed:
            self.watchers += more

    def close(self) -> None:
        """Declares that nothing more will be published."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self, version: int, patience: float) -> int:
        """Waits until the version exceeds this one or the time is over; returns the version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version or self._closed, patience)
            return self.version

    def pause(self, seconds: float) -> None:
        """Waits, but not after the board is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def since(self, version: int) -> tuple[int, bytes]:
        """Returns the version, and as JSON the parts that changed since the given version; all parts since 0."""
        with self._changed:
            found = [
                _encoder.encode(name) + b":" + value
                for name, (changed, value) in self._parts.items()
                if changed > version and (version or value != GONE)
            ]
            return self.version, b"{" + b",".join(found) + b"}"

    def ident(self, version: int) -> str:
        """The event id of a version, with which a client reconnects."""
        return f"{self.epoch}-{version}"

    def version_of(self, ident: str) -> int:
        """The version for an event id; 0 if the id is from another board."""
        epoch, _, number = ident.partition("-")
        return int(number) if epoch == self.epoch and number.isdecimal() and len(number) < 18 else 0


AGAIN_SECONDS = 2.0
"""Pause after a failure."""


def error_text(error: Exception) -> str:
    """The error message shown on the page."""
    if isinstance(error, (ShoalError, OSError)):
        return f"This page cannot be updated at the moment: {error}"
    return f"This page is not up to date because of an internal error in Shoal: {type(error).__name__}: {error}"


class GuardedWork:
    """Runs one kind of work, and publishes its failures as a part of the board."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._part = f"failed.{name}"
        self._reported = ""

    def do(self, work: Callable[[], None]) -> bool:
        """Runs `work`; returns whether it succeeded.

        The outermost frame of a thread: without it, an exception would end the thread unnoticed.
        """
        try:
            work()
        except Exception as error:
            self._report(error)
            return False
        if self._reported:
            self._reported = ""
            self._board.publish({self._part: None})
        return True

    def _report(self, error: Exception) -> None:
        message = error_text(error)
        if message != self._reported and not isinstance(error, (ShoalError, OSError)):
            traceback.print_exception(error)  # once, for the developers
        self._reported = message
        self._board.publish({self._part: message})


LOOK_SECONDS = 0.1
LEAST_SECONDS = 0.4
IDLE_SECONDS = 2.0
"""How often an active run is drawn anew even if nothing was written."""
SHARE = 9.0
"""Pause after each round, as a multiple of its duration."""
LONGEST_SECONDS = 0.4
"""Maximum pause after the quick parts, so that changes become visible within a second."""


class _Pace:
    """Schedules repetitions according to the duration of the last one."""

    def __init__(self, longest: float = float("inf")) -> None:
        self.due = 0.0
        self.last = float("-inf")
        self._longest = longest

    def took(self, began: float) -> None:
        self.last = time.monotonic()
        pause = max(LEAST_SECONDS - (self.last - began), SHARE * (self.last - began))
        self.due = self.last + min(pause, self._longest)


class Refresher(threading.Thread):
    """Thread that reads the ledger and publishes parts until it is stopped."""

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
        """The versions of the run that the board shows."""
        watch.reading = self._publish_reading

    def wake(self) -> None:
        """Called for each request: wakes the thread at the first one."""
        self._wanted.set()

    def bring_up_to_date(self) -> None:
        """Refreshes the board for a client that reads it once."""
        with self._turn:
            self._round()

    def stop(self) -> None:
        """Updates the board one last time, then stops."""
        self._stop_now.set()
        self._wanted.set()

    def run(self) -> None:
        rounds = GuardedWork(self.board, "ledger")
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
        # Request handlers read the ledger, too, so the version may have changed without a read here.
        behind = watch.has_grown() or not self._quick_version == self._slow_version == watch.version
        if not (behind or watch.live):
            return
        if now >= self._quick.due:
            self._publish_quick()
        now = time.monotonic()
        idle = watch.live and now - self._slow.last > IDLE_SECONDS
        if (self._slow_version != watch.version or idle) and now >= self._slow.due:
            self._publish_slow()
            self._slow.took(now)
        self._first = True

    def _publish_quick(self) -> None:
        began = time.monotonic()
        with self.watch.lock:
            self.watch.refresh()
            if not self._first:
                give_back()
            found = quick_parts(self.watch)
            self._quick_version = self.watch.version
        self.board.publish({**found, "reading": None}, gone=QUICK)
        self._quick.took(began)

    def _publish_slow(self) -> None:
        view, version, steps = self.watch.view, self.watch.version, slow_steps(self.watch)
        found: dict[str, Any] = {}
        while self.watch.view is view:  # otherwise another run has begun
            with self.watch.lock:
                step = next(steps, None)
            if step is None:
                self.board.publish(found, gone=SLOW)
                self._slow_version = version
                return
            found |= step
            if self._first and time.monotonic() >= self._quick.due:
                self._publish_quick()

    def _publish_reading(self, offset: int) -> None:
        """Publishes the progress while a large ledger is read for the first time."""
        if not self._first:
            self.board.publish({"reading": {"bytes": offset, "attempts": len(self.watch.view.attempts)}})


VERSION = 1
"""Version of the interface for programs; it changes when the meaning of a reply changes."""
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
Query = Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """An HTTP reply."""

    body: bytes
    type: str = JSON
    status: int = 200


class RefusedRequest(Exception):  # noqa: N818  a reply, not an internal error
    """The request is invalid, or names something that does not exist."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status

    def reply(self) -> Reply:
        return Reply(msgspec.json.encode({"error": str(self)}), status=self.status)


def json_reply(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))


def parts_reply(board: Board) -> Reply:
    """All parts of a page, for a client that reads it once."""
    version, parts = board.since(0)
    return Reply(b'{"version":%d,"as_of":%d,"parts":%b}' % (VERSION, version, parts))


class Refreshing(Protocol):
    """A thread that keeps a board up to date."""

    def wake(self) -> None:
        """Called for each request: wakes the thread at the first one."""

    def stop(self) -> None:
        """Performs one last round, then ends."""

    def join(self, timeout: float | None = None) -> None: ...


class PageSource(Protocol):
    """What a server shows: a run or a cluster."""

    @property
    def board(self) -> Board: ...

    @property
    def refresher(self) -> Refreshing: ...

    def prepare(self) -> None:
        """Computes in advance what clients request first."""

    def answer(self, path: str, query: Query) -> Reply:
        """The reply to `/api/v1/PATH?QUERY`."""

    def metrics(self) -> Reply: ...
