"""Command templates (`{out}`, `{needs.key}`), output patterns (`p/{x}.fits`) and path operations of rules files.

A template has fields in braces that are filled in for each task. An output pattern is a text with wildcards, such as
`{x:[0-9]+}.dat`, or a compiled regular expression with named groups. A wildcard matches one or more characters, slashes
included, as many as possible; `{x:regex}` restricts it. A wildcard that occurs twice must match the same text both
times. `FileList` and `pathmap` rewrite file names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from shoal.errors import InputError
from shoal.formats.rules.options import SupportsPath

OUTPUT_WORDS = ("out", "outs")
FILE_WORDS = ("needs", *OUTPUT_WORDS)
"""Words that always stand for files. `name` is the task's name unless a wildcard has this name."""
RESERVED = ("name", *FILE_WORDS)

_TOKEN = re.compile(
    r"""  \$\{ (?!\{)                        # ${HOME} is the shell's
        | \{\{ | \}\}
        | \{ ([^\W\d]\w*) (?: \.([^\W\d]\w*) | \[(-?\d+)\] )? \}
    """,
    re.VERBOSE,
)


class Field(NamedTuple):
    """One `{word}`, `{word.key}` or `{word[position]}`."""

    word: str
    key: str | None = None
    position: int | None = None

    def __str__(self) -> str:
        accessor = f".{self.key}" if self.key is not None else f"[{self.position}]" if self.position is not None else ""
        return f"{{{self.word}{accessor}}}"


Piece: TypeAlias = str | Field


class TemplateNames(NamedTuple):
    """The names and values of one task that its template can refer to."""

    name: str
    outs: Sequence[str]
    needs: Sequence[str]
    groups: Mapping[str, str | tuple[str, ...]]
    wildcards: Mapping[str, str]

    def values(self, field: Field) -> Sequence[str]:
        """Returns the file names, or the wildcard's value, that a field stands for."""
        word, key, position = field
        if word == "needs":
            found = self.needs if key is None else self._group(field, key)
        elif word in OUTPUT_WORDS:
            if not self.outs:
                raise InputError(f"{field} stands for an output, but a task has none", remedy="use file() for it")
            found = self.outs if word == "outs" else self.outs[:1]
        else:
            return (self.wildcards.get("name", self.name) if word == "name" else self.wildcards[word],)
        if position is None:
            return found
        try:
            return (found[position],)
        except IndexError:
            raise InputError(f"{field} is out of range: there are {len(found)}") from None

    def _group(self, field: Field, key: str) -> Sequence[str]:
        if key not in self.groups:
            known = ", ".join(self.groups) or "none"
            raise InputError(f"{field} is not among the named needs ({known})", remedy="pass needs=dict(...)")
        group = self.groups[key]
        return (group,) if isinstance(group, str) else group


class Template(NamedTuple):
    """A command, or one word of it, with fields to be filled in."""

    pieces: tuple[Piece, ...]

    def command(self, names: TemplateNames) -> str:
        """Returns the text for a shell: file names are quoted where necessary."""
        return "".join(
            [piece if type(piece) is str else " ".join(map(shlex.quote, names.values(piece))) for piece in self.pieces]  # type: ignore[arg-type]
        )

    def text(self, names: TemplateNames) -> str:
        """Returns the text without quoting."""
        return "".join([piece if isinstance(piece, str) else " ".join(names.values(piece)) for piece in self.pieces])


class WordTemplate(NamedTuple):
    """A command given as a list: each word is quoted as a whole; a word that is only a field may become several."""

    words: tuple[str | Template, ...]

    def command(self, names: TemplateNames) -> str:
        words: list[str] = []
        for word in self.words:
            if isinstance(word, str):
                words.append(word)
            elif len(word.pieces) == 1 and isinstance(word.pieces[0], Field):
                words.extend(names.values(word.pieces[0]))
            else:
                words.append(word.text(names))
        return shlex.join(words)


