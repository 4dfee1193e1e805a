"""Cutting JX text into tokens, one at a time: of what stands behind an expression only one token is looked at."""

from __future__ import annotations

import re

from shoal.frontend.source import Source

LARGEST_INTEGER = 2**63 - 1
KEYWORDS = frozenset(("null", "true", "false", "or", "and", "not", "for", "in", "if", "error"))
_TOKEN = re.compile(
    r"""
    (?:[ \t\n\r\v\f]+ | \#[^\n\r]*)*
    (?:
        "([^"\\]*(?:\\.[^"\\]*)*)"
        | ([A-Za-z_][A-Za-z0-9_]*)
        | ((?:[0-9]|\.[0-9])(?:[0-9.]|[eE][-+]?)*)
        | (==|!=|<=|>=|&&|\|\||[-+*/%<>!()\[\]{},:;.])
        | ()
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_STRING, _WORD, _NUMBER, _MARK = range(1, 5)
_ESCAPE = re.compile(r"\\(?:u(.{0,4})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPELLINGS = {"&&": "and", "||": "or", "!": "not"}
_DOUBLED = {"=": "==", "&": "&&", "|": "||"}


class Lexer:
    """Holds one token at a time: its kind, where it begins, and its value.

    The kind of a keyword or an operator is the word itself; otherwise it is name, string, number or end.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self.end = 0
        self.kind = ""
        self.position = 0
        self.value: int | float | str = ""
        self.advance()

    def advance(self) -> None:
        """Goes on to the next token."""
        before = self.end
        match = _TOKEN.match(self.text, before)
        assert match is not None  # the last alternative is empty
        group = match.lastindex
        assert group is not None
        found = match[group]
        self.position = match.start(group)
        self.end = match.end()
        if group == _STRING:
            self.position -= 1
            self.kind = "string"
            self.value = self._unescaped(found) if "\\" in found else found
        elif group == _MARK:
            self.kind = _SPELLINGS.get(found, found)
        elif group == _WORD:
            self.kind = found if found in KEYWORDS else "name"
            self.value = found
        elif group == _NUMBER:
            self.kind = "number"
            self.value = self._number(found)
        else:
            self._check_end(before)

    def accept(self, kind: str) -> bool:
        """Goes on if the token is of this kind."""
        if self.kind == kind:
            self.advance()
            return True
        return False

    def shown(self) -> str:
        """The token as an error names it."""
        names = {"end": "the end of the text", "string": "a string"}
        return names.get(self.kind) or repr(self.text[self.position : self.end][:40])

    def _check_end(self, before: int) -> None:
        start = self.position
        if start == len(self.text):
            self.kind = "end"
            self.position = before  # behind the last token, for that is where something is missing
            return
        found = self.text[start]
        if found == '"':
            raise self.source.error(start, "the string that begins here has no end", remedy='close it with "')
        if found == "'":
            raise self.source.error(start, "a string stands in double quotes", remedy='write "..."')
        if found in _DOUBLED:
            raise self.source.error(start, f"there is no operator {found}", remedy=f"did you mean {_DOUBLED[found]}?")
        raise self.source.error(start, f"the character {found!r} has no meaning outside a string")

    def _unescaped(self, text: str) -> str:
        def plain(match: re.Match[str]) -> str:
            digits, other = match.groups()
            if digits is None:
                return _ESCAPED.get(other, other)
            return self._code(self.position + 1 + match.start(), digits)

        return _ESCAPE.sub(plain, text)

    def _code(self, position: int, digits: str) -> str:
        if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
            raise self.source.error(position, r"after \u stand four hexadecimal digits")
        code = int(digits, 16)
        if code > 0x7F:
            remedy = "write the character itself"
            raise self.source.error(position, rf"\u{digits} is not an ASCII character", remedy=remedy)
        if code == 0:
            raise self.source.error(position, "a string cannot hold a zero byte")
        return chr(code)

    def _number(self, text: str) -> int | float:
        if text.isdigit():
            digits = text.lstrip("0") or "0"
            return LARGEST_INTEGER if len(digits) > 19 else min(int(digits), LARGEST_INTEGER)
        try:
            return float(text)
        except ValueError:
            raise self.source.error(self.position, f"{text[:40]!r} is not a number") from None
