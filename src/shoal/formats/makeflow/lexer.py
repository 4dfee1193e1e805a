"""The lexer of Makeflows: reads file lists, variable values and commands, with quotes and `$` substitution.

Quotes, backslashes, comments and `$` have different meanings in the three places (file list, variable value, command):
see the three readers of `MakeflowLexer`. Each takes a position and returns where it stopped. So the parser decides what
a line is, and the lexer never reads more than that line. In file lists and commands, a value that replaces `$NAME` is
read again: it may contain several names, quotes or modifiers; `#` and line ends inside such a value are plain
characters.

Differences from the original, which all accept more: a bare `$NAME` ends at the first character that cannot be in a
name, a backslash at the end of a line separates names in file lists, the end of the text ends a line, a comment after a
value ends the value only, and a single quote that is not closed inside the same double quotes is a plain character.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shoal.formats.source_text import SourceText

MAX_DEPTH = 32
"""Maximum nesting of substitutions, as in the original."""
EXPANSION_BASE = 32 * 2**20
EXPANSION_FACTOR = 64
COST_OF_SUBSTITUTION = 64
COST_OF_WORD = 8
"""Limit of all substitutions together: `EXPANSION_BASE` characters, plus `EXPANSION_FACTOR` per character of the file.

Each substitution and each word count as the given number of characters. Variables that double in each line end in an
error instead of filling the memory."""
NAME_CHARACTERS = r"[^\\\"'$#\n\t ,.\-(){}\[\]<>=+!?/:]"
CONTROL = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_BRACKETED_NAME = re.compile(NAME_CHARACTERS + "+")
_BARE_NAME = re.compile(r"\w+")


def _run_pattern(plain: str, special: str) -> str:
    """Returns a pattern for one or more of `plain`, a set of characters, and `special`, which begins with another one.

    There is only one way to match a text, so a failure takes one pass. Possessive quantifiers would do the same, but
    the `re` of Python 3.11.2 (Debian 12) loses characters if they are nested.
    """
    return f"(?:{plain}|{special}){plain}*(?:(?:{special}){plain}*)*"


_COMMAND_PIECE = _run_pattern(r"[^\\\"'$#\n\t ]", r"\"(?![ \t])[^\"\\$']*\"|'[^'\\]*'")
_COMMAND_RUN = re.compile(f"{_COMMAND_PIECE}(?: {_COMMAND_PIECE})*")
_WORD_RUN = re.compile(_run_pattern(r"[^\\\"'$#\n\t :\-]", "-(?!>)"))
_PLAIN_WORD_RUN = re.compile(r"[^\\\"'$#\n\t ]+")
_VALUE_RUN = re.compile(r"[^\\\"'$#\n]+")
_DOUBLE_QUOTED_RUN = re.compile(r"[^\\\"'$]+")
_SINGLE_QUOTED_RUN = re.compile(r"[^\\']+")
_BLANKS = re.compile(r"[ \t]*")
_INNER_SINGLE_QUOTED = re.compile(r"'[^'\"\\]*(?:\\.[^'\"\\]*)*'", re.DOTALL)
_PLAIN_LIST = re.compile(_run_pattern(r"[^\\\"'$#\n\t:\-]", "-(?!>)"))
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_QUOTED_COMMAND = re.compile(r"^(?:[ \t]|(?:export[ \t]+)?\w+[ \t]*\+?=)[^\n']*'[^\n]*\\[^\n]*", re.MULTILINE)
"""A command, or the value of a variable that may become part of one, with a backslash in single quotes."""
_QUOTED_PART = re.compile(r"\\.|\"[^\"\\]*(?:\\.[^\"\\]*)*\"|'([^'\\]*(?:\\.[^'\\]*)*)'")
_LOST = re.compile(r"(?<!\\)(?:\\\\)*\\[^\\]")

Token = tuple[str, str, int]
"""Kind (`word`, `:` or `->`), text and position of a piece of a file list."""


class FileListWords:
    """Collects the tokens of a file list; a word can consist of plain, quoted and substituted parts."""

    def __init__(self, *, marks: bool) -> None:
        self.tokens: list[Token] = []
        self.marks = marks
        """Whether `:` and `->` are marks; in directives they are ordinary characters."""
        self._parts: list[str] = []
        self._start = 0

    def add(self, text: str, position: int) -> None:
        if not self._parts:
            self._start = position
        self._parts.append(text)

    def add_list(self, text: str, position: int) -> None:
        """Adds words separated by blanks; the first continues the current word, the last can be continued."""
        first, *others = text.split(" ")
        self.add(first, position)
        if others:
            self.end_word()
            self.tokens.extend(("word", word, position) for word in others[:-1] if word)
            self.add(others[-1], position)

    def end_word(self) -> None:
        word = "".join(self._parts)
        self._parts.clear()
        if word:
            self.tokens.append(("word", word, self._start))

    def mark(self, kind: str, position: int) -> None:
        self.end_word()
        self.tokens.append((kind, kind, position))


class CommandText:
    """Collects a command; collapses runs of blanks and drops those at both ends."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.blank = False

    def add(self, text: str) -> None:
        if self.blank:
            self.blank = False
            if self.parts:
                self.parts.append(" ")
        self.parts.append(text)