Command: TypeAlias = str | Template | WordTemplate


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Piece, ...]:
    """Splits a template into texts and fields; two texts never follow each other."""
    tokens = list(_TOKEN.finditer(text))
    escapes = _paired_escapes(tokens)
    pieces: list[Piece] = []
    literal = ""
    end = 0
    for number, token in enumerate(tokens):
        literal += text[end : token.start()]
        end = token.end()
        if token[1] is None:
            literal += token[0][0] if number in escapes else token[0]
            continue
        if literal:
            pieces.append(literal)
            literal = ""
        pieces.append(Field(token[1], token[2], None if token[3] is None else int(token[3])))
    literal += text[end:]
    if literal:
        pieces.append(literal)
    return tuple(pieces)


def _paired_escapes(tokens: Sequence[re.Match[str]]) -> dict[int, None]:
    opened: list[int] = []
    paired: dict[int, None] = {}
    for number, token in enumerate(tokens):
        if token[0] == "{{":
            opened.append(number)
        elif token[0] == "}}" and opened:
            paired[opened.pop()] = paired[number] = None
    return paired


@lru_cache(maxsize=4096)
def _closed(text: str) -> Template | None:
    """Returns the template of a text that has reserved words only, else None.

    Such a template needs no variables of the caller, so it is cached: loops define many tasks with the same text.
    """
    pieces = parse(text)
    fields = [piece for piece in pieces if isinstance(piece, Field)]
    if fields and all(field.word in RESERVED and has_parts(field) for field in fields):
        return Template(pieces)
    return None


def bind(text: str, later: Sequence[str], value_of: Callable[[str], str]) -> str | Template:
    """Parses `text` and inserts every value that is known now; words in `later` and reserved words stay fields.

    `value_of` raises `InputError` for a word it does not know.
    """
    if "{" not in text:
        return text
    closed = _closed(text)
    if closed is not None:
        return closed
    pieces: list[Piece] = []
    for piece in parse(text):
        if isinstance(piece, Field):
            if not has_parts(piece):
                raise InputError(
                    f"{piece}: only needs and outs have parts", remedy=f"write {{{piece}}} for the literal text"
                )
            if piece.word not in RESERVED and piece.word not in later:
                piece = value_of(piece.word)
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    if len(pieces) == 1 and isinstance(pieces[0], str):
        return pieces[0]
    return Template(tuple(pieces)) if pieces else ""


def bind_words(words: Sequence[str], later: Sequence[str], value_of: Callable[[str], str]) -> str | WordTemplate:
    """Same as `bind`, for a command given as a list of words."""
    bound = tuple(bind(word, later, value_of) for word in words)
    texts = [word for word in bound if isinstance(word, str)]
    return shlex.join(texts) if len(texts) == len(bound) else WordTemplate(bound)


def has_parts(field: Field) -> bool:
    """Whether the word of the field supports its key or position, as in `needs.key`, `needs[0]` and `outs[0]`."""
    if field.key is not None:
        return field.word == "needs"
    return field.position is None or field.word in ("needs", "outs")


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
                raise InputError(f"{wildcard!r} cannot be a wildcard: it is a reserved word", remedy="rename it")

    @property
    def is_expression(self) -> bool:
        """Whether the pattern is a compiled regular expression, from which no name can be built."""
        return self._pieces is None

    def match(self, name: str) -> dict[str, str] | None:
        """Returns the values of the wildcards if the whole name matches, else None."""
        if not (name.startswith(self.prefix) and name.endswith(self.suffix)):
            return None
        found = self._expression.fullmatch(name)
        if found is None:
            return None
        return {wildcard: found[wildcard] or "" for wildcard in self.wildcards}

    def fill(self, wildcards: dict[str, str]) -> str:
        """Returns the name with these values of the wildcards."""
        assert self._pieces is not None
        return "".join(
            [wildcards[wildcard_name(piece)] if odd & 1 else piece for odd, piece in enumerate(self._pieces)]
        )

    def glob(self) -> str:
        """Returns the pattern as a shell glob, with a star for each wildcard."""
        assert self._pieces is not None
        return "".join(["*" if odd & 1 else piece for odd, piece in enumerate(self._pieces)])


