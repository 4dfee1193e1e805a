"""The stream a run is shown on: lines that stay, and on a terminal a block of lines that is redrawn in place.

A terminal may go away while a run goes on; then nothing is shown any more, and nothing else changes.
"""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from shoal.ui.cli.text import cut

_ERRORS = "shoal-lenient"
SIMPLER = str.maketrans("\u2013\u2212·…━µ", "--,.=u")
"""For streams that have no letters beyond ASCII: one for one, so that widths stay."""


def open_closed_streams() -> None:
    """Leads standard streams that whoever called us has closed to nowhere. Else the next file that is opened would get
    the number of one, be it a ledger, and everybody who writes to standard output would write there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # also if that is the same number: what we start inherits it then
            if nowhere != number:
                os.close(nowhere)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  open as long as we are


def print_anything() -> None:
    """Has standard output and error take any text."""
    codecs.register_error(_ERRORS, _lenient)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _lenient(error: UnicodeError) -> tuple[str | bytes, int]:
    """Bytes that came in as surrogates go out as they were; what the encoding does not have becomes something simpler,
    or a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    return b"".join(map(_instead_of, piece)), error.end


def _instead_of(letter: str) -> bytes:
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00])
    return chr(SIMPLER.get(ord(letter), ord("?"))).encode("ascii")


_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


class Screen:
    """Writes to one stream, each time with a single call, so that nothing flickers."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self.live = not dumb and _is_terminal(stream)
        self.coloured = self.live and not os.environ.get("NO_COLOR")
        self.gone = False
        self._drawn: list[str] = []

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.coloured else text

    def can_show(self, text: str) -> bool:
        """Whether the stream's encoding has these characters."""
        try:
            text.encode(self.stream.encoding or "ascii")
        except UnicodeEncodeError:
            return False
        return True

    def is_same_as(self, other: TextIO) -> bool:
        """Whether another stream goes to the same terminal, pipe or file."""
        try:
            mine, its = os.fstat(self.stream.fileno()), os.fstat(other.fileno())
        except (OSError, ValueError, AttributeError):
            return False
        return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino) and not self.gone

    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal as it is now; COLUMNS counts only where it does not say."""
        try:
            found = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError, AttributeError):
            found = os.terminal_size((0, 0))
        if not found.columns or not found.lines:
            found = shutil.get_terminal_size((100, 24))
        return found.columns, found.lines

    def say(self, text: str) -> None:
        """Prints a line that stays, above the block if there is one."""
        block, self._drawn = self._drawn, []
        self._write(self._rewind(block) + text + "\n" + "".join(line + "\n" for line in block))
        self._drawn = block

    def draw(self, lines: Sequence[str]) -> None:
        """Puts these lines where the block's old ones were. They must fit the width."""
        text = self._rewind(self._drawn, keep=True) + "".join(line + "\x1b[K\n" for line in lines)
        if len(lines) < len(self._drawn):
            text += "\x1b[J"
        self._drawn = list(lines)
        self._write(text)

    def draw_fitting(self, lines: Sequence[str]) -> None:
        """As `draw`, with what does not fit the terminal cut away."""
        columns, height = self.size()
        self.draw([cut(line, columns - 1) for line in lines[: height - 1]])

    def erase(self) -> None:
        """Takes the block away."""
        block, self._drawn = self._drawn, []
        if block:
            self._write(self._rewind(block))

    @staticmethod
    def _rewind(block: Sequence[str], keep: bool = False) -> str:
        """Moves to the block's first line; what was there is cleared unless it is about to be overwritten."""
        if not block:
            return ""
        return f"\r\x1b[{len(block)}A" + ("" if keep else "\x1b[J")

    def _write(self, text: str) -> None:
        if self.gone:
            return
        if not self.can_show(text):
            encoding = self.stream.encoding or "ascii"
            text = text.translate(SIMPLER).encode(encoding, "replace").decode(encoding)
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone, the pipe broken, the file closed or its disk full
            self.gone = True


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