class MakeflowLexer:
    """Reads parts of one source text; `lookup` returns the current value of a variable, or None."""

    def __init__(self, source: SourceText, lookup: Callable[[str], str | None]) -> None:
        self.source = source
        self.lookup = lookup
        self._allowance = EXPANSION_BASE + EXPANSION_FACTOR * len(source.text)

    def words(self, position: int, *, marks: bool = True) -> tuple[list[Token], int]:
        """Reads a file list (or, without marks, a directive) up to the end of its line.

        Returns the tokens and the start of the next line.
        """
        words = FileListWords(marks=marks)
        position = self._read_words(words, self.source.text, position, None, 0)
        words.end_word()
        return words.tokens, position

    def command(self, position: int) -> tuple[str, int]:
        """Reads a command up to the end of its line; returns it and the start of the next line."""
        command = CommandText()
        position = self._read_command(command, self.source.text, position, None, 0)
        return "".join(command.parts), position

    def value(self, position: int) -> tuple[str, int]:
        """Reads a variable's value, with its quotes, up to the end of its line; returns it and the start of the
        next."""
        text = self.source.text
        position = skip_blanks(text, position)
        parts: list[str] = []
        while position < len(text):
            if run := _VALUE_RUN.match(text, position):
                parts.append(run[0])
                position = run.end()
                continue
            character = text[position]
            if character == "\n":
                return "".join(parts), position + 1
            if character == "#":
                return "".join(parts).rstrip(" \t"), skip_line(text, position)
            part, position = self._read_special(text, position, None, escape=unescape)
            parts.append(part)
        return "".join(parts), position

    def _read_words(self, words: FileListWords, text: str, position: int, origin: int | None, depth: int) -> int:
        run_of = (_WORD_RUN if words.marks else _PLAIN_WORD_RUN).match
        while position < len(text):
            place = position if origin is None else origin
            if run := run_of(text, position):
                words.add(run[0], place)
                position = run.end()
                continue
            character = text[position]
            if character in " \t" or (character == "\n" and depth):
                words.end_word()
                position += 1
            elif character == "\n":
                return position + 1
            elif character == "#" and not depth:
                return skip_line(text, position)
            elif character == ":":
                words.mark(":", place)
                position += 1
            elif character == "-":
                words.mark("->", place)
                position += 2
            elif character == "$":
                value, position = self._substitution(text, position, origin, depth)
                if words.marks and _PLAIN_LIST.fullmatch(value):
                    words.add_list(value, place)
                else:
                    self._read_words(words, value, 0, place, depth + 1)
            elif text.startswith("\\\n", position):
                words.end_word()
                position += 2
            elif character == '"':
                quoted, position = self._double_quoted(text, position, origin, inner_quotes=False)
                words.add(quoted[1:-1], place)
            elif character == "'":
                quoted, position = self._single_quoted(text, position, origin)
                words.add(quoted[1:-1], place)
            elif character == "#":
                words.add("#", place)
                position += 1
            else:
                words.add(text[position + 1 : position + 2], place)
                position += 2
        return position

    def _read_command(self, command: CommandText, text: str, position: int, origin: int | None, depth: int) -> int:
        while position < len(text):
            if run := _COMMAND_RUN.match(text, position):
                command.add(run[0])
                position = run.end()
                continue
            character = text[position]
            if character in " \t":
                command.blank = True
                position += 1
            elif character == "$":
                value, after = self._substitution(text, position, origin, depth)
                self._read_command(command, value, 0, position if origin is None else origin, depth + 1)
                position = after
            elif character in "\n#" and depth:
                command.add(character)
                position += 1
            elif character == "\n":
                return position + 1
            elif character == "#":
                return skip_line(text, position)
            elif text.startswith("\\\n", position):
                command.blank = True
                position += 2
            else:
                part, position = self._read_special(text, position, origin, escape=str)
                command.add(part)
        return position

    def _read_special(
        self, text: str, position: int, origin: int | None, *, escape: Callable[[str], str]
    ) -> tuple[str, int]:
        """Reads what follows a quote, a dollar or a backslash; returns it, with its quotes, and its end."""
        character = text[position]
        if character == "'":
            return self._single_quoted(text, position, origin)
        if character == '"':
            return self._double_quoted(text, position, origin)
        if character == "$":
            return self._substitution(text, position, origin, 0)
        return escape(text[position + 1 : position + 2]), position + 2

    def _single_quoted(self, text: str, start: int, origin: int | None) -> tuple[str, int]:
        """Reads a text in single quotes: nothing is substituted, but backslashes are removed, as in the original."""
        position = start + 1
        while position < len(text):
            if run := _SINGLE_QUOTED_RUN.match(text, position):
                position = run.end()
            elif text[position] == "'":
                return drop_backslashes(text[start : position + 1]), position + 1
            else:
                position += 2
        raise self._unclosed("'", start if origin is None else origin)

    def _double_quoted(
        self, text: str, start: int, origin: int | None, *, inner_quotes: bool = True
    ) -> tuple[str, int]:
        """Reads a text in double quotes.

        Like the original, drops blanks after the opening quote and substitutes nothing inside single quotes. Without
        `inner_quotes`, removes the single quotes, as in file names.
        """
        parts = ['"']
        position = skip_blanks(text, start + 1)
        while position < len(text):
            if run := _DOUBLE_QUOTED_RUN.match(text, position):
                parts.append(run[0])
                position = run.end()
            elif text[position] == '"':
                parts.append('"')
                return "".join(parts), position + 1
            elif text[position] == "'":
                inner = _INNER_SINGLE_QUOTED.match(text, position)
                enclosed = drop_backslashes(inner[0]) if inner else "'"
                parts.append(enclosed if inner_quotes or not inner else enclosed[1:-1])
                position = inner.end() if inner else position + 1
            else:
                part, position = self._read_special(text, position, origin, escape=unescape)
                parts.append(part)
        raise self._unclosed('"', start if origin is None else origin)

    def _unclosed(self, quote: str, place: int) -> Exception:
        return self.source.error(
            place,
            f"this {quote} has no closing {quote}",
            remedy=f"close it, or write \\{quote} for a literal {quote}",
        )

    def _substitution(self, text: str, position: int, origin: int | None, depth: int) -> tuple[str, int]:
        """Returns the value of the variable referenced at a dollar, and the end of the reference."""
        place = position if origin is None else origin
        position += 1
        closing = {"(": ")", "{": "}"}.get(text[position : position + 1], "")
        name = _BRACKETED_NAME.match(text, position + 1) if closing else _BARE_NAME.match(text, position)
        if name is None:
            raise self.source.error(
                place, "expected the name of a variable after $", remedy="write \\$ for a dollar meant for the shell"
            )
        position = name.end()
        if closing:
            if not text.startswith(closing, position):
                raise self.source.error(
                    place,
                    f"this reference to a variable lacks its closing {closing!r}",
                    remedy="write backquotes for the output of a command, or \\$ for a dollar meant for the shell",
                )
            position += 1
        value = self.lookup(name[0])
        if value is None:
            raise self.source.error(
                place,
                f"the variable {name[0]!r} is not defined here",
                remedy="assign it above this line, or write \\$ for a variable of the shell",
            )
        if depth >= MAX_DEPTH:
            raise self.source.error(place, f"the variable {name[0]!r} refers to itself")
        self.charge(place, value)
        return value, position

    def charge(self, place: int, value: str) -> None:
        """Charges the value of a variable at `place` to the limit of all substitutions in the file."""
        self.spend(place, self.cost_of(value))

    def cost_of(self, value: str) -> int:
        return len(value) + COST_OF_WORD * value.count(" ") + COST_OF_SUBSTITUTION

    def spend(self, place: int, cost: int) -> None:
        self._allowance -= cost
        if self._allowance < 0:
            raise self.source.error(place, "the variables of this file expand to too much text")