def split_pattern(text: str) -> list[str]:
    """Splits a pattern into alternating literal texts and contents of braces.

    The first and the last piece are texts, possibly empty. `{{` stands for a brace.
    """
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
            raise InputError(f"the pattern {text!r} has a '}}' without '{{'", remedy="write '}}' for a literal brace")
        else:
            pieces[-1] += character
            position += 1
    return pieces


def closing_brace(text: str, position: int) -> int:
    """Returns the position of the matching brace; a regular expression inside may contain braces, as in `[0-9]{4}`."""
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
    raise InputError(f"the pattern {text!r} has a '{{' that is not closed", remedy="write '{{' for a literal brace")


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
            raise InputError(f"{{{piece}}} in the pattern {text!r} is not a valid wildcard", remedy="write {name}")
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
    """The argument of a function given as `needs=`: `w.out`, `w.outs`, `w.name` and the wildcards, `w.x`."""

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
            raise AttributeError(f"there is no wildcard {wildcard!r} (wildcards: {known})") from None

    def __getitem__(self, wildcard: str) -> str:
        return self.wildcards[wildcard]


_SPEC = re.compile(r"%(?:\{([^}]*)\})?(-?\d+)?([pfnxXds%])")


class FileList(list[str]):
    """A list of file names, as returned by `files("r/*.fits")`, with operations on the names."""

    pattern: str | None = None
    """The `{x}` pattern that was given to `files`, used by `map`."""

    def map(self, to: str, from_: str | None = None) -> FileList:
        """Returns the names that match `from_` (default: the pattern given to `files`), rewritten as `to`."""
        source = from_ or self.pattern
        if source is None:
            raise InputError("map() needs the pattern of the names", remedy="give it: map('p/{x}.fits', 'r/{x}.fits')")
        before, after = Pattern(source), Pattern(to)
        unknown = [wildcard for wildcard in after.wildcards if wildcard not in before.wildcards]
        if unknown:
            raise InputError(f"{{{unknown[0]}}} in {to!r} is not a wildcard of {source!r}")
        matches = [before.match(name) for name in self]
        return FileList(after.fill(found) for found in matches if found is not None)

    def exclude(self, *patterns: str) -> FileList:
        """Returns the names that match none of the patterns, in which `*` and `{x}` match anything."""
        expressions = [re.compile(re.sub(r"\\\*|\\\{.*?\\\}", ".*", re.escape(pattern))) for pattern in patterns]
        kept = FileList(name for name in self if not any(expression.fullmatch(name) for expression in expressions))
        kept.pattern = self.pattern
        return kept

    def ext(self, extension: str) -> FileList:
        """Returns the names with another extension, like Rake's `ext`."""
        return FileList(pathmap(name, "%X") + extension for name in self)

    def pathmap(self, spec: str) -> FileList:
        return FileList(pathmap(name, spec) for name in self)


def pathmap(path: str | SupportsPath, spec: str) -> str:
    """Rewrites a path like Rake's pathmap.

    `%p` is the path, `%f` its file name, `%n` the file name without extension, `%d` the directory, `%x` the extension
    and `%X` the path without extension. `%2d` keeps the first two directories, `%-2d` the last two.
    `%{from,to;from,to}p` replaces regular expressions before inserting. `%s` is a slash, `%%` a percent sign.
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
        raise InputError(f"the pathmap {spec!r} contains an invalid regular expression: {error}") from None


def file_part(path: str) -> str:
    return path.rpartition("/")[2]


def extension(path: str) -> str:
    """Returns the file name from its last dot on; a name whose only dot is at the start has no extension."""
    name = file_part(path)
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""


def directory_part(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head or (slash or ".")


def some_directories(path: str, count: int) -> str:
    """Returns the first `count` directories of the path, or the last `-count`."""
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
