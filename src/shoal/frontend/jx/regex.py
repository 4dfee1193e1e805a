"""POSIX extended regular expressions, as `like` takes them, translated into Python's.

Matching is on bytes, as in the C locale. A pattern that POSIX refuses matches nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CLASSES = {
    b"alpha": b"a-zA-Z",
    b"digit": b"0-9",
    b"alnum": b"a-zA-Z0-9",
    b"upper": b"A-Z",
    b"lower": b"a-z",
    b"space": rb" \t\n\r\f\v",
    b"blank": rb" \t",
    b"punct": rb"!-/:-@\[-`{-~",
    b"print": rb" -~",
    b"graph": rb"!-~",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"xdigit": b"0-9A-Fa-f",
}
_GNU_ESCAPES = {
    b"w": b"[A-Za-z0-9_]",
    b"W": b"[^A-Za-z0-9_]",
    b"s": rb"[ \t\n\r\f\v]",
    b"S": rb"[^ \t\n\r\f\v]",
    b"b": rb"\b",
    b"B": rb"\B",
    b"<": rb"\b(?=[A-Za-z0-9_])",
    b">": rb"\b(?<=[A-Za-z0-9_])",
    b"`": rb"\A",
    b"'": rb"\Z",
}
_NOT_REPEATABLE = (b"|", b"^", *(_GNU_ESCAPES[name] for name in (b"b", b"B", b"<", b">", b"`", b"'")))
_INTERVAL = re.compile(rb"\{(\d*)(,?)(\d*)\}")
_BRACKET_PART = re.compile(rb"\[:(\w*):\]|\[([.=])(.)\2\]|(.)", re.DOTALL)
_MOST_REPEATS = 32767


class _Refused(Exception):  # noqa: N818  # a pattern POSIX has no meaning for
    pass


def matches(pattern: bytes, text: bytes) -> bool:
    """Whether the pattern is found anywhere in the text."""
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(text) is not None


@lru_cache(maxsize=64)
def _compiled(pattern: bytes) -> re.Pattern[bytes] | None:
    try:
        return re.compile(_Translator(pattern).translate(), re.DOTALL)
    except (_Refused, re.error, OverflowError, RecursionError):
        return None


class _Translator:
    """Walks once over a pattern; every atom is kept whole, so that repeats of repeats mean what they say."""

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.position = 0
        self.closed_groups = 0

    def translate(self) -> bytes:
        frames: list[list[bytes]] = [[]]
        while self.position < len(self.pattern):
            found = self.pattern[self.position : self.position + 1]
            pieces = frames[-1]
            self.position += 1
            if found == b"(":
                frames.append([])
            elif found == b")" and len(frames) > 1:
                inner = b"".join(frames.pop())
                frames[-1].append(b"(" + inner + b")")
                self.closed_groups += 1
            elif found in b"*+?" or (found == b"{" and self._interval()):
                self._repeat(pieces, found)
            else:
                pieces.append(self._atom(found))
        if len(frames) > 1:
            raise _Refused
        return b"".join(frames[0])

    def _interval(self) -> bool:
        match = _INTERVAL.match(self.pattern, self.position - 1)
        if match is None:
            raise _Refused
        return True

    def _repeat(self, pieces: list[bytes], found: bytes) -> None:
        suffix = found
        if found == b"{":
            match = _INTERVAL.match(self.pattern, self.position - 1)
            assert match is not None
            self.position = match.end()
            low, comma, high = match.groups()
            if (not low and not comma) or max(int(low or 0), int(high or 0)) > _MOST_REPEATS:
                raise _Refused
            suffix = b"{" + (low or b"0") + comma + high + b"}"
        if not pieces or pieces[-1] in _NOT_REPEATABLE:
            raise _Refused
        pieces[-1] = b"(?:" + pieces[-1] + b")" + suffix

    def _atom(self, found: bytes) -> bytes:
        if found == b"\\":
            return self._escape()
        if found == b"[":
            return self._bracket()
        if found in (b"|", b"^", b"."):
            return found
        return rb"\Z" if found == b"$" else re.escape(found)

    def _escape(self) -> bytes:
        found = self.pattern[self.position : self.position + 1]
        self.position += 1
        if not found:
            raise _Refused
        if found in b"123456789":
            if int(found) > self.closed_groups:
                raise _Refused
            return b"(?:\\" + found + b")"
        return _GNU_ESCAPES.get(found) or re.escape(found)

    def _bracket(self) -> bytes:
        negated = self.pattern.startswith(b"^", self.position)
        self.position += negated
        first = True
        parts: list[bytes] = []
        while first or not self.pattern.startswith(b"]", self.position):
            match = _BRACKET_PART.match(self.pattern, self.position)
            if match is None:
                raise _Refused
            self.position = match.end()
            name, _, collating, single = match.groups()
            if name is not None:
                if name not in _CLASSES:
                    raise _Refused
                parts.append(_CLASSES[name])
            elif single == b"-" and not first and not self.pattern.startswith(b"]", self.position):
                parts.append(b"-")
            else:
                parts.append(re.escape(collating or single))
            first = False
        self.position += 1
        return b"[" + (b"^" if negated else b"") + b"".join(parts) + b"]"