def unescape(character: str) -> str:
    """Returns the meaning of a character after a backslash in values and double quotes; a line end becomes a blank."""
    return " " if character == "\n" else CONTROL.get(character, character)


def drop_backslashes(quoted: str) -> str:
    """Removes backslashes from a text in single quotes, as the original does; an escaped line end becomes a blank."""
    if "\\" not in quoted:
        return quoted
    return _ESCAPED.sub(lambda found: " " if found[1] == "\n" else found[1], quoted)


def note_on_backslashes(source: SourceText) -> str:
    """Returns a warning about the first command or value that loses a backslash inside single quotes; else "".

    The original removes these backslashes, and so does Shoal, but authors of Makeflows hardly ever mean it.
    """
    text = source.text
    if "\\" not in text or "'" not in text:
        return ""
    lost = [
        (line.start() + found.start(), found[0])
        for line in _QUOTED_COMMAND.finditer(text)
        for found in _QUOTED_PART.finditer(line[0])
        if found[1] is not None and (_LOST.search(found[1]) or ("\\" in found[1] and line[0][0] not in " \t"))
    ]
    if not lost:
        return ""
    place, quoted = lost[0]
    more = f" (and so in {len(lost) - 1} more place{'s' * (len(lost) > 2)})" if len(lost) > 1 else ""
    where = f"{source.name}:{text.count(chr(10), 0, place) + 1}"
    if text[text.rfind("\n", 0, place) + 1] not in " \t":
        return (
            f"{where}: Makeflow removes backslashes also inside single quotes, in the value of a variable and again in "
            f"the command{more}; write {quoted} in the command itself, with \\\\ for each backslash"
        )
    return (
        f"{where}: Makeflow removes backslashes also inside single quotes: "
        f"the command gets {drop_backslashes(quoted)}, not {quoted}{more}; write \\\\ for each backslash"
    )


def skip_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def skip_line(text: str, position: int) -> int:
    """Returns the start of the next line."""
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1
