"""Command templates: `{needs}`, `{out}`, wildcards and values of the rules file inside an otherwise ordinary command.

A template is parsed once; what is known at definition (values of the rules file) is bound there, the rest when the
task is made. Braces that hold no identifier are the shell's or awk's and stay as they are: `{print $1}`, `{a,b}`,
`${HOME}`. `{{` and `}}` are literal braces where they come in pairs, so that the `}}` that ends two awk blocks stays.
What words mean, and where in the user's file an error belongs, is the caller's matter: errors here have no place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from shoal.errors import InputError

OUTPUT_WORDS = ("out", "outs")
FILE_WORDS = ("needs", *OUTPUT_WORDS)
"""These always stand for files; `name` is the task's name unless a wildcard is called so."""
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
    """What a task offers to its template."""

    name: str
    outs: Sequence[str]
    needs: Sequence[str]
    groups: Mapping[str, str | tuple[str, ...]]
    wildcards: Mapping[str, str]

    def values(self, field: Field) -> Sequence[str]:
        """The file names, or the one wildcard, a field stands for."""
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
            raise InputError(f"{field} is not among the named needs (they are: {known})", remedy="pass needs=dict(...)")
        group = self.groups[key]
        return (group,) if isinstance(group, str) else group


class Template(NamedTuple):
    """A command, or one word of it, with fields to be filled in."""

    pieces: tuple[Piece, ...]

    def command(self, names: TemplateNames) -> str:
        """For a shell: file names are quoted where they need it."""
        return "".join(
            [piece if type(piece) is str else " ".join(map(shlex.quote, names.values(piece))) for piece in self.pieces]  # type: ignore[arg-type]
        )

    def text(self, names: TemplateNames) -> str:
        """As it is, without quotes."""
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
    """Pieces of text and fields in turn; no two pieces of text in a row."""
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
    """The template of a text with reserved words only, which needs no binding: loops define many tasks with one."""
    pieces = parse(text)
    fields = [piece for piece in pieces if isinstance(piece, Field)]
    if fields and all(field.word in RESERVED and has_parts(field) for field in fields):
        return Template(pieces)
    return None


def bind(text: str, later: Sequence[str], value_of: Callable[[str], str]) -> str | Template:
    """Parses `text` and puts in every value that is known now; the words in `later` and the reserved ones stay fields.

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
                    f"{piece}: only needs and outs have parts", remedy=f"write {{{piece}}} for the text itself"
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
    """As `bind`, for a command given as a list of words."""
    bound = tuple(bind(word, later, value_of) for word in words)
    texts = [word for word in bound if isinstance(word, str)]
    return shlex.join(texts) if len(texts) == len(bound) else WordTemplate(bound)


def has_parts(field: Field) -> bool:
    """Whether the field is asked for no more than its word can give: `needs.key`, `needs[0]`, `outs[0]`."""
    if field.key is not None:
        return field.word == "needs"
    return field.position is None or field.word in ("needs", "outs")
