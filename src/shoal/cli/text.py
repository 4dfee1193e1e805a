"""How tables, lists of names and the output of tasks are written for people. Pure: what is shown is an argument."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRACEBACK = "Traceback (most recent call last):"
_WIDEST = 200
_LAST_WORDS = 8
"""Lines of a failed task's output that are shown."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


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
