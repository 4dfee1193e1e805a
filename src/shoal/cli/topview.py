"""What `shoal top` shows, as lines that fit a terminal of a given size. Pure: parts of the model in, text out.

Names come from the run and may contain anything; nothing of them that would move the cursor gets out of here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.cli.text import clip, show_percent, show_rate, show_seconds
from shoal.model.resources import show_bytes

Parts = Mapping[str, Any]
Paint = Callable[[str, str], str]
VIEWS = {"c": "categories", "n": "nodes", "r": "running", "f": "failures"}
BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
_COLOURS = {"ok": "green", "running": "blue", "failed": "red", "killed": "red"}


def lines(parts: Parts, view: str, width: int, height: int, paint: Paint, *, blocks: bool) -> list[str]:
    """At most `height` lines of at most `width` characters, colours not counted."""
    run, told = parts["run"], parts.get("progress")
    outcome = run["outcome"]
    name = printable(run["workflow"])
    if told is None:
        return [clip(f"{name}: nothing has been run yet", width), *_keys(view, width, height - 1)]
    head = f"{outcome}, {show_seconds(told['elapsed'])}, {run['cores']:g} cores"
    name = clip(name, width // 2)
    found = [f"{paint(name, 'bold')}  {paint(clip(head, width - len(name) - 2), _colour(outcome))}"]
    found.append(_bar(told, width, paint, blocks))
    found.append(clip(_counts(told, run["live"]), width))
    found += [clip(line, width) for line in _net(parts)]
    found += _curves(parts, width, blocks)
    table = _TABLES[view](parts)
    room = height - len(found) - 2
    if table and room > 1:
        found.append("")
        found += fitted(table, width, room - 1, paint)
    return [*found, *_keys(view, width, height - len(found))][:height]


def printable(text: str) -> str:
    """Without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _colour(outcome: str) -> str:
    return _COLOURS.get(outcome, "yellow")


def _keys(view: str, width: int, room: int) -> list[str]:
    words = "  ".join(f"{key} {name}{'*' * (name == VIEWS[view])}" for key, name in VIEWS.items())
    return ["", clip(f"q leaves  {words}", width)][-max(0, min(2, room)) :] if room > 0 else []


