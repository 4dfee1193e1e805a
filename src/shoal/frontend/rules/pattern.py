"""Output patterns: `p/{x}.fits`, `{x:[0-9]+}.dat`, or a compiled regular expression with named groups.

A wildcard matches one or more characters, slashes among them, as much as it can; `{x:regex}` narrows it. The same
wildcard twice must match the same text. What a rule does with a match is left to `search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.errors import InputError
from shoal.frontend.rules.template import FILE_WORDS

ANYTHING = ".+"
_NAME = re.compile(r"[^\W\d]\w*")


class Pattern:
    """One output pattern of a rule."""

    __slots__ = ("_expression", "_pieces", "prefix", "suffix", "text", "wildcards")

    def __init__(self, source: str | re.Pattern[str]) -> None:
        if isinstance(source, str):
            self.text = source
            self._pieces: tuple[str, ...] | None = tuple(split_pattern(source))
            self._expression = compile_pieces(self._pieces, source)
            self.prefix, self.suffix = self._pieces[0], self._pieces[-1]
        else:
            self.text = source.pattern
            self._pieces = None
            self._expression = source
            self.prefix = self.suffix = ""
        self.wildcards = tuple(self._expression.groupindex)
        for wildcard in self.wildcards:
            if wildcard in FILE_WORDS:
                raise InputError(f"{wildcard!r} cannot be a wildcard: it has a meaning of its own", remedy="rename it")

    @property
    def is_expression(self) -> bool:
        """Whether it came as a compiled regular expression, from which no name can be made."""
        return self._pieces is None

    def match(self, name: str) -> dict[str, str] | None:
        """The wildcards' values if the whole name fits."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        found = self._expression.fullmatch(name)
        if found is None:
            return None
        return {wildcard: found[wildcard] or "" for wildcard in self.wildcards}

    def fill(self, wildcards: dict[str, str]) -> str:
        """The name that this pattern has for these values."""
        assert self._pieces is not None
        return "".join(
            [wildcards[wildcard_name(piece)] if odd & 1 else piece for odd, piece in enumerate(self._pieces)]
        )

    def glob(self) -> str:
        """The pattern as a shell glob, each wildcard a star."""
        assert self._pieces is not None
        return "".join(["*" if odd & 1 else piece for odd, piece in enumerate(self._pieces)])


def split_pattern(text: str) -> list[str]:
    """Literal text and insides of braces in turn, beginning and ending with (perhaps empty) text; `{{` is a brace."""
    pieces = [""]
    position = 0
    while position < len(text):
        character = text[position]
        if text[position : position + 2] in ("{{", "}}"):
            pieces[-1] += character
            position += 2
        elif character == "{":
            end = closing_brace(text, position)
            pieces += [text[position + 1 : end], ""]
            position = end + 1
        elif character == "}":
            raise InputError(
                f"the pattern {text!r} has a '}}' without '{{'", remedy="write '}}' for the character itself"
            )
        else:
            pieces[-1] += character
            position += 1
    return pieces


def closing_brace(text: str, position: int) -> int:
    """Where the brace at `position` ends; a regular expression inside may hold braces of its own, as in `[0-9]{4}`."""
    depth = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if not depth:
                return position
        position += 1
    raise InputError(
        f"the pattern {text!r} has a '{{' that is not closed", remedy="write '{{' for the character itself"
    )


def wildcard_name(piece: str) -> str:
    return piece.partition(":")[0].strip()


def compile_pieces(pieces: Sequence[str], text: str) -> re.Pattern[str]:
    expression = ""
    seen: list[str] = []
    for odd, piece in enumerate(pieces):
        if not odd & 1:
            expression += re.escape(piece)
            continue
        name = wildcard_name(piece)
        if not _NAME.fullmatch(name):
            raise InputError(f"{{{piece}}} in the pattern {text!r} does not name a wildcard", remedy="write {name}")
        if name in seen:
            expression += f"(?P={name})"
        else:
            seen.append(name)
            expression += f"(?P<{name}>{piece.partition(':')[2] or ANYTHING})"
    try:
        return re.compile(expression)
    except re.error as error:
        raise InputError(f"the pattern {text!r} is not a regular expression: {error}") from None


class Match:
    """What a function given as `needs=` is called with: `w.out`, `w.outs`, `w.name` and the wildcards, `w.x`."""

    __slots__ = ("name", "outs", "wildcards")

    def __init__(self, name: str, outs: Sequence[str], wildcards: dict[str, str]) -> None:
        self.name = name
        self.outs = outs
        self.wildcards = wildcards

    @property
    def out(self) -> str:
        return self.outs[0] if self.outs else self.name

    def __getattr__(self, wildcard: str) -> str:
        try:
            return self.wildcards[wildcard]
        except KeyError:
            known = ", ".join(self.wildcards) or "none"
            raise AttributeError(f"there is no wildcard {wildcard!r} (there are: {known})") from None

    def __getitem__(self, wildcard: str) -> str:
        return self.wildcards[wildcard]
