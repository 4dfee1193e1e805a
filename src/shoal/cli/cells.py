"""Text as a terminal shows it: how many cells it takes, cut to fit, and without anything that a terminal would obey.

Names come from workflows and may contain anything: escape sequences, marks that turn the direction of a line, letters
that take two cells or none.
"""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """Without controls and marks of direction, each of which becomes a question mark."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    """The same of several lines; a tab becomes a space, so that a mark below it stays in its column."""
    return "\n".join(printable(line.replace("\t", " ")) for line in text.split("\n"))


def cells(text: str) -> int:
    """How many cells the text takes; it must be printable."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(letter: str) -> int:
    from unicodedata import combining, east_asian_width

    if combining(letter) or "\ufe00" <= letter <= "\ufe0f":
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1


def cut(text: str, room: int) -> str:
    """The text, cut at the end to so many cells."""
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
    """The text, cut or filled up to exactly so many cells."""
    shown = cut(text, room)
    return shown + " " * (room - cells(shown))


def joined(pieces: Sequence[str], room: int, between: str) -> str:
    """As many of the pieces as fit, the first in any case."""
    found = cut(pieces[0], room) if pieces else ""
    for piece in pieces[1:]:
        if cells(found) + cells(between) + cells(piece) > room:
            break
        found += between + piece
    return found
