"""Seeded damage to JX texts, for fuzzers: `cases` yields any number of byte strings, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

CORPUS = [
    b'{"define":{"n":3},"rules":[{"command":format("echo %d > o%d",i,i),"outputs":["o"+i]} for i in range(n)]}',
    b'{"rules":[{"command":"cat a > b","inputs":["a"],"outputs":["b"],"resources":{"cores":1,"memory":10}}],}',
    b"[x*2+1 for x in range(1,10,3) if x%2==0 and not (x>5), 7, -1.5e3] # comment\n",
    b'template("{a} {{b}} { c }", {"a":1,"c":"x"}) + join(["a","b"], ",") + basename("/a/b.c", ".c")',
    b'select(a>1, [{"a":1},{"a":2}])[0]["a"] + len([1,2,3][1:]) / 2 - floor(1.5)',
    b'[1,2,3].len() == 3 or error("no") && "a\\u0041\\n\\"" != null',
    b'{"a":{"b":[1,[2,[3,{"c":true}]]]},"k"+1:false for x in [1,2] for y in [x,x]}',
    b'like("^[[:alpha:]]+(x|y){2,3}$", escape("q$`\\\\")) || items({"a":1})[-1:0] == []',
    b'"caf\xc3\xa9" + "\xff\xfe" < dirname("a//b"); trailing',
]
TOKENS = [
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"(",
        b")",
        b",",
        b":",
        b";",
        b".",
        b'"',
        b"\\",
        b"#",
        b"\n",
        b"\r",
        b"\0",
        b"\xef\xbb\xbf",
    ),
    *(b" for x in ", b" if ", b" and ", b" or ", b" not ", b"error(", b"==", b"=", b"&", b"||", b"-", b"+", b"%", b"/"),
    *(b"0", b"1e999", b".5", b"99999999999999999999", b"1.2.3", b"\\u00e9", b"\\u0000", b"null", b"true", b"define"),
    *(b"range(10)", b"range(1,0)", b'format("%d",1)', b"x", b"'", b"\x80", b"\xc3", b"@"),
]


def _drop(picker: random.Random, text: bytes) -> bytes:
    start = picker.randrange(len(text) + 1)
    return text[:start] + text[start + picker.randrange(1, 8) :]


def _insert(picker: random.Random, text: bytes) -> bytes:
    at = picker.randrange(len(text) + 1)
    return text[:at] + picker.choice(TOKENS) + text[at:]


def _flip(picker: random.Random, text: bytes) -> bytes:
    at = picker.randrange(len(text) + 1)
    return text[:at] + bytes([picker.randrange(256)]) + text[at + 1 :]


def _copy(picker: random.Random, text: bytes) -> bytes:
    start = picker.randrange(len(text) + 1)
    piece = text[start : start + picker.randrange(1, 20)]
    at = picker.randrange(len(text) + 1)
    return text[:at] + piece * picker.choice((1, 1, 2, 50)) + text[at:]


def _splice(picker: random.Random, text: bytes) -> bytes:
    other = picker.choice(CORPUS)
    return text[: picker.randrange(len(text) + 1)] + other[picker.randrange(len(other)) :]


def _nest(picker: random.Random, text: bytes) -> bytes:
    opening, closing = picker.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"-", b""), (b"len([", b"])")))
    levels = picker.choice((1, 5, 300, 2000))
    return opening * levels + text + closing * levels


_MUTATIONS: list[Callable[[random.Random, bytes], bytes]] = [_drop, _insert, _flip, _copy, _splice]


def cases(seed: int, count: int) -> Iterator[bytes]:
    """`count` damaged texts."""
    picker = random.Random(seed)
    for _ in range(count):
        text = picker.choice(CORPUS)
        for _ in range(picker.choice((1, 1, 2, 3, 6))):
            text = picker.choice(_MUTATIONS)(picker, text)
        if picker.random() < 0.02:
            text = _nest(picker, text)
        yield text
