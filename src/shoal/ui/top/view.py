"""Rendering of `shoal top`: lines that fit a terminal of a given size, from parts of the model. Pure.

Names come from the run and may contain anything; characters that would move the cursor are replaced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from shoal.core.quantities import (
    count,
    show_bytes,
    show_cores,
    show_progress,
    show_rate,
    show_seconds,
    show_share,
    time_left,
)
from shoal.ui.cli.text import cells, cut, joined, padded, printable, tail_lines
from shoal.ui.top.tables import VIEWS, Parts, Table, TopView, widths_of

Paint = Callable[[str, str], str]
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
_COLOURS = {"ok": "green", "running": "blue", "failed": "red", "killed": "red"}
_TALL, _TALLER = 32, 48
"""Terminal heights from which curves are drawn higher."""
_TABLE_LINES = 5
"""Lines reserved for the table: an empty line, heads, two rows and the keys, before optional notes get room."""
_KEY, _MEANING = 2, 14
"""Columns of the help at which keys and their descriptions begin."""
HELP = [
    "Keys of shoal top",
    "",
    "  c t r f n   categories, tasks, running tasks, failures, nodes",
    "  Tab         the next of these",
    "  up down     select a row (also k and j, Page Up and Page Down, Home and End)",
    "  Enter       list the tasks of a category or failure",
    "              or open a task: reason, attempts, output",
    "  Esc         back",
    "  s           sort by the next column",
    "  Ctrl-L      redraw the screen",
    "  q           quit; the run continues",
    "",
    "Press any key to go back",
]


def help_lines(width: int, height: int) -> list[str]:
    """The help text with wrapped lines; empty lines are dropped first if there is little room."""
    found: list[str] = []
    for line in HELP:
        indent = " " * (_MEANING if width >= 2 * _MEANING else _KEY) if line.startswith(" ") else ""
        found += [cut(piece, width) for piece in wrap(line, width, subsequent_indent=indent)] or [""]
    if len(found) > height:
        found = [line for line in found if line]
    return found[:height]


class Window(msgspec.Struct, frozen=True):
    """Size and capabilities of the terminal."""

    width: int
    height: int
    paint: Paint
    blocks: bool = True
    """Whether it can show block characters."""


def lines(parts: Parts, table: Table, place: TopView, window: Window) -> list[str]:
    """At most as many lines as the window has, none wider than the window (colour sequences not counted)."""
    width, height = window.width, window.height
    if place.help:
        return help_lines(width, height)
    progress = parts.get("progress")
    if progress is None:
        name = printable(parts["run"]["workflow"])
        return [cut(f"{name}: not run yet", width), *[""] * min(1, height - 2), *_keys(place, width)][:height]
    found = head(parts, window)
    spare = height - len(found) - _TABLE_LINES
    found += [cut(line, width) for line in _notes(parts, width)[: max(0, spare)]]
    room = height - len(found) - 1
    if room > 2:
        found += ["", *listed(table, place, room - 1, window)]
    found += [""] * (height - 1 - len(found))
    return [*found[: height - 1], *_keys(place, width)]


def head(parts: Parts, window: Window) -> list[str]:
    """The run, its progress bar, the counts and the curves."""
    run, progress, width = parts["run"], parts["progress"], window.width
    outcome = printable(run["outcome"])
    cores = show_cores(run["cores"])
    name = cut(printable(run["workflow"]), width // 2)
    rest = joined([outcome, show_seconds(progress["elapsed"]), cores], max(1, width - cells(name) - 2), ", ")
    found = [f"{window.paint(name, 'bold')}  {window.paint(rest, _COLOURS.get(outcome, 'yellow'))}"]
    if progress["to_run"] or not parts.get("net"):
        found.append(_bar(progress, window))
    found.append(joined(_counts(progress, run["live"]), width, ", "))
    if window.height >= 8:
        found += _curves(parts, window)
    return found


def _keys(place: TopView, width: int) -> list[str]:
    words = [f"{key} {name}{'*' * (key == place.view and place.task is None)}" for key, name in VIEWS.items()]
    back = ["Esc back"] if place.task is not None or place.category or place.state else []
    return [joined(["q quit", "? help", *back, *words, "s sort"], width, "  ")]


def _bar(progress: Mapping[str, Any], window: Window) -> str:
    """The progress bar with the completed share."""
    total = max(1, progress["to_run"])
    share = show_progress(progress["done"], progress["to_run"])
    room = max(4, window.width - len(share) - 1)
    good, bad = room * progress["done"] // total, room * progress["failed"] // total
    if progress["failed"] and not bad and good < room:
        bad = 1
    if progress["done"] + progress["failed"] >= total:
        good = room - bad
    going = min(room - good - bad, -(-room * progress["running"] // total))
    full, half, rest = ("█", "▒", "░") if window.blocks else ("#", "=", ".")
    pieces = [
        (full * good, "green"),
        (full * bad, "red"),
        (half * going, "blue"),
        (rest * (room - good - bad - going), "dim"),
    ]
    return "".join(window.paint(piece, colour) for piece, colour in pieces if piece) + f" {share}"


def _counts(progress: Mapping[str, Any], live: bool) -> list[str]:
    """The counts, the most important first."""
    known = progress["to_run"] or not progress["done"] + progress["failed"] + progress["running"]
    words = [f"{progress['done']:,} of {progress['to_run']:,} done" if known else f"{progress['done']:,} done"]
    if live and progress["left"] is not None:
        words.append(time_left(progress["left"], progress["least"], progress["most"]))
    words.append(f"{progress['failed']:,} failed")
    if live:
        words += [f"{progress['running']:,} running", *([f"{progress['waiting']:,} not started"] if known else [])]
        words += [f"{progress['cannot_run']:,} cannot run"] if progress.get("cannot_run") else []
    words += [f"{progress['cancelled']:,} cancelled"] if progress.get("cancelled") else []
    if not live and (left := progress["waiting"] + progress.get("cannot_run", 0)):
        words.append(f"{left:,} not run")
    words.append(show_rate(progress["rate"]))
    if progress.get("utilisation") is not None:
        words.append(f"{show_share(progress['utilisation'])} utilisation{' so far' * live}")
    if progress["up_to_date"]:
        words.append(f"{progress['up_to_date']:,} already up to date")
    return words


def _curves(parts: Parts, window: Window) -> list[str]:
    """Cores and memory in use over time; the current value is at the right."""
    if "time" not in parts:
        return []
    known, memory, capacity = _sums(parts, "cores"), _sums(parts, "memory"), _columns(parts, "capacity")
    cores = [sum(pair) for pair in zip(known, _columns(parts, "untold"), strict=True)]
    there = max(capacity, default=0.0)
    now, most = parts["progress"].get("cores_held", 0.0), max(cores, default=0.0)
    in_use = f"{now:.1f} of {there:g}" if parts["run"]["live"] else f"peak {most:.1f} of {there:g}"
    rows = [("cores ", cores, there, in_use)]
    if any(memory):
        rows.append(("memory", memory, max(memory), f"peak {show_bytes(parts['time']['memory_most'])}"))
    letters = BARS if window.blocks else PLAIN_BARS
    rise = 4 if window.height >= _TALLER else 2 if window.height >= _TALL else 1
    side = max(cells(figures_text) for *_, figures_text in rows)
    found = []
    for name, values, top, figures_text in rows:
        room = max(1, window.width - len(name) - side - 2)
        for number, line in enumerate(curve(values, top, room, letters, rise)):
            label, figure = (name, figures_text) if number == rise - 1 else (" " * len(name), "")
            found.append(cut(f"{label} {padded(line, room)} {figure}".rstrip(), window.width))
    return found


def curve(values: Sequence[float], top: float, room: int, letters: str, rise: int = 1) -> list[str]:
    """Draws the values as `rise` lines of letters; each letter stands for an equal part of the values."""
    if not values or top <= 0:
        return [letters[0] * room] * rise
    steps = len(letters) - 1
    room = min(room, len(values))
    levels = []
    for at in range(room):
        first = at * len(values) // room
        part = values[first : max(first + 1, (at + 1) * len(values) // room)]
        levels.append(min(rise * steps, max(0, round(sum(part) / len(part) / top * rise * steps))))
    return [
        "".join(letters[min(steps, max(0, level - line * steps))] for level in levels) for line in reversed(range(rise))
    ]


def _columns(parts: Parts, name: str) -> list[float]:
    found: list[float] = []
    number = 0
    while (part := parts.get(f"time.{number}")) is not None:
        found += part[name] or [0.0] * len(part["done"])
        number += 1
    return found


def _sums(parts: Parts, name: str) -> list[float]:
    found: list[float] = []
    number = 0
    while (part := parts.get(f"time.{number}")) is not None:
        size = len(part["done"])
        rows = [row for row in part[name] if row]
        found += [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * size
        number += 1
    return found


def _notes(parts: Parts, width: int) -> list[str]:
    """Additional information, one line each, the most important first."""
    found = []
    if net := parts.get("net"):
        tokens = ", ".join(f"{printable(name)} {count:,}" for name, count in net["tokens"].items())
        found.append(f"net {printable(net['name'])}: {tokens}")
    causes = parts.get("failures") or []
    if causes:
        listing = ", ".join(f"{printable(cause['text'])} ({cause['attempts']:,})" for cause in causes[:3])
        found.append(f"failures: {listing}")
    if parts["run"]["live"] and (note := parts.get("throttle_note")):
        found.append(f"throttle: {printable(note)}")
    path = parts.get("critical")
    if path and path.get("tasks"):
        most = path["by_category"][0]["name"] if path["by_category"] else ""
        words = [f"critical path: {count(path['tasks'], 'task')}"]
        if parts["run"]["live"]:
            words = [f"critical path: {show_share(path['done'])} done", count(path["tasks"], "task")]
        words += [f"ran {show_seconds(path['ran'])}", f"waited {show_seconds(path['waited'])}"]
        found.append(joined([*words, f"mostly {printable(most)}"], width, ", "))
    slowest = (parts.get("running") or [])[:3]
    if parts["run"]["live"] and not parts["run"]["cluster"]:
        elapsed = parts["progress"]["elapsed"]
        listing = ", ".join(
            f"{printable(row['name'])} {show_seconds(max(0.0, elapsed - row['since']))}" for row in slowest
        )
        nothing = "short tasks only" if parts["progress"]["running"] else "no tasks"
        found.append(f"longest running: {listing or nothing}")
    return found


def listed(table: Table, place: TopView, room: int, window: Window) -> list[str]:
    """The table in this number of lines, scrolled to the selected row."""
    if not table.rows:
        return [cut(table.empty, window.width)]
    chosen = max(0, min(place.row, len(table.rows) - 1))
    room = max(1, room - 1)
    first = max(0, min(chosen - room // 2, len(table.rows) - room))
    shown = table.rows[first : first + room]
    widths = widths_of(table, shown, window.width - 2, lambda text: cells(printable(text)))
    order = place.order.get(place.view)
    heads = [f"{name}{_mark(window)}" if number == order else name for number, name in enumerate(table.heads)]
    names = [table.is_text(number) for number in range(len(widths))]
    found = [window.paint("  " + _laid_out(heads, widths, names), "bold")]
    for number, row in enumerate(shown):
        is_chosen = first + number == chosen
        line = ("> " if is_chosen else "  ") + _laid_out(row.cells, widths, names)
        found.append(window.paint(line, "bold") if is_chosen else line)
    return found


def _mark(window: Window) -> str:
    return "▾" if window.blocks else "v"


def _laid_out(texts: Sequence[str], widths: Sequence[int], names: Sequence[bool]) -> str:
    """Names left-aligned, numbers right-aligned; columns beyond the widths are omitted."""
    found = padded(printable(texts[0]), widths[0])
    for text, size, is_name in zip(texts[1:], widths[1:], names[1:], strict=False):
        shown = cut(printable(text), size)
        fill = " " * (size - cells(shown))
        found += f"  {shown}{fill[1:]}" if is_name and fill else f" {fill}{shown}"
    return found


MOST_OUTPUT_LINES = 500
ASKING = "loading the workflow ..."


def task_lines(task: Mapping[str, Any], output: bytes | None, workflow: Mapping[str, Any] | None, now: float) -> str:
    """All details of a task as text of any length; `now` is in seconds from the start of the run."""
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
            listing = ", ".join(f"{printable(row['name'])} ({row['state']})" for row in links["tasks"][:6])
            more = f" and {links['count'] - 6:,} more" if links["count"] > 6 else ""
            found.append(f"{name.replace('_', ' ')}: {listing}{more}")
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
    shown = tail_lines(output, MOST_OUTPUT_LINES, 2000)
    yield "output:" if shown else "no output"
    yield from (f"  {printable(line)}" for line in shown)


def fitted(text: str, place: TopView, window: Window) -> list[str]:
    """As many lines as the window has, long ones wrapped; keeps the scroll offset of `place` within the text."""
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
