"""Text formatting for terminals: tables, lists of names, task output, display widths. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRACEBACK = "Traceback (most recent call last):"
_WIDEST = 200
_LAST_WORDS = 8
"""Maximum number of lines shown of a failed task's output."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clip(text: str, width: int) -> str:
    """Truncates the text to `width` characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def some(names: Sequence[str], most: int = 3) -> str:
    """`'a', 'b', 'c' and 12 more`."""
    shown = ", ".join(map(repr, names[:most]))
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def tail_lines(output: bytes, most: int, width: int = _WIDEST) -> list[str]:
    """The last lines of a task's output, without characters that would move a terminal's cursor."""
    text = _ESCAPES.sub("", output.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines = [line.rsplit("\r", 1)[-1].rstrip().expandtabs() for line in text.rstrip().split("\n")]
    kept = [clip(_CONTROLS.sub("", line), width) for line in lines if line]
    return kept[-most:]


def last_words(output: bytes, message: str) -> list[str]:
    """The last lines of a failed task's output, without a line that its message repeats and the head of a traceback."""
    lines = [line for line in tail_lines(output, _LAST_WORDS + 2) if line != _TRACEBACK]
    if lines and lines[-1] == clip(message, _WIDEST):
        del lines[-1]
    return lines[-_LAST_WORDS:]


def table(rows: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Formats columns as wide as their widest cell: the first left-aligned, the others right-aligned."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append((indent + "   ".join([row[0].ljust(widths[0]), *rest])).rstrip())
    return lines


def printable(text: str) -> str:
    """Replaces control characters and direction marks by question marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    """Like `printable`, for several lines. A tab becomes a space, so that a caret below it stays in its column."""
    return "\n".join(printable(line.replace("\t", " ")) for line in text.split("\n"))


def cells(text: str) -> int:
    """Number of terminal cells of a printable text."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(letter: str) -> int:
    from unicodedata import combining, east_asian_width

    if combining(letter) or "\ufe00" <= letter <= "\ufe0f":
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def cut(text: str, room: int) -> str:
    """Truncates the text to `room` cells."""
    if cells(text) <= room:
        return text
    kept, taken = "", 1
    for letter in text:
        taken += _cells_of(letter)
        if taken > room:
            break
        kept += letter
    return kept + "…" if room > 0 else ""


def padded(text: str, room: int) -> str:
    """Truncates or pads the text to exactly `room` cells."""
    shown = cut(text, room)
    return shown + " " * (room - cells(shown))


def joined(pieces: Sequence[str], room: int, between: str) -> str:
    """Joins as many pieces as fit, and always the first."""
    found = cut(pieces[0], room) if pieces else ""
    for piece in pieces[1:]:
        if cells(found) + cells(between) + cells(piece) > room:
            break
        found += between + piece
    return found
