"""`shoal.watch` and `shoal.start`: runs, executors and futures that display themselves in a notebook.

In a kernel the display is updated continuously (`display`). Elsewhere the same objects have `_repr_html_` and print as
text.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeAlias

from shoal.core.quantities import show_bytes
from shoal.errors import InputError
from shoal.execution.executor.executor import Submitter
from shoal.execution.requests import ask_to_cancel
from shoal.execution.run_selection import numbered_run, split_run
from shoal.execution.workflow_loader import missing_workflow
from shoal.ledger.views.progress import Progress, progress
from shoal.ledger.workspace import Workspace
from shoal.ui.notebook.card import Card
from shoal.ui.notebook.display import PERIOD, DisplaySource, ExecutorSource, FuturesSource, LiveDisplayThread
from shoal.ui.notebook.rendering import html_of, text_of
from shoal.ui.notebook.run_cards import empty_card, run_card
from shoal.ui.web.watch import Watch

REDRAWN = 2.0
"""How often an active run is shown anew even without events, because its elapsed time grows."""
_LOOK = 0.1
_SAID_BYTES = 2000

Name: TypeAlias = str | os.PathLike[str]


class WatchError(InputError):
    """The object cannot be displayed; a notebook shows only the sentence, without a traceback."""

    @classmethod
    def of(cls, error: InputError) -> WatchError:
        """Converts the error for a notebook."""
        return cls(error.message, file=error.file, line=error.line, remedy=error.remedy)

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of a traceback."""
        return [str(self)]


class Watched:
    """An object that displays itself: live in a notebook, as HTML or as text elsewhere."""

    def __init__(self, source: DisplaySource) -> None:
        self._source = source
        self._live = LiveDisplayThread(source)

    def _ipython_display_(self) -> None:
        self._live.show()

    def _repr_html_(self) -> str:
        return html_of(self._source.card())

    def __repr__(self) -> str:
        return text_of(self._source.card())

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the source is over; returns False after `timeout` seconds. The display then shows the final
        state.

        An interrupt ends the wait and nothing else.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._source.is_over():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        self._live.settle()
        return True


class RunSource:
    """One run of a workflow, from its ledger; with its process, if this program started it."""

    def __init__(self, workspace: Workspace, number: int | None = None, process: StartedRun | None = None) -> None:
        self.workspace = workspace
        self.process = process
        self.tell: Callable[[Card], None] | None = None
        """Shows the progress while a large ledger is read."""
        self._last_report = time.monotonic()
        self._watch = Watch(workspace, number, skip_idle=process is None)
        self._watch.reading = self._reading
        self._number: int | None = None
        """Number of the run started by this program, once it has begun."""
        self._drawn = float("-inf")

    def card(self) -> Card:
        """Reads what was added to the ledger and builds the card."""
        with self._watch.lock:
            outcome, watch = self.outcome(), self._watch
            self._drawn = time.monotonic()
            if self._has_begun():
                return run_card(watch.view, watch.name, outcome, watch.now())
            if self.process is None:
                return empty_card(watch.name, outcome, "It is shown here as soon as it runs.")
            said = "" if outcome == "starting" else self.process.last_output() or "There was nothing to do."
            return empty_card(watch.name, outcome, said)

    def outcome(self) -> str:
        """State or outcome of the run, as far as the ledger is known."""
        status = self.process.status() if self.process is not None else None
        with self._watch.lock:
            self._refresh()
            if self._has_begun():
                return self._watch.outcome()
        if self.process is None:
            return "never run"
        return "starting" if status is None else "ok" if status == 0 else "failed"

    def _refresh(self) -> None:
        """Refreshes the model; a run started by this program stays selected when later runs begin."""
        self._watch.refresh()
        if self.process is None:
            return
        if self._has_begun():
            self._number = self._watch.view.number
        elif self._number is not None and self._watch.number is None:
            self._watch = Watch(self.workspace, self._number)
            self._watch.refresh()

    def _has_begun(self) -> bool:
        """Whether the selected run has begun, and not only earlier ones."""
        begun = self._watch.view.start
        return begun is not None and (self.process is None or begun.pid == self.process.pid)

    def placeholder(self) -> Card:
        return empty_card(self._watch.name, "reading", "The ledger is being read.")

    def _reading(self, offset: int) -> None:
        now = time.monotonic()
        if self.tell is not None and now - self._last_report >= PERIOD:
            self._last_report = now
            self.tell(empty_card(self._watch.name, "reading", f"{show_bytes(offset)} of the ledger read"))

    def has_changed(self) -> bool:
        return self._watch.has_grown() or (self._is_going() and time.monotonic() - self._drawn >= REDRAWN)

    def _is_going(self) -> bool:
        if self.process is not None:
            return self.process.status() is None
        return self.workspace.holder() is not None

    def is_settled(self) -> bool:
        return not self._is_going()

    def is_over(self) -> bool:
        """A workflow that was never run is awaited; an earlier run no longer changes."""
        if self._watch.number is not None:
            with self._watch.lock:
                self._watch.refresh()
                return not self._watch.live
        return not self._is_going() and (self.process is not None or os.path.isfile(self.workspace.ledger))

    def progress(self) -> Progress | None:
        """Progress of the run; None before it has begun."""
        with self._watch.lock:
            self._refresh()
            return progress(self._watch.view, self._watch.now()) if self._has_begun() else None


