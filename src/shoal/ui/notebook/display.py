"""The thread that updates a notebook display, and the transport of cards to the front ends of a kernel.

Theory of operation. An output of a cell has a display id; new content that the kernel sends under this id replaces the
output wherever it is shown, also in the saved notebook. The thread reads its source at most twice a second, sends only
changes, spends at most a quarter of the time on it, and ends when the source is over. It runs in an empty context, so
that its messages belong to the cell that runs now: programs that execute notebooks listen to that cell only. At the end
of each cell the display of a settled source is brought up to date, so that a saved notebook contains the last state.
Interrupting the kernel does not affect the thread; it ends with the kernel.

IPython is never imported here: where there is a kernel, it is already loaded.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Protocol

from shoal.core.quantities import show_bytes, show_cores
from shoal.core.resources import FRACTION
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.future import CallFuture, failure_of, in_a_line
from shoal.execution.executor.tally import CallTally, WorkerTime
from shoal.ledger.views.failures import Causes
from shoal.ui.notebook.card import Card, executor_card, futures_card
from shoal.ui.notebook.rendering import html_of, text_of

PERIOD = 0.5
LAZIEST = 1.0
"""Longest interval between two reads of a source without activity."""
SHARE = 3.0
"""Pause after each read, as a multiple of its duration."""
FIRST = 0.3
"""How long a cell waits for its first content before it shows a placeholder."""
LAST = 2.0
"""How long the end of a cell waits for the last content of a settled source."""
MOST_DISPLAYS = 8
"""Maximum number of displays of one source; earlier outputs are no longer updated."""


class DisplaySource(Protocol):
    """Something to display. Called by the display thread, and by other threads where there is none."""

    def card(self) -> Card:
        """The current card; may take long."""

    def placeholder(self) -> Card:
        """A card that is available at once."""

    def has_changed(self) -> bool:
        """Whether a different card is to be expected; returns at once."""

    def is_settled(self) -> bool:
        """Whether nothing will happen without further action of the user; returns at once."""

    def is_over(self) -> bool:
        """Whether nothing will ever happen again."""


def kernel() -> Any:
    """The shell of the current kernel, or None."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    return shell if getattr(shell, "kernel", None) is not None else None


def bundle_of(card: Card) -> dict[str, str]:
    """The representations from which a front end chooses."""
    return {"text/html": html_of(card), "text/plain": text_of(card)}


class LiveDisplayThread:
    """All outputs that show one source."""

    def __init__(self, source: DisplaySource) -> None:
        self._source = source
        self._turn = threading.Condition()
        """Protects the following attributes, and sending: an output must exist before it is updated."""
        self._displays: list[str] = []
        self._thread: threading.Thread | None = None
        self._bundle: dict[str, str] | None = None
        """The current content of all displays."""
        self._wanted = self._served = 0
        """Number of requested reads, and of those completed."""
        self._asked = threading.Event()

    def show(self) -> None:
        """Shows the source below the running cell, and keeps it up to date; only in a kernel."""
        shell = kernel()
        if shell is None:
            raise NotImplementedError  # tells IPython to try other representations
        with self._turn:
            if self._thread is None:
                self._start(shell)
            self._ask(FIRST)
            display = uuid.uuid4().hex
            self._displays = [*self._displays[1 - MOST_DISPLAYS :], display]
            shown = self._bundle if self._bundle is not None else bundle_of(self._source.placeholder())
            _send(shell, shown, display, update=False)

    def settle(self, patience: float = LAST) -> None:
        """If the source is settled, waits until the outputs show its state, up to `patience` seconds."""
        if self._thread is not None and self._source.is_settled():
            with self._turn:
                self._ask(patience)

    def tell(self, card: Card) -> None:
        """Shows a placeholder card until the source has computed its first one."""
        shell = kernel()
        if shell is not None and self._bundle is None:
            with self._turn:
                for display in self._displays:
                    _send(shell, bundle_of(card), display, update=True)

    def _start(self, shell: Any) -> None:
        _attend_to(shell)
        _going[id(self)] = self
        self._thread = threading.Thread(
            target=Context().run, args=(self._follow, shell), name="shoal-display", daemon=True
        )
        self._thread.start()

    def _ask(self, patience: float) -> None:
        """Requests a read by the thread, and waits for it."""
        self._wanted += 1
        number = self._wanted
        self._asked.set()
        self._turn.wait_for(lambda: self._served >= number or self._thread is None, patience)

    def _follow(self, shell: Any) -> None:
        pause, over = PERIOD, False
        try:
            while not over:
                began = time.monotonic()
                self._asked.clear()
                over, changed = self._look(shell)
                if not over:
                    pause = PERIOD if changed else min(2 * pause, LAZIEST)
                    self._asked.wait(max(pause, SHARE * (time.monotonic() - began)))
        finally:
            with self._turn:
                self._thread = None
                _going.pop(id(self), None)
                self._turn.notify_all()

    def _look(self, shell: Any) -> tuple[bool, bool]:
        """Sends changes; returns whether the source is over, and whether anything changed."""
        wanted = self._wanted
        over = self._source.is_over()  # checked first, so that the following read sees the end
        changed = self._bundle is None or over or self._source.has_changed()
        bundle = bundle_of(self._source.card()) if changed else self._bundle
        with self._turn:
            if bundle is not None and bundle != self._bundle:
                self._bundle = bundle
                for display in self._displays:
                    _send(shell, bundle, display, update=True)
            self._served = wanted
            self._turn.notify_all()
        return over, changed


