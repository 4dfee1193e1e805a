"""`shoal.watch` and `shoal.start`: runs, executors and futures that display themselves in a notebook.

In a kernel the display goes on by itself (`live`). Elsewhere the same objects have `_repr_html_` and print as text.
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
"""A run that goes on is shown anew after so long, even if nothing has happened: its time goes on."""
_LOOK = 0.1
_SAID_BYTES = 2000

Name: TypeAlias = str | os.PathLike[str]


class WatchError(InputError):
    """What was asked to be shown cannot be; in a notebook its sentence stands alone, without a traceback."""

    @classmethod
    def of(cls, error: InputError) -> WatchError:
        """The same error, for a notebook."""
        return cls(error.message, file=error.file, line=error.line, remedy=error.remedy)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [str(self)]


class Watched:
    """Something that displays itself: live in a notebook, as HTML or as text elsewhere."""

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
        """Waits until it is over; false if it is not in time. What is displayed then shows the end.

        An interrupt ends the waiting and nothing else.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._source.is_over():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
        self._live.settle()
        return True


class RunSource:
    """One run of a workflow, from its ledger; with the process that runs it, if we have started that."""

    def __init__(self, workspace: Workspace, number: int | None = None, process: StartedRun | None = None) -> None:
        self.workspace = workspace
        self.process = process
        self.tell: Callable[[Card], None] | None = None
        """Shows something while a large ledger is read."""
        self._told = time.monotonic()
        self._watch = Watch(workspace, number, skip_idle=process is None)
        self._watch.reading = self._reading
        self._number: int | None = None
        """Of the run that we have started, once it has begun."""
        self._drawn = float("-inf")

    def card(self) -> Card:
        """Reads what the ledger has got since the last time."""
        with self._watch.lock:
            outcome, watch = self.outcome(), self._watch
            self._drawn = time.monotonic()
            if self._has_begun():
                return run_card(watch.view, watch.name, outcome, watch.now())
            if self.process is None:
                return empty_card(watch.name, outcome, "It is shown here as soon as it runs.")
            said = "" if outcome == "starting" else self.process.said() or "There was nothing to do."
            return empty_card(watch.name, outcome, said)

    def outcome(self) -> str:
        """What has become of the run, as far as the ledger has it now."""
        status = self.process.status() if self.process is not None else None
        with self._watch.lock:
            self._refresh()
            if self._has_begun():
                return self._watch.outcome()
        if self.process is None:
            return "never run"
        return "starting" if status is None else "ok" if status == 0 else "failed"

    def _refresh(self) -> None:
        """The run that we have started stays the one in question when there are later ones."""
        self._watch.refresh()
        if self.process is None:
            return
        if self._has_begun():
            self._number = self._watch.view.number
        elif self._number is not None and self._watch.number is None:
            self._watch = Watch(self.workspace, self._number)
            self._watch.refresh()

    def _has_begun(self) -> bool:
        """Whether there is the run in question, and not only earlier ones."""
        begun = self._watch.view.start
        return begun is not None and (self.process is None or begun.pid == self.process.pid)

    def placeholder(self) -> Card:
        return empty_card(self._watch.name, "reading", "The ledger is being read.")

    def _reading(self, offset: int) -> None:
        now = time.monotonic()
        if self.tell is not None and now - self._told >= PERIOD:
            self._told = now
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
        """A workflow that was never run is waited for; an earlier run does not change any more."""
        if self._watch.number is not None:
            with self._watch.lock:
                self._watch.refresh()
                return not self._watch.live
        return not self._is_going() and (self.process is not None or os.path.isfile(self.workspace.ledger))

    def progress(self) -> Progress | None:
        """How far the run is; None before it has begun."""
        with self._watch.lock:
            self._refresh()
            return progress(self._watch.view, self._watch.now()) if self._has_begun() else None


class StartedRun:
    """`shoal run` as a process of its own, which an interrupt or the end of the kernel does not touch."""

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
        """The exit status; None while it goes on."""
        found = self._process.poll()
        with self._lock:
            if found is not None and not self._output.closed:
                size = self._output.seek(0, os.SEEK_END)
                self._output.seek(max(0, size - _SAID_BYTES))
                self._said = self._output.read().decode(errors="replace").strip()
                self._output.close()
        return found

    def said(self) -> str:
        """The last of what it wrote; nothing while it goes on."""
        return self._said if self.status() is not None else ""


class RunWatch(Watched):
    """A run that goes on, is over, or will begin."""

    _source: RunSource

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        source.tell = self._live.tell

    @property
    def state(self) -> str:
        """`running`, `ok`, `failed`, `killed`, ...; `never run` and `starting` before there is a run."""
        return self._source.outcome()

    def progress(self) -> Progress | None:
        """Tasks by state, time so far, time left and its band; None before the run has begun."""
        return self._source.progress()

    def cancel(self) -> None:
        """Asks the run to stop: what is done is kept, and the next run goes on from there."""
        ask_to_cancel(self._source.workspace, [])


def watch(what: Name | Submitter | Future[Any] | Iterable[Future[Any]]) -> Watched:
    """Something that displays itself and goes on doing so: a workflow's run, an executor, or futures.

    `"flow.py"` is its last run, `"flow.py@2"` the second one.
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
        if not (hasattr(each, "done") and hasattr(each, "running")):  # those of other libraries are welcome
            raise WatchError(f"{each!r:.200} is no future", remedy="watch a workflow's file, an executor, or futures")
    return Watched(FuturesSource(futures))


def watch_run(word: str) -> RunWatch:
    """The run that a word names."""
    path, number = split_run(word)
    workspace = Workspace(path)
    if not os.path.isfile(workspace.workflow) and not os.path.isdir(workspace.directory):
        raise missing_workflow(path)
    if number is not None and not os.path.isfile(workspace.ledger):
        raise InputError(f"{path!r} has not been run yet", remedy="run it first")
    return RunWatch(RunSource(workspace, numbered_run(workspace, path, number)))


def start(path: Name, *words: str) -> RunWatch:
    """Begins `shoal run PATH WORDS...` beside this program, and watches it: targets, parameters and options.

    The run is a process of its own. It goes on when the kernel is interrupted or restarted; `cancel` stops it.
    """
    workflow = os.path.abspath(os.fspath(path))
    if not os.path.isfile(workflow):
        raise WatchError.of(missing_workflow(os.fspath(path)))
    return RunWatch(RunSource(Workspace(workflow), process=StartedRun(workflow, words)))
