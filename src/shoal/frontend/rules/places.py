"""Where definitions stand in the user's files, kept cheaply and found exactly.

A frame's line number costs a walk over the whole code object, which makes a long generated file quadratic. So only the
code object and the offset of the instruction are kept, and turned into a line when somebody asks. A definition made
by an included file or a helper module also has a line in the main file: the one that led there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

from shoal.errors import InputError


class Place(NamedTuple):
    """One line of one file."""

    file: str
    line: int
    main_line: int
    """The line of the main file that led there (the same line if it is in the main file); 0 if there is none."""


class Places:
    """The places of all definitions of one rules file, by the definition's number."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._offsets = array("i")
        self._origins = array("i")
        self._codes: list[tuple[CodeType, CodeType | None, int]] = []
        """Code of the definition, and for code outside the main file the calling code and offset in it."""
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._last_code: CodeType | None = None
        self._last_number = 0
        self._tables: dict[int, tuple[list[int], list[int]]] = {}
        self._main_lines: dict[tuple[int, int], int] = {}

    def add(self, frame: FrameType) -> None:
        """Keeps the place of the next definition."""
        code = frame.f_code
        if code is not self._last_code:
            self._last_number = self._origin(frame)
            # Calls into other files come from ever different lines of the main one, so those are looked up each time.
            self._last_code = code if code.co_filename == self._source else None
        self._origins.append(self._last_number)
        self._offsets.append(frame.f_lasti)

    def _origin(self, frame: FrameType) -> int:
        outer: FrameType | None = frame
        while outer is not None and outer.f_code.co_filename != self._source:
            outer = outer.f_back
        if outer is None or outer is frame:
            entry: tuple[CodeType, CodeType | None, int] = (frame.f_code, None, 0)
        else:
            entry = (frame.f_code, outer.f_code, outer.f_lasti)
        key = (id(entry[0]), id(entry[1]), entry[2])
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._codes)
            self._codes.append(entry)
        return number

    def of(self, number: int) -> Place:
        code, outer, outer_offset = self._codes[self._origins[number]]
        line = self._line(code, self._offsets[number])
        if outer is not None:
            return Place(code.co_filename, line, self._line(outer, outer_offset))
        return Place(code.co_filename, line, line if code.co_filename == self._source else 0)

    def main_line(self, number: int) -> int:
        """As `of(number).main_line`, remembered for the instruction."""
        key = (self._origins[number], self._offsets[number])
        line = self._main_lines.get(key)
        if line is None:
            line = self._main_lines[key] = self.of(number).main_line
        return line

    def _line(self, code: CodeType, offset: int) -> int:
        table = self._tables.get(id(code))
        if table is None:
            entries = list(code.co_lines())
            table = self._tables[id(code)] = [entry[0] for entry in entries], [entry[2] or 0 for entry in entries]
        return table[1][max(0, bisect_right(table[0], offset) - 1)]


def place_of(frame: FrameType, source: str) -> Place:
    """The place of a frame at once, for the few things that need it: rules and errors."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename != source:
        outer = outer.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno, outer.f_lineno if outer is not None else 0)


class Blame:
    """A context in which the user's code runs: whatever it raises becomes an `InputError` at its own innermost line."""

    def __init__(self, texts: Mapping[str, str], place: Place | None = None) -> None:
        self._texts = texts
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, (Exception, SystemExit)):
            return
        if isinstance(error, InputError) and error.file is not None:
            return
        raise self._input_error(error, trace) from error

    def _input_error(self, error: BaseException, trace: TracebackType | None) -> InputError:
        if isinstance(error, SyntaxError) and error.filename:
            return InputError(
                error.msg, file=error.filename, line=error.lineno, column=error.offset or None, text=error.text
            )
        file, line = self._innermost(trace)
        remedy = None
        if isinstance(error, InputError):
            message, remedy = error.message, error.remedy
        elif isinstance(error, SystemExit):
            message = f"the file ended itself with sys.exit({error.code!r})"
        else:
            said = " ".join(str(error).split())
            message = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return InputError(message, file=file, line=line, remedy=remedy, text=line_text(self._texts, file, line))

    def _innermost(self, trace: TracebackType | None) -> tuple[str | None, int | None]:
        found = (self._place.file, self._place.line) if self._place else (None, None)
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in self._texts:
                found = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
            trace = trace.tb_next
        return found


def line_text(texts: Mapping[str, str], file: str | None, line: int | None) -> str | None:
    """The user's own line, if the file's text is known."""
    if file is None or line is None or file not in texts:
        return None
    lines = texts[file].splitlines()
    return lines[line - 1] if 0 < line <= len(lines) else None
