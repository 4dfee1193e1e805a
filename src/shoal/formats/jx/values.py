"""What JX expressions are worth: JSON values whose lists and objects know where they stood in the text.

Values are shared, not copied: whoever gets one must not change it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

NESTING = 1000
"""How deep the text of an expression may nest."""
EVALUATION_DEPTH = 3000
"""How deep evaluation may go: nesting, and definitions that use definitions."""
BUDGET = 40_000_000
"""How many values one evaluation may yield; 32 characters of text count as one."""
CHARACTERS_PER_UNIT = 32
FRAMES_PER_LEVEL = 6


@contextmanager
def deep_stack() -> Iterator[None]:
    """Lets Python nest as deep as the limits above allow, and puts its own limit back afterwards.

    The collector of cyclic garbage rests meanwhile: there is none, and to search for it takes half of the time.
    """
    before, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(before, EVALUATION_DEPTH * FRAMES_PER_LEVEL + before))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        if collecting:
            gc.enable()


Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "float", str: "string"}


class Outside(Protocol):
    """What expressions may learn about the world outside; both methods raise OSError if they cannot tell."""

    def listdir(self, path: str) -> Sequence[str]:
        """The names in a directory, in its own order."""

    def fetch(self, place: str) -> bytes:
        """The content of a file or of what a URL leads to."""


class JxFailure(Exception):  # noqa: N818  # never leaves this package: evaluation turns it into an InputError
    """An operation cannot be done with these values; whoever evaluates it knows where it stands."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class JxList(list[Value]):
    """A list, the place of its text, and how many values it holds in all."""

    __slots__ = ("column", "file", "line", "weight")

    def __init__(self, items: Iterable[Value] = (), file: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(items)
        self.file = file
        self.line = line
        self.column = column
        self.weight = 1 + sum(map(weight_of, self))


class JxObject(dict[str, Value]):
    """An object, the place of its text, and how many values it holds in all.

    Of pairs with the same key the first counts; `repeated` still has all pairs then, as the original prints them.
    """

    __slots__ = ("column", "file", "line", "repeated", "weight")

    def __init__(self, pairs: Iterable[tuple[str, Value]] = (), file: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__()
        every = list(pairs)
        for key, value in every:
            self.setdefault(key, value)
        self.repeated = every if len(every) > len(self) else None
        self.file = file
        self.line = line
        self.column = column
        self.weight = 1 + sum(map(weight_of, self.values() if self.repeated is None else [pair[1] for pair in every]))


def weight_of(value: Value) -> int:
    """How much of the budget a value takes."""
    if isinstance(value, str):
        return 1 + len(value) // CHARACTERS_PER_UNIT
    if isinstance(value, (JxList, JxObject)):
        return value.weight
    return 1


def adopt(value: Value) -> Value:
    """The same value with lists and objects of ours, for values that a program made and not an expression."""
    if isinstance(value, (JxList, JxObject)):
        return value
    if isinstance(value, list):
        return JxList([adopt(item) for item in value])
    if isinstance(value, dict):
        return JxObject([(key, adopt(item)) for key, item in value.items()])
    return value


def pairs_of(value: dict[str, Value]) -> Iterable[tuple[str, Value]]:
    """All pairs of an object, also those hidden by an earlier pair with the same key."""
    return value.repeated or value.items() if isinstance(value, JxObject) else value.items()


def kind_of(value: Value) -> str:
    """The name of a value's type, as the original's `schema` gives it."""
    return _KINDS.get(type(value)) or ("array" if isinstance(value, list) else "object")


def same(left: Value, right: Value) -> bool:
    """Equality inside of lists: types count (1 is not 1.0), and so does the order of keys."""
    waiting = [(left, right)]
    while waiting:
        one, other = waiting.pop()
        if kind_of(one) != kind_of(other):
            return False
        if isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            ours, theirs = list(pairs_of(one)), list(pairs_of(other))
            if [key for key, _ in ours] != [key for key, _ in theirs]:
                return False
            waiting.extend((mine, yours) for (_, mine), (_, yours) in zip(ours, theirs, strict=True))
        elif one != other:
            return False
    return True