_going: dict[int, LiveDisplayThread] = {}
"""Displays with a running thread."""
_attended: list[Any] = []
"""The shell whose end-of-cell event is registered."""


def _attend_to(shell: Any) -> None:
    if shell not in _attended:
        _attended.append(shell)
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(_: object) -> None:
    deadline = time.monotonic() + LAST
    for live in list(_going.values()):
        live.settle(max(0.0, deadline - time.monotonic()))


def _send(shell: Any, bundle: dict[str, str], display: str, *, update: bool) -> None:
    shell.display_pub.publish(bundle, {}, transient={"display_id": display}, update=update)


class ExecutorSource:
    """An executor as a display source. It references the client and not the executor, which ends when its program drops
    it."""

    def __init__(self, client: ExecutorClient) -> None:
        self._client = client
        self._seen: tuple[int, bool, int] | None = None

    def card(self) -> Card:
        """Builds the card from the executor's counters."""
        client = self._client
        self._seen = self._state()
        engine = client.loop
        over = client.is_over()
        if engine is None:
            return executor_card(_facts(client, 0.0), CallTally(), WorkerTime(), {}, 1.0, over=over)
        cores, now, busy = engine.cores(), time.time(), engine.tally.busy.copy()
        if over:
            return executor_card(_facts(client, cores), engine.tally, busy, {}, cores, over=True)
        going = [(name, max(0.0, now - since)) for name, since in engine.working_since()]
        for name, age in going:
            busy.add(name, now - age, now)
        return executor_card(_facts(client, cores), engine.tally, busy, engine.running(), cores, going=going)

    def placeholder(self) -> Card:
        """The card itself, because it is computed quickly."""
        return self.card()

    def has_changed(self) -> bool:
        """While calls run, their durations change."""
        return self._state() != self._seen

    def is_settled(self) -> bool:
        """Whether all calls are over."""
        engine = self._client.loop
        return engine is None or self._client.is_over() or not engine.tally.open()

    def is_over(self) -> bool:
        return self._client.is_over()

    def _state(self) -> tuple[int, bool, int]:
        engine = self._client.loop
        going = engine is not None and not self.is_settled()
        version = engine.tally.version if engine is not None else -1
        return version, self._client.is_over(), int(time.monotonic() / 2) if going else 0


def _facts(client: ExecutorClient, cores: float) -> list[str]:
    if client.cluster:
        return [f"cluster {client.cluster}", *([show_cores(cores)] if cores else [])]
    own = client.node.get("cores") / FRACTION
    memory = client.node.get("memory")
    return [show_cores(own), *([show_bytes(memory)] if memory else []), "on this machine"]


class FuturesSource:
    """Futures of any kind as a display source. Each finished future is read once."""

    def __init__(self, futures: Iterable[Future[Any]]) -> None:
        self._looking = threading.Lock()
        """The display thread and a thread that prints may call `card` at the same time."""
        self._open = list(futures)
        self._ended: dict[str, dict[str, int]] = {}
        self._causes = Causes()
        self._failed: dict[str, tuple[int, list[str]]] = {}
        """By cause: the number of failures, and functions of some of them."""
        self._began = time.monotonic()
        for future in self._open:
            self._ended.setdefault(_name(future), {})

    def card(self) -> Card:
        """All futures by function and state."""
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
    """The current state."""
    return html_of(ExecutorSource(client).card())


def show_executor(client: ExecutorClient) -> None:
    """In a kernel: shows the executor below the running cell, and updates it until the executor ends."""
    live = client.live
    if not isinstance(live, LiveDisplayThread):
        live = client.live = LiveDisplayThread(ExecutorSource(client))
    live.show()