class StartedRun:
    """`shoal run` as a separate process, which an interrupt or the end of the kernel does not affect."""

    def __init__(self, path: str, words: Iterable[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._said = ""
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shoal", "run", path, *words, "--quiet"],
            cwd=os.path.dirname(path),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        found = self._process.poll()
        with self._lock:
            if found is not None and not self._output.closed:
                size = self._output.seek(0, os.SEEK_END)
                self._output.seek(max(0, size - _SAID_BYTES))
                self._said = self._output.read().decode(errors="replace").strip()
                self._output.close()
        return found

    def last_output(self) -> str:
        """The end of its output; empty while the process runs."""
        return self._said if self.status() is not None else ""


class RunWatch(Watched):
    """A run that is active, over, or about to begin."""

    _source: RunSource

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        source.tell = self._live.tell

    @property
    def state(self) -> str:
        """`running`, `ok`, `failed`, `killed`, ...; `never run` and `starting` before there is a run."""
        return self._source.outcome()

    def progress(self) -> Progress | None:
        """Tasks by state, elapsed time, time left and its range; None before the run has begun."""
        return self._source.progress()

    def cancel(self) -> None:
        """Asks the run to stop: finished tasks are kept, and the next run continues."""
        ask_to_cancel(self._source.workspace, [])


def watch(what: Name | Submitter | Future[Any] | Iterable[Future[Any]]) -> Watched:
    """Returns an object that displays a workflow's run, an executor, or futures, and keeps its display up to date.

    `"flow.py"` is its latest run, `"flow.py@2"` the second one.
    """
    if isinstance(what, str | os.PathLike):
        try:
            return watch_run(os.fspath(what))
        except InputError as error:
            raise WatchError.of(error) from None
    if isinstance(what, Submitter):
        return Watched(ExecutorSource(what._client))
    futures = [what] if isinstance(what, Future) else list(what) if isinstance(what, Iterable) else [what]
    for each in futures:
        if not (hasattr(each, "done") and hasattr(each, "running")):  # futures of other libraries are accepted, too
            raise WatchError(f"{each!r:.200} is not a future", remedy="pass a workflow file, an executor, or futures")
    return Watched(FuturesSource(futures))


def watch_run(word: str) -> RunWatch:
    """Returns the watch of the run that a word names."""
    path, number = split_run(word)
    workspace = Workspace(path)
    if not os.path.isfile(workspace.workflow) and not os.path.isdir(workspace.directory):
        raise missing_workflow(path)
    if number is not None and not os.path.isfile(workspace.ledger):
        raise InputError(f"{path!r} has not been run yet", remedy="run it first")
    return RunWatch(RunSource(workspace, numbered_run(workspace, path, number)))


def start(path: Name, *words: str) -> RunWatch:
    """Starts `shoal run PATH WORDS...` as a separate process, and watches it; words are targets, parameters and
    options.

    The run goes on when the kernel is interrupted or restarted; `cancel` stops it.
    """
    workflow = os.path.abspath(os.fspath(path))
    if not os.path.isfile(workflow):
        raise WatchError.of(missing_workflow(os.fspath(path)))
    return RunWatch(RunSource(Workspace(workflow), process=StartedRun(workflow, words)))
