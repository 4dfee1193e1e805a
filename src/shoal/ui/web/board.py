"""What is shown, in named parts with the version at which each changed last: who comes back gets what is new to him.

Parts are kept as JSON. Whether one has changed is whether its JSON has.
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
    """Written by one thread, waited for by many."""

    def __init__(self) -> None:
        self.epoch = os.urandom(4).hex()
        """Names this board: versions of another one mean nothing here."""
        self.version = 0
        self.watchers = 0
        self._parts: dict[str, tuple[int, bytes]] = {}
        self._changed = threading.Condition()
        self._closed = False

    def publish(self, parts: Mapping[str, Any], gone: tuple[str, ...] = ()) -> int:
        """Puts these parts up; of those whose name begins with a word in `gone`, the ones that are not among them are
        taken down. Returns how many have changed."""
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
        """Somebody comes, or goes."""
        with self._changed:
            self.watchers += more

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self, version: int, patience: float) -> int:
        """The version, once it is above this one or time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version or self._closed, patience)
            return self.version

    def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def since(self, version: int) -> tuple[int, bytes]:
        """The version, and as JSON the parts that have changed since another one; all of them since 0."""
        with self._changed:
            found = [
                _encoder.encode(name) + b":" + value
                for name, (changed, value) in self._parts.items()
                if changed > version and (version or value != GONE)
            ]
            return self.version, b"{" + b",".join(found) + b"}"

    def ident(self, version: int) -> str:
        """How a version is called by those who come back."""
        return f"{self.epoch}-{version}"

    def version_of(self, ident: str) -> int:
        """The version that somebody has; 0 if it is none of ours."""
        epoch, _, number = ident.partition("-")
        return int(number) if epoch == self.epoch and number.isdecimal() and len(number) < 18 else 0


AGAIN_SECONDS = 2.0
"""Pause after a failure."""


def in_words(error: Exception) -> str:
    """What the page says of it."""
    if isinstance(error, (ShoalError, OSError)):
        return f"This page cannot be updated at the moment: {error}"
    return f"This page is not up to date because of an internal error in Shoal: {type(error).__name__}: {error}"


class GuardedWork:
    """One piece of work, and the part of the board that tells of its failure."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._part = f"failed.{name}"
        self._told = ""

    def do(self, work: Callable[[], None]) -> bool:
        """Does it; false if it has failed. The top of a thread: without this it would end, and nobody would know."""
        try:
            work()
        except Exception as error:
            self._tell(error)
            return False
        if self._told:
            self._told = ""
            self._board.publish({self._part: None})
        return True

    def _tell(self, error: Exception) -> None:
        told = in_words(error)
        if told != self._told and not isinstance(error, (ShoalError, OSError)):
            traceback.print_exception(error)  # once, for whoever mends it
        self._told = told
        self._board.publish({self._part: told})


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


VERSION = 1
"""Of the interface for programs; it changes when the meaning of an answer does."""
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
Query = Mapping[str, str]


class Reply(msgspec.Struct, frozen=True):
    """What is sent back."""

    body: bytes
    type: str = JSON
    status: int = 200


class RefusedRequest(Exception):  # noqa: N818  an answer, not an error of ours
    """Something was asked that there is not, or wrongly."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status

    def reply(self) -> Reply:
        return Reply(msgspec.json.encode({"error": str(self)}), status=self.status)


def json_reply(value: Any) -> Reply:
    return Reply(msgspec.json.encode(value))


def parts_reply(board: Board) -> Reply:
    """All parts of a page, for somebody who asks once."""
    version, parts = board.since(0)
    return Reply(b'{"version":%d,"as_of":%d,"parts":%b}' % (VERSION, version, parts))


class Refreshing(Protocol):
    """The thread that keeps a board up to date."""

    def wake(self) -> None:
        """Somebody looks from now on."""

    def stop(self) -> None:
        """One last round, then no more."""

    def join(self, timeout: float | None = None) -> None: ...


class PageSource(Protocol):
    """What is shown."""

    @property
    def board(self) -> Board: ...

    @property
    def refresher(self) -> Refreshing: ...

    def prepare(self) -> None:
        """Does beforehand what is asked for first."""

    def answer(self, path: str, query: Query) -> Reply:
        """The answer to `/api/v1/PATH?QUERY`."""

    def metrics(self) -> Reply: ...
