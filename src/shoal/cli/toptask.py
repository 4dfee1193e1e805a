"""One task in `shoal top`: how it stands, why, its attempts and the end of its output, as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from shoal.cli.cells import cells, cut, printable
from shoal.cli.text import tail_lines
from shoal.cli.topstate import Place
from shoal.cli.topview import Window
from shoal.model.quantities import show_bytes, show_seconds

MOST_OUTPUT_LINES = 500
ASKING = "loading the workflow ..."


def task_lines(task: Mapping[str, Any], output: bytes | None, workflow: Mapping[str, Any] | None, now: float) -> str:
    """All that is told of a task, a line each and as long as it takes; `now` is in seconds from the run's beginning."""
    found = [f"{printable(task['name'])}  {task['state']}", f"category {printable(task['category'] or '-')}"]
    if workflow is None:
        found.append(f"why: {ASKING}")
    else:
        found.append("why: " + printable(workflow.get("why") or workflow.get("problem") or "unknown"))
        if command := workflow.get("command") or workflow.get("function"):
            found += ["command:", *(f"  {printable(line)}" for line in str(command).splitlines())]
    for name in ("needs", "needed_by"):
        links = task[name]
        if links["count"]:
            told = ", ".join(f"{printable(row['name'])} ({row['state']})" for row in links["tasks"][:6])
            more = f" and {links['count'] - 6:,} more" if links["count"] > 6 else ""
            found.append(f"{name.replace('_', ' ')}: {told}{more}")
    found += [*_attempts(task, now), *_output(output)]
    return "\n".join(found)


def _attempts(task: Mapping[str, Any], now: float) -> Iterator[str]:
    for row in task["attempts"]:
        memory = f", peak memory {show_bytes(row['memory'])}" if row["memory"] else ""
        limit = f" of {show_bytes(row['memory_limit'])}" if row["memory"] and row["memory_limit"] else ""
        how = printable(row["message"] or row["outcome"])
        took = show_seconds(row["ended"] - row["started"])
        yield (
            f"attempt {row['attempt']}: {how}, wall time {took}, started after {show_seconds(row['started'])}, "
            f"CPU time {show_seconds(row['cpu'])}{memory}{limit}, on {printable(row['node'])}"
        )
    running = task["running"]
    if running is not None:
        process = f", process {running['pid']}" if running["pid"] else ""
        took = show_seconds(max(0.0, now - running["since"]))
        yield f"attempt {running['attempt']}: running for {took}{process}, on {printable(running['node'])}"


def _output(output: bytes | None) -> Iterator[str]:
    if output is None:
        return
    told = tail_lines(output, MOST_OUTPUT_LINES, 2000)
    yield "output:" if told else "no output"
    yield from (f"  {printable(line)}" for line in told)


def fitted(text: str, place: Place, window: Window) -> list[str]:
    """As many lines as the window has, long ones broken; `place` is kept within the text."""
    broken: list[str] = []
    for line in text.split("\n"):
        if cells(line) <= window.width:
            broken.append(line)
        else:
            indent = "  " if line.startswith("  ") else ""
            pieces = wrap(line, max(10, window.width // (1 if line.isascii() else 2)), subsequent_indent=indent + "  ")
            broken += [cut(piece, window.width) for piece in pieces]
    room = max(1, window.height - 1)
    place.scrolled = max(0, min(place.scrolled, len(broken) - room))
    shown = broken[place.scrolled : place.scrolled + room]
    shown += [""] * (room - len(shown))
    if place.scrolled == 0 and shown:
        shown[0] = window.paint(shown[0], "bold")
    keys = "Esc back  up/down scroll  q quit"
    return [*shown, cut(keys, window.width)][: window.height]
