"""The text of one file and its positions: lines are counted once, and errors show the user's own line."""

from __future__ import annotations

from shoal.errors import InputError

LONGEST_SHOWN_LINE = 400


class SourceText:
    """Decoded text with line ends made uniform, and the lines counted so far."""

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
            raise self.error(text.index("\0"), "the file holds a zero byte", remedy="give a text file")

    def line_at(self, position: int) -> int:
        """The number of the line at `position`, which must not lie before the last one asked for."""
        self.counted_line += self.text.count("\n", self.counted_position, position)
        self.counted_position = position
        return self.counted_line

    def error(self, position: int, message: str, *, remedy: str | None = None) -> InputError:
        """The error to raise for what stands at `position`."""
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
    """The text with every character one column wide, so that a caret below it points right."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if found == "\t" else found if found.isprintable() else "\ufffd" for found in text)
