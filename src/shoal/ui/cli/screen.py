"""Terminal output of a run: permanent lines, and on a terminal a block of lines that is redrawn in place.

If the terminal goes away during the run, output is dropped and the run continues.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

from shoal.ui.cli.streams import SIMPLER
from shoal.ui.cli.text import cut

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


class Screen:
    """Writes to one stream with a single call each time, to avoid flicker."""

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
        """Whether the stream's encoding contains these characters."""
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
        """Current columns and lines of the terminal; COLUMNS is used only if the terminal does not report its size."""
        try:
            found = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError, AttributeError):
            found = os.terminal_size((0, 0))
        if not found.columns or not found.lines:
            found = shutil.get_terminal_size((100, 24))
        return found.columns, found.lines

    def say(self, text: str) -> None:
        """Prints a permanent line, above the block if there is one."""
        block, self._drawn = self._drawn, []
        self._write(self._rewind(block) + text + "\n" + "".join(line + "\n" for line in block))
        self._drawn = block

    def draw(self, lines: Sequence[str]) -> None:
        """Replaces the block by these lines. They must fit the width."""
        text = self._rewind(self._drawn, keep=True) + "".join(line + "\x1b[K\n" for line in lines)
        if len(lines) < len(self._drawn):
            text += "\x1b[J"
        self._drawn = list(lines)
        self._write(text)

    def draw_fitting(self, lines: Sequence[str]) -> None:
        """Like `draw`, but truncates the lines to the size of the terminal."""
        columns, height = self.size()
        self.draw([cut(line, columns - 1) for line in lines[: height - 1]])

    def erase(self) -> None:
        """Removes the block."""
        block, self._drawn = self._drawn, []
        if block:
            self._write(self._rewind(block))

    @staticmethod
    def _rewind(block: Sequence[str], keep: bool = False) -> str:
        """Moves to the first line of the block, and clears it unless `keep`, because it will be overwritten."""
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
        except (OSError, ValueError):  # terminal gone, pipe broken, file closed or disk full
            self.gone = True


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False
