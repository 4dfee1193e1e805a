"""What the user sees of a net while it runs and when it is over: lines, a redrawn block, or JSON.

The net's own thread says what happened; this is shown by the main thread, which calls `show` ten times a second.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from shoal.cli.cells import cut, printable, printable_lines
from shoal.cli.screen import Screen
from shoal.flow.net.records import Task
from shoal.ledger.records import NetMarked
from shoal.model.quantities import count, show_cores, show_seconds

REDRAW_SECONDS = 0.2
PLAIN_SECONDS = 10.0
NAMED_FAILURES = 20
MOST_NAMED = 6


def numbered(counts: Mapping[str, int], nothing: str = "none") -> str:
    """`expand 12, improve 3`, the largest first."""
    some = sorted(((name, number) for name, number in counts.items() if number), key=lambda pair: -pair[1])
    shown = [f"{name} {number:,}" for name, number in some[:MOST_NAMED]]
    if len(some) > MOST_NAMED:
        shown.append(f"{len(some) - MOST_NAMED} others")
    return ", ".join(shown) or nothing


def as_json(value: object) -> Any:
    """The value as JSON has it, or else as Python shows it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


class NetDisplay:
    """Shows failures only; the others add to it."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.mark = NetMarked(time.time(), {}, {}, {}, [])
        self.began = time.monotonic()
        self._ended: deque[dict[str, Any]] = deque()
        self._marks: deque[NetMarked] = deque()
        self._printed: deque[str] = deque()
        self._failures = 0

    # ---- in the net's thread

    def task_over(self, task: Task, started: float, ended: float, cpu: float, problem: str) -> None:
        told = {"time": ended, "name": f"{task.transition.name} {task.id}", "transition": task.transition.name}
        times = {"seconds": round(ended - started, 6), "cpu": round(cpu, 6)}
        verdict = "done" if not problem else "failed" if task.transition.on_error is None else "caught"
        self._ended.append({**told, "attempt": task.attempt, "verdict": verdict, **times, "message": problem})

    def marked(self, mark: NetMarked) -> None:
        self._marks.append(mark)

    def printed(self, text: str) -> None:
        self._printed.append(text)

    # ---- in the main thread

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        """The net has been started."""

    def show(self) -> None:
        """What happened since the last time."""
        pieces = [self._printed.popleft() for _ in range(len(self._printed))]
        if text := "".join(pieces).rstrip("\n"):
            self.show_printed(text)
        while self._ended:
            self.show_task(self._ended.popleft())
        while self._marks:
            self.mark = self._marks.popleft()
            self.show_mark()
        self.tick(time.monotonic())

    def show_task(self, told: dict[str, Any]) -> None:
        if told["verdict"] == "failed":
            self._failures += 1
            if self._failures <= NAMED_FAILURES:
                self.screen.say(self.screen.paint(printable_lines(f"failed: {told['name']}: {told['message']}"), "red"))
            if self._failures == NAMED_FAILURES:
                self.screen.say("shoal: further failures are only counted; 'shoal status' lists them")

    def show_printed(self, text: str) -> None:
        """What the net's functions printed."""
        self.screen.say(text)

    def show_mark(self) -> None:
        """The mark is new."""

    def tick(self, now: float) -> None:
        """Called about ten times a second."""

    def note(self, text: str) -> None:
        self.screen.say(printable_lines(f"shoal: {text}"))

    def end(self, told: dict[str, Any]) -> None:
        """The run is over; `told` is how, as data."""
        self.screen.erase()

    def standing(self) -> list[str]:
        """How the net stands, in two lines."""
        mark = self.mark
        done, running = sum(mark.done.values()), sum(mark.running.values())
        took = show_seconds(time.monotonic() - self.began)
        failed = f", {count(len(mark.problems), 'problem')}" if mark.problems else ""
        return [
            f"{done:,} done, {running:,} under way ({numbered(mark.running)}){failed}, {took}",
            f"tokens: {numbered(mark.tokens)}",
        ]


class PlainNetDisplay(NetDisplay):
    """Adds a line at the start and one every ten seconds."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        how = "going on with" if resumed else "running"
        self.screen.say(f"{how} net {net!r} on {show_cores(cores)}")
        self._next = self.began + PLAIN_SECONDS

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + PLAIN_SECONDS
            self.screen.say(printable("; ".join(self.standing())))


class LiveNetDisplay(NetDisplay):
    """Two lines that are redrawn in place."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        self._next = self.began + REDRAW_SECONDS

    def tick(self, now: float) -> None:
        if now >= self._next:
            self._next = now + REDRAW_SECONDS
            width = self.screen.size()[0] - 1
            self.screen.draw([cut(printable(line), width) for line in self.standing()])


class JsonNetDisplay(NetDisplay):
    """Writes `run_started`, `task_ended`, `marked`, `printed`, `note` and `run_ended`, one object per line."""

    def begin(self, net: str, resumed: bool, cores: float) -> None:
        self._emit("run_started", time=time.time(), net=net, resumed=resumed, cores=cores)

    def show_task(self, told: dict[str, Any]) -> None:
        self._emit("task_ended", **told)

    def show_mark(self) -> None:
        mark = self.mark
        told = {"tokens": mark.tokens, "running": mark.running, "done": mark.done, "problems": mark.problems}
        self._emit("marked", time=mark.time, **told)

    def show_printed(self, text: str) -> None:
        self._emit("printed", text=text)

    def note(self, text: str) -> None:
        self._emit("note", text=text)

    def end(self, told: dict[str, Any]) -> None:
        self._emit("run_ended", **told)

    def _emit(self, event: str, **fields: Any) -> None:
        self.screen.say(json.dumps({"event": event, **fields}))


class Printing(io.TextIOBase):
    """Stands in the place of standard output while a net runs: what its functions print is shown, not mixed with the
    result."""

    def __init__(self, display: NetDisplay) -> None:
        self._display = display

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._display.printed(text)
        return len(text)


def choose_net_display(arguments: argparse.Namespace) -> NetDisplay:
    """The display that was asked for, or that fits where standard error goes."""
    if arguments.json:
        return JsonNetDisplay(Screen(sys.stdout))
    screen = Screen(sys.stderr)
    if arguments.quiet:
        return NetDisplay(screen)
    return PlainNetDisplay(screen) if arguments.plain or not screen.live else LiveNetDisplay(screen)
