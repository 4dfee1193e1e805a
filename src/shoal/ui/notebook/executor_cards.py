"""Executors and futures as sources of cards: what their hooks for notebooks call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from shoal.core.quantities import show_bytes, show_cores
from shoal.core.resources import FRACTION
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.future import CallFuture, failure_of, in_a_line
from shoal.execution.executor.tally import Busy, CallTally
from shoal.ledger.views.failures import Causes
from shoal.ui.notebook.card import Card, executor_card, futures_card
from shoal.ui.notebook.display import LiveDisplayThread
from shoal.ui.notebook.rendering import html_of


class ExecutorSource:
    """Holds the client and not the executor, which is to end when its program drops it."""

    def __init__(self, client: ExecutorClient) -> None:
        self._client = client
        self._seen: tuple[int, bool, int] | None = None

    def card(self) -> Card:
        """From what the engine has counted."""
        client = self._client
        self._seen = self._state()
        engine = client.engine
        over = client.is_over()
        if engine is None:
            return executor_card(_facts(client, 0.0), CallTally(), Busy(), {}, 1.0, over=over)
        cores, now, busy = engine.cores(), time.time(), engine.tally.busy.copy()
        if over:
            return executor_card(_facts(client, cores), engine.tally, busy, {}, cores, over=True)
        going = [(name, max(0.0, now - since)) for name, since in engine.working_since()]
        for name, age in going:
            busy.add(name, now - age, now)
        return executor_card(_facts(client, cores), engine.tally, busy, engine.running(), cores, going=going)

    def placeholder(self) -> Card:
        """Nothing here takes long."""
        return self.card()

    def has_changed(self) -> bool:
        """While calls run their time does."""
        return self._state() != self._seen

    def is_settled(self) -> bool:
        """All calls are over."""
        engine = self._client.engine
        return engine is None or self._client.is_over() or not engine.tally.open()

    def is_over(self) -> bool:
        return self._client.is_over()

    def _state(self) -> tuple[int, bool, int]:
        engine = self._client.engine
        going = engine is not None and not self.is_settled()
        version = engine.tally.version if engine is not None else -1
        return version, self._client.is_over(), int(time.monotonic() / 2) if going else 0


def _facts(client: ExecutorClient, cores: float) -> list[str]:
    if client.far:
        return [f"cluster {client.far}", *([show_cores(cores)] if cores else [])]
    own = client.node.get("cores") / FRACTION
    memory = client.node.get("memory")
    return [show_cores(own), *([show_bytes(memory)] if memory else []), "on this machine"]


class FuturesSource:
    """Futures of any kind; those that are done are looked at once."""

    def __init__(self, futures: Iterable[Future[Any]]) -> None:
        self._looking = threading.Lock()
        """The thread that draws and whoever prints it come at the same time."""
        self._open = list(futures)
        self._ended: dict[str, dict[str, int]] = {}
        self._causes = Causes()
        self._failed: dict[str, tuple[int, list[str]]] = {}
        """By cause: how many, and functions of some of them."""
        self._began = time.monotonic()
        for future in self._open:
            self._ended.setdefault(_name(future), {})

    def card(self) -> Card:
        """All of them by function and state."""
        with self._looking:
            return self._card()

    def _card(self) -> Card:
        still = []
        states: dict[str, dict[str, int]] = {}
        for future in self._open:
            if future.done():
                self._note(future)
            else:
                still.append(future)
                _count(states.setdefault(_name(future), {}), "running" if future.running() else "waiting")
        self._open = still
        both = {name: {**row, **states.get(name, {})} for name, row in self._ended.items()}
        failures = {self._causes.text(key): found for key, found in self._failed.items()}
        return futures_card(both, failures, time.monotonic() - self._began)

    def _note(self, future: Future[Any]) -> None:
        name = _name(future)
        error = failure_of(future)
        word = future.state() if isinstance(future, CallFuture) else _word(future, error)
        _count(self._ended[name], word)
        if error is not None and word == "failed":
            key = self._causes.add(in_a_line(error))
            number, names = self._failed.get(key, (0, []))
            self._failed[key] = (number + 1, names if name in names or len(names) >= 3 else [*names, name])

    def placeholder(self) -> Card:
        return futures_card({}, {}, 0.0)

    def has_changed(self) -> bool:
        return bool(self._open)

    def is_settled(self) -> bool:
        return all(future.done() for future in self._open)

    def is_over(self) -> bool:
        return self.is_settled()


def _name(future: Future[Any]) -> str:
    return future.name if isinstance(future, CallFuture) else type(future).__name__


def _word(future: Future[Any], error: BaseException | None) -> str:
    return "cancelled" if future.cancelled() else "done" if error is None else "failed"


def _count(row: dict[str, int], word: str) -> None:
    row[word] = row.get(word, 0) + 1


def executor_html(client: ExecutorClient) -> str:
    """As it is now."""
    return html_of(ExecutorSource(client).card())


def show_executor(client: ExecutorClient) -> None:
    """In a kernel: below the cell that runs, kept up to date until the executor ends."""
    live = client.live
    if not isinstance(live, LiveDisplayThread):
        live = client.live = LiveDisplayThread(ExecutorSource(client))
    live.show()
