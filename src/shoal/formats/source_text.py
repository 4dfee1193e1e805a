"""The text of one input file, with line numbers and with errors that quote the line of the file."""

from __future__ import annotations

from shoal.errors import InputError

LONGEST_SHOWN_LINE = 400


class SourceText:
    """Decoded text with normalized line ends.

    Counts lines incrementally: the position of the last query is kept, so a parser that goes forward counts each line
    once.
    """

    def __init__(self, name: str, content: bytes | str) -> None:
        text = content.decode("utf-8", "surrogateescape") if isinstance(content, bytes) else content
        text = text.removeprefix("\ufeff")
        if "\r" in text:
            text = text.replace("\r\n", "\n").removesuffix("\r")
        self.name = name
        self.text = text
        self.counted_position = 0
        self.counted_line = 1
        if "\0" in text:
            raise self.error(text.index("\0"), "the file contains a zero byte", remedy="give a text file")

    def line_at(self, position: int) -> int:
        """Returns the line number at `position`. Positions must not decrease from call to call."""
        self.counted_line += self.text.count("\n", self.counted_position, position)
        self.counted_position = position
        return self.counted_line

    def error(self, position: int, message: str, *, remedy: str | None = None) -> InputError:
        """Returns an error that points to `position` in this file."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start : len(self.text) if end < 0 else end]
        column = position - start + 1
        return InputError(
            message,
            file=self.name,
            line=self.text.count("\n", 0, position) + 1,
            column=column,
            remedy=remedy,
            text=show(line) if max(column, len(line)) <= LONGEST_SHOWN_LINE else None,
        )


def show(text: str) -> str:
    """Replaces tabs and unprintable characters by characters one column wide, so that a caret below the text points to
    the right column."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if found == "\t" else found if found.isprintable() else "\ufffd" for found in text)
