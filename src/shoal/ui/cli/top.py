"""`shoal top`: shows a run full-screen in the terminal, live or finished."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from shoal.core.quantities import show_bytes
from shoal.errors import InputError
from shoal.ui.cli.parser import CommandParser

if TYPE_CHECKING:
    from shoal.ui.cli.screen import Screen
    from shoal.ui.top.model import TopModel
    from shoal.ui.top.tables import Table, TopView
    from shoal.ui.top.terminal import FullScreen
    from shoal.ui.top.view import Window
    from shoal.ui.web.watch import Watch

SUMMARY = """Shows a run in the terminal, full screen: progress and the time left, cores and memory over time, the
throttle, the critical path, and below a table of categories (c), tasks (t), running tasks (r), failures (f) or nodes
(n). Arrow keys select a row, Enter opens it, s sorts, ? lists all keys, q quits. It also shows finished runs. RUN is a
workflow file: its last run that executed tasks is shown; FILE@2 is its second run."""
USAGE = "[RUN]"
EXAMPLE = "shoal top flow.py"
REDRAW_SECONDS = 0.5
NARROWEST, LOWEST = 10, 3


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.execution.run_selection import numbered_run, split_run
    from shoal.ledger.workspace import Workspace
    from shoal.ui.cli.screen import Screen
    from shoal.ui.cli.workflow_places import choose_workflow
    from shoal.ui.top.terminal import FullScreen
    from shoal.ui.web.watch import Watch

    path, number = split_run(arguments.run if arguments.run is not None else choose_workflow(None))
    workspace = Workspace(choose_workflow(path))
    screen = Screen(sys.stdout)
    _check_terminal(screen)
    if number is not None:
        number = numbered_run(workspace, path, number)
    with FullScreen(screen) as full:
        return _show(Watch(workspace, number, skip_idle=True), screen, full)


def _check_terminal(screen: Screen) -> None:
    """Raises an error if the terminal cannot show a full screen."""
    import os

    remedy = "'shoal status' prints the state of a run"
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError("'shoal top' needs a terminal", remedy=remedy)
    if not screen.live:
        kind = os.environ.get("TERM", "")
        why = f"TERM is {kind}" if kind else "TERM is not set"
        raise InputError(f"this terminal does not support full-screen display: {why}", remedy=remedy)


def _show(watch: Watch, screen: Screen, full: FullScreen) -> int:
    """Runs until q is pressed or the terminal is gone."""
    from shoal.ui.top.model import TopModel
    from shoal.ui.top.tables import TopView

    model = TopModel(watch, full.wake)
    model.start()
    top = _Top(model, TopView(), screen)
    try:
        while not top.place.over and not full.stopped:
            if model.failure is not None:
                raise model.failure
            columns, height = screen.size()
            if not full.draw(top.lines(max(NARROWEST, columns - 1), max(LOWEST, height))):
                break
            for key in full.keys(REDRAW_SECONDS):
                top.press(key)
                if key == "redraw":
                    full.forget()
    finally:
        model.close()
    return full.stopped


class _Top:
    """The current screen content, from the model and the user's position in it."""

    def __init__(self, model: TopModel, place: TopView, screen: Screen) -> None:
        self.model, self.place, self.screen = model, place, screen
        self._blocks = screen.can_show("█▒░▁▾")

    def _table(self) -> Table:
        from shoal.ui.top.tables import Table, table_of

        if self.model.parts.get("progress") is None:
            return Table([], [])
        return table_of(self.place.view, self.model.parts).sorted_by(self.place.order.get(self.place.view))

    def press(self, key: str) -> None:
        """Handles one key."""
        place, before = self.place, self.place.task
        place.press(key, self._table())
        listing = (place.category, place.state) if place.view == "t" else None
        if listing != self.model.listing:
            self.model.listing = listing
            self.model.parts = {name: part for name, part in self.model.parts.items() if name != "tasks"}
            self.model.refresh()
        if place.task is not None and place.task != before:
            found, _ = self.model.task(place.task)
            if found is None:
                place.task = None
            else:
                self.model.forget(place.task)

    def lines(self, width: int, height: int) -> list[str]:
        """All lines of the screen."""
        from shoal.ui.top.view import Window, lines

        window = Window(width, height, self.screen.paint, self._blocks)
        if not self.model.parts:
            return [f"reading the ledger: {show_bytes(self.model.read)}"[:width]]
        if self.place.task is not None and not self.place.help:
            return self._task(self.place.task, window)
        return lines(self.model.parts, self._table(), self.place, window)

    def _task(self, task: int, window: Window) -> list[str]:
        from shoal.ui.top.view import fitted, task_lines

        found, output = self.model.task(task)
        if found is None:
            self.place.task = None
            return self.lines(window.width, window.height)
        elapsed = (self.model.parts.get("progress") or {}).get("elapsed", 0.0)
        return fitted(task_lines(found, output, self.model.description(task, found), elapsed), self.place, window)
