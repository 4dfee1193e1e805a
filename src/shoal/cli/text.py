"""How numbers, times and the output of tasks are written for people. Pure: what is shown is an argument."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRACEBACK = "Traceback (most recent call last):"
_WIDEST = 200
_LAST_WORDS = 8
"""Lines of a failed task's output that are shown."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def count(number: int, noun: str) -> str:
    """`1 task`, `12,345 tasks`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def show_seconds(seconds: float) -> str:
    """A duration with two or three digits: `15 ms`, `2.4 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def show_rate(per_second: float) -> str:
    """`812/s`, `2.5/s`, `14/min`."""
    if per_second >= 9.95:
        return f"{per_second:,.0f}/s"
    return f"{per_second:.1f}/s" if per_second >= 0.95 else f"{per_second * 60:.2g}/min"


def clip(text: str, width: int) -> str:
    """The text, cut at the end to so many characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def some(names: Sequence[str], most: int = 3) -> str:
    """`'a', 'b', 'c' and 12 more`."""
    shown = ", ".join(map(repr, names[:most]))
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def tail_lines(output: bytes, most: int, width: int = _WIDEST) -> list[str]:
    """The last lines of what a task wrote, with nothing in them that would move a terminal's cursor."""
    text = _ESCAPES.sub("", output.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = [line.rsplit("\r", 1)[-1].rstrip().expandtabs() for line in text.rstrip().split("\n")]
    kept = [clip(_CONTROLS.sub("", line), width) for line in lines if line]
    return kept[-most:]


def last_words(output: bytes, message: str) -> list[str]:
    """The last lines that a failed task wrote, without the one that its message repeats and the head of a traceback."""
    lines = [line for line in tail_lines(output, _LAST_WORDS + 2) if line != _TRACEBACK]
    if lines and lines[-1] == clip(message, _WIDEST):
        del lines[-1]
    return lines[-_LAST_WORDS:]


def table(rows: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append((indent + "   ".join([row[0].ljust(widths[0]), *rest])).rstrip())
    return lines
