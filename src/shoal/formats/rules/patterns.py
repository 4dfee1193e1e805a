"""Output patterns: `p/{x}.fits`, `{x:[0-9]+}.dat`, or a compiled regular expression with named groups.

A wildcard matches one or more characters, slashes among them, as much as it can; `{x:regex}` narrows it. The same
wildcard twice must match the same text. What a rule does with a match is left to `search`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from shoal.errors import InputError
from shoal.formats.rules.options import SupportsPath
from shoal.formats.rules.template import FILE_WORDS

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


_SPEC = re.compile(r"%(?:\{([^}]*)\})?(-?\d+)?([pfnxXds%])")


class FileList(list[str]):
    """A list of file names, as `files("r/*.fits")` gives it, with the operations a rules file wants on it."""

    pattern: str | None = None
    """The `{x}` pattern it was found with, for `map`."""

    def map(self, to: str, from_: str | None = None) -> FileList:
        """The names that match `from_` (by default the pattern given to `files`), rewritten as `to`."""
        source = from_ or self.pattern
        if source is None:
            raise InputError(
                "map() does not know the names' pattern", remedy="give it: map('p/{x}.fits', 'r/{x}.fits')"
            )
        before, after = Pattern(source), Pattern(to)
        unknown = [wildcard for wildcard in after.wildcards if wildcard not in before.wildcards]
        if unknown:
            raise InputError(f"{{{unknown[0]}}} in {to!r} is not a wildcard of {source!r}")
        matches = [before.match(name) for name in self]
        return FileList(after.fill(found) for found in matches if found is not None)

    def exclude(self, *patterns: str) -> FileList:
        """The names that match none of the patterns, in which `*` and `{x}` match anything."""
        expressions = [re.compile(re.sub(r"\\\*|\\\{.*?\\\}", ".*", re.escape(pattern))) for pattern in patterns]
        kept = FileList(name for name in self if not any(expression.fullmatch(name) for expression in expressions))
        kept.pattern = self.pattern
        return kept

    def ext(self, extension: str) -> FileList:
        """The names with another extension, as Rake's `ext`."""
        return FileList(pathmap(name, "%X") + extension for name in self)

    def pathmap(self, spec: str) -> FileList:
        return FileList(pathmap(name, spec) for name in self)


def pathmap(path: str | SupportsPath, spec: str) -> str:
    """Rewrites a path as Rake's pathmap does.

    `%p` is the path, `%f` its file name, `%n` that without extension, `%d` its directory, `%x` its extension and `%X`
    everything before it. `%2d` keeps the first two directories, `%-2d` the last two. `%{from,to;from,to}p` replaces
    before inserting, `from` being a regular expression; `%s` is a slash and `%%` a percent sign.
    """
    text = str(path)

    def insert(found: re.Match[str]) -> str:
        replacements, count, letter = found.groups()
        if count is not None and letter != "d":
            raise InputError(f"{found[0]!r} in the pathmap {spec!r}: only %d takes a number")
        value = _PARTS[letter](text) if count is None else some_directories(text, int(count))
        for pair in (replacements or "").split(";"):
            before, comma, after = pair.partition(",")
            if before:
                value = re.sub(before, after, value) if comma else re.sub(before, "", value)
        return value

    try:
        return _SPEC.sub(insert, spec)
    except re.error as error:
        raise InputError(f"the pathmap {spec!r} holds a wrong regular expression: {error}") from None


def file_part(path: str) -> str:
    return path.rpartition("/")[2]


def extension(path: str) -> str:
    """From the last dot of the file's name on; a name that begins with its only dot has none."""
    name = file_part(path)
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""


def directory_part(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head or (slash or ".")


def some_directories(path: str, count: int) -> str:
    """The first `count` directories of the path, or the last `-count`."""
    parts = directory_part(path).split("/")
    return "/".join(parts[:count] if count >= 0 else parts[count:]) or "."


_PARTS: dict[str, Callable[[str], str]] = {
    "p": lambda path: path,
    "f": file_part,
    "n": lambda path: file_part(path).removesuffix(extension(path)),
    "x": extension,
    "X": lambda path: path.removesuffix(extension(path)),
    "d": directory_part,
    "s": lambda path: "/",
    "%": lambda path: "%",
}
