"""`shoal top`: a run in the terminal, full screen, live or afterwards."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.cli.parser import CommandParser
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.cli.screen import Screen
    from shoal.web.watch import Watch

SUMMARY = """Shows a run in the terminal, full screen: progress, cores and memory over time, and below a table of
categories (c), nodes (n), running tasks (r) or failures (f). It follows the run until q is pressed, and shows finished
runs, too. RUN is a workflow file, whose last run is meant; FILE@2 is its second run."""
USAGE = "[RUN]"
EXAMPLE = "shoal top flow.py"
_REDRAW_SECONDS = 0.5
_SHARE = 3.0
"""What takes a look at every attempt is done anew after so many times as long as it took."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the workflow file, with @NUMBER for one of its runs")


def execute(arguments: argparse.Namespace) -> int:
    from shoal.cli.places import choose_workflow
    from shoal.cli.screen import Screen
    from shoal.engine.workspace import Workspace
    from shoal.report.choose import numbered_run, split_run
    from shoal.web.watch import Watch

    path, number = split_run(arguments.run if arguments.run is not None else choose_workflow(None))
    workspace = Workspace(path)
    if not os.path.isfile(path) and not os.path.isdir(workspace.directory):
        raise InputError(f"{path!r} does not exist", remedy="name the workflow's file")
    screen = Screen(sys.stdout)
    if not screen.live or not sys.stdin.isatty():
        raise InputError("'shoal top' needs a terminal", remedy="'shoal status' prints how a run stands")
    if number is not None:
        number = numbered_run(workspace, path, number)
    with _raw_terminal() as woken:
        _show(Watch(workspace, number), screen, woken)
    return 0


@contextmanager
def _raw_terminal() -> Iterator[int]:
    """The whole screen, keys without Enter, and a descriptor that can be read when the window's size has changed; all
    as it was afterwards."""
    import signal
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    previous = signal.signal(signal.SIGWINCH, lambda *_: None)
    told = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        tty.setcbreak(keyboard)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        yield woken
    finally:
        signal.set_wakeup_fd(told)
        signal.signal(signal.SIGWINCH, previous)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        os.close(woken)
        os.close(wake)


def _show(watch: Watch, screen: Screen, woken: int) -> None:
    """Until q, or until the terminal is gone."""
    import select

    from shoal.cli.topview import VIEWS, lines

    view = "c"
    blocks = screen.can_show("█▒░▁")
    parts = _Parts(watch)
    keyboard = sys.stdin.fileno()
    while True:
        try:
            size = os.get_terminal_size(sys.stdout.fileno())  # COLUMNS would not change with the window
        except OSError:
            return
        width, height = max(20, size.columns - 1), max(3, size.lines)
        drawn = lines(parts.now(), view, width, height, screen.paint, blocks=blocks)
        try:
            sys.stdout.write("\x1b[H" + "\n".join(line + "\x1b[K" for line in drawn) + "\x1b[J")
            sys.stdout.flush()
        except OSError:
            return
        try:
            ready, _, _ = select.select([keyboard, woken], [], [], _REDRAW_SECONDS)
        except KeyboardInterrupt:
            return
        if woken in ready:
            os.read(woken, 4096)
        if keyboard in ready:
            keys = os.read(keyboard, 64).decode("ascii", "replace")
            if not keys or "q" in keys or "Q" in keys:
                return
            view = next((key for key in reversed(keys) if key in VIEWS), view)


class _Parts:
    """The parts of the model, the slow ones not more often than they are cheap."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._slow: dict[str, Any] = {}
        self._due = 0.0
        self._behind = True

    def now(self) -> dict[str, Any]:
        import time

        from shoal.web.parts import quick_parts, slow_parts

        began = time.monotonic()
        self._behind |= self._watch.refresh() or self._watch.live
        if self._behind and began >= self._due:
            self._slow = slow_parts(self._watch)
            self._behind = False
            self._due = time.monotonic() + _SHARE * (time.monotonic() - began)
        return {**self._slow, **quick_parts(self._watch)}