def _bar(told: Mapping[str, Any], width: int, paint: Paint, blocks: bool) -> str:
    total = max(1, told["to_run"])
    share = show_percent(told["done"] + told["failed"], told["to_run"])
    room = max(4, width - len(share) - 1)
    good, bad = room * told["done"] // total, room * told["failed"] // total
    if told["failed"] and not bad and good < room:
        bad = 1
    if told["done"] + told["failed"] >= total:
        good = room - bad
    going = min(room - good - bad, -(-room * told["running"] // total))
    full, half, rest = ("█", "▒", "░") if blocks else ("#", "=", ".")
    pieces = [
        (full * good, "green"),
        (full * bad, "red"),
        (half * going, "blue"),
        (rest * (room - good - bad - going), "dim"),
    ]
    return "".join(paint(piece, colour) for piece, colour in pieces if piece) + f" {share}"


def _counts(told: Mapping[str, Any], live: bool) -> str:
    words = [f"{told['done']:,} of {told['to_run']:,} done", f"{told['failed']:,} failed"]
    if live:
        words += [f"{told['running']:,} running", f"{told['waiting']:,} waiting", show_rate(told["rate"])]
        if told["left"] is not None:
            band = f"{show_seconds(told['least'])} to {show_seconds(told['most'])}"
            words.append(f"{show_seconds(told['left'])} left ({band})")
    elif told["waiting"]:
        words.append(f"{told['waiting']:,} not run")
    if told["up_to_date"]:
        words.append(f"{told['up_to_date']:,} were up to date")
    return ", ".join(words)


def _net(parts: Parts) -> list[str]:
    net = parts.get("net")
    if net is None:
        return []
    tokens = ", ".join(f"{printable(name)} {count:,}" for name, count in net["tokens"].items())
    return [f"net {printable(net['name'])}: {tokens}"]


def _curves(parts: Parts, width: int, blocks: bool) -> list[str]:
    """Cores and memory in use over time, up to now at the right."""
    if "time" not in parts:
        return []
    cores, memory, capacity = _sums(parts, "cores"), _sums(parts, "memory"), _columns(parts, "capacity")
    letters = BARS if blocks else PLAIN_BARS
    there = max(capacity, default=0.0)
    rows = [("cores ", cores, there, f"{cores[-1] if cores else 0:.1f} of {there:g}")]
    if any(memory):
        rows.append(
            ("memory", memory, max(memory), f"{show_bytes(round(memory[-1]))}, most {show_bytes(round(max(memory)))}")
        )
    found = []
    for name, values, top, told in rows:
        room = max(1, width - len(name) - len(told) - 2)
        found.append(clip(f"{name} {spark(values, top, room, letters)} {told}", width))
    return found


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


def spark(values: Sequence[float], top: float, room: int, letters: str) -> str:
    """The values as letters, each for an equal part of them."""
    if not values or top <= 0:
        return letters[0] * room
    room = min(room, len(values))
    found = []
    for at in range(room):
        part = values[at * len(values) // room : max(at * len(values) // room + 1, (at + 1) * len(values) // room)]
        level = sum(part) / len(part) / top
        found.append(letters[min(len(letters) - 1, max(0, round(level * (len(letters) - 1))))])
    return "".join(found)


def _rows(parts: Parts, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number = 0
    while (part := parts.get(f"{name}.{number}")) is not None:
        found += part
        number += 1
    return found


def _categories(parts: Parts) -> list[list[str]]:
    rows = _rows(parts, "categories")
    head = ["category", "planned", "done", "failed", "retries", "mean", "longest", "core time", "memory"]
    return [head] + [
        [
            *(row["name"], f"{row['planned']:,}", f"{row['done']:,}", f"{row['failed']:,}", f"{row['retries']:,}"),
            *(show_seconds(row["mean"]), show_seconds(row["longest"]), show_seconds(row["core_seconds"])),
            show_bytes(round(row["most_memory"])) if row["most_memory"] else "-",
        ]
        for row in rows
    ]


def _nodes(parts: Parts) -> list[list[str]]:
    head = ["node", "cores", "tasks", "failed", "busy", "fetched", "stolen", "pushed"]
    return [head] + [
        [
            *(
                row["name"],
                f"{row['cores']:g}",
                f"{row['tasks']:,}",
                f"{row['failed']:,}",
                f"{100 * row['share']:.0f} %",
            ),
            *(show_bytes(row["fetched"]) if row["fetched"] else "-", f"{row['stolen']:,}", f"{row['pushed']:,}"),
        ]
        for row in _rows(parts, "nodes")
    ]


def _running(parts: Parts) -> list[list[str]]:
    elapsed = parts["progress"]["elapsed"]
    return [["running", "attempt", "for"]] + [
        [row["name"], str(row["attempt"]), show_seconds(elapsed - row["since"])] for row in parts.get("running") or []
    ]


def _failures(parts: Parts) -> list[list[str]]:
    return [["cause", "attempts", "given up", "time lost"]] + [
        [row["text"], f"{row['attempts']:,}", f"{row['given_up']:,}", show_seconds(row["seconds"])]
        for row in parts.get("failures") or []
    ]


_TABLES: dict[str, Callable[[Parts], list[list[str]]]] = {
    "c": _categories,
    "n": _nodes,
    "r": _running,
    "f": _failures,
}


def fitted(table: Sequence[Sequence[str]], width: int, room: int, paint: Paint) -> list[str]:
    """The table in so many lines; the first column gives way, then the last ones are left out."""
    cells = [[printable(row[0]), *row[1:]] for row in table[:room]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while len(widths) > 1 and min(widths[0], 12) + sum(widths[1:]) + 2 * len(widths[1:]) > width:
        widths.pop()
    first = max(1, min(widths[0], width - sum(widths[1:]) - 2 * len(widths[1:])))
    found = []
    for number, row in enumerate(cells):
        rest = "".join("  " + cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=False))
        line = clip(row[0], first).ljust(first) + rest
        found.append(paint(line, "bold") if number == 0 else line)
    return found
