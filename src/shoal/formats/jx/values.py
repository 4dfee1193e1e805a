"""The values of JX expressions: JSON values whose lists and objects know their position in the text.

Values are shared, not copied: callers must not change them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

NESTING = 1000
"""Maximum nesting of the text of an expression."""
EVALUATION_DEPTH = 3000
"""Maximum depth of evaluation: nesting, and definitions that use definitions."""
BUDGET = 40_000_000
"""Maximum number of values that one evaluation may produce; 32 characters of text count as one value."""
CHARACTERS_PER_UNIT = 32
FRAMES_PER_LEVEL = 6


@contextmanager
def deep_stack() -> Iterator[None]:
    """Raises Python's recursion limit to what the limits above need, and restores it afterwards.

    The cyclic garbage collector is switched off meanwhile: evaluation makes no cycles, and the collector would take
    half of the time.
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


class ExternalAccess(Protocol):
    """Access of expressions to directories, files and URLs; both methods raise OSError on failure."""

    def listdir(self, path: str) -> Sequence[str]:
        """Returns the names in a directory, in the order of the directory."""

    def fetch(self, place: str) -> bytes:
        """Returns the content of a file or URL."""


class JxFailure(Exception):  # noqa: N818  # never leaves this package: evaluation turns it into an InputError
    """An operation is not possible with these values; the evaluator adds the position."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class JxList(list[Value]):
    """A list with its position in the text and its total number of values."""

    __slots__ = ("column", "file", "line", "weight")

    def __init__(self, items: Iterable[Value] = (), file: str = "", line: int = 0, column: int = 0) -> None:
        super().__init__(items)
        self.file = file
        self.line = line
        self.column = column
        self.weight = 1 + sum(map(weight_of, self))


class JxObject(dict[str, Value]):
    """An object with its position in the text and its total number of values.

    If a key occurs several times, the first pair counts. `repeated` then has all pairs, because the original prints
    them.
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
    """Returns the share of the budget that a value takes."""
    if isinstance(value, str):
        return 1 + len(value) // CHARACTERS_PER_UNIT
    if isinstance(value, (JxList, JxObject)):
        return value.weight
    return 1


def to_jx_value(value: Value) -> Value:
    """Converts lists and dictionaries made by a program to `JxList` and `JxObject`."""
    if isinstance(value, (JxList, JxObject)):
        return value
    if isinstance(value, list):
        return JxList([to_jx_value(item) for item in value])
    if isinstance(value, dict):
        return JxObject([(key, to_jx_value(item)) for key, item in value.items()])
    return value


def pairs_of(value: dict[str, Value]) -> Iterable[tuple[str, Value]]:
    """Returns all pairs of an object, including those hidden by an earlier pair with the same key."""
    return value.repeated or value.items() if isinstance(value, JxObject) else value.items()


def kind_of(value: Value) -> str:
    """Returns the name of a value's type, as in the `schema` function of the original."""
    return _KINDS.get(type(value)) or ("array" if isinstance(value, list) else "object")


def same(left: Value, right: Value) -> bool:
    """Compares values the way lists are compared: types count (1 is not 1.0), and so does the order of keys."""
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
