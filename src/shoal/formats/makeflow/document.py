"""The parsed Makeflow: rules, categories, directives, and the variables that each rule sees.

The parser and `json_form` create a `Makeflow`; `graphs`, `analysis` and the writers read it. A rule keeps its version
in the history of variables (`MakeflowRule.version`) instead of a copy of them, so that 100,000 rules share one set of
tables. `read_directive` checks directives such as `.MAKEFLOW` and `.SIZE`.
"""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shoal.errors import InputError
from shoal.formats.makeflow.lexer import Token
from shoal.formats.source_text import SourceText


class VariableHistory:
    """The successive values of one variable in one category; value *i* is the first `counts[i]` items of `parts[i]`.

    `NAME += value` appends to a shared list, so that a thousand of them take linear memory.
    """

    __slots__ = ("counts", "parts", "versions")

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.parts: list[list[str]] = []
        self.counts: list[int] = []

    def add(self, version: int, parts: list[str]) -> None:
        self.versions.append(version)
        self.parts.append(parts)
        self.counts.append(len(parts))

    def at(self, version: int | None) -> str | None:
        """Returns the value as of `version` (default: the last one); None if there was none yet."""
        entry = len(self.versions) if version is None else bisect_right(self.versions, version)
        if not entry:
            return None
        return " ".join(self.parts[entry - 1][: self.counts[entry - 1]])


class Variables:
    """The assignments of each category, with the environment as a fallback."""

    def __init__(self, environment: Mapping[str, str], default_category: str) -> None:
        self.environment = environment
        self.version = 0
        self._default: dict[str, VariableHistory] = {}
        self._tables = {default_category: self._default}

    def assign(self, category: str, name: str, value: str) -> None:
        self.version += 1
        self._tables.setdefault(category, {}).setdefault(name, VariableHistory()).add(self.version, [value])

    def append(self, name: str, value: str) -> None:
        """Applies `NAME += value` outside a rule: to the default category, whichever is open, as in the original."""
        self.version += 1
        history = self._default.setdefault(name, VariableHistory())
        if not history.parts and name in self.environment:
            history.add(self.version, [self.environment[name]])
        parts = history.parts[-1] if history.parts else []
        parts.append(value)
        history.add(self.version, parts)

    def latest(self, category: str, name: str) -> str | None:
        """Returns the current value in the category, else in the default category, else in the environment."""
        found = self.assigned(category, name)
        return self.environment.get(name) if found is None else found

    def assigned(self, category: str, name: str, version: int | None = None) -> str | None:
        """Returns the value that the file itself assigns, as of `version` (default: the last one)."""
        for table in (self._tables.get(category), self._default):
            history = table.get(name) if table else None
            value = history.at(version) if history is not None else None
            if value is not None:
                return value
        return None

    def table(self, category: str) -> dict[str, str]:
        """Returns the last value of each name assigned in this category itself, in the order of first assignment."""
        histories = self._tables.get(category, {})
        return {name: value for name, history in histories.items() if (value := history.at(None)) is not None}


DEFAULT_CATEGORY = "default"


class AllocationMode(enum.Enum):
    """How the first allocation of a category's tasks is chosen (`.MAKEFLOW MODE`)."""

    FIXED = "FIXED"
    MAX_THROUGHPUT = "MAX_THROUGHPUT"
    MIN_WASTE = "MIN_WASTE"


@dataclass(slots=True)
class MakeflowCategory:
    """A category of rules with similar resource needs; its resources are variables in its table."""

    name: str
    mode: AllocationMode = AllocationMode.FIXED


class MakeflowRule(msgspec.Struct, gc=False):
    """One rule. Not tracked by the garbage collector, because it cannot be part of a reference cycle."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    command: str
    """The command for the shell, with variables substituted and modifiers removed; empty for a sub-workflow."""
    line: int
    category: str
    version: int
    """Version of the variables at this rule, for those that are looked up after parsing."""
    local: bool = False
    """Whether the rule must run on the submitting machine (`LOCAL` or `BATCH_LOCAL`)."""
    workflow: str = ""
    """The file of a `MAKEFLOW` sub-workflow."""
    variables: tuple[tuple[str, str], ...] = ()
    """The rule's own variables."""
    renames: tuple[tuple[str, str], ...] = ()
    """Pairs of a file's name here and its name where the task runs (`here->there`)."""
    arguments: str = ""
    """Definitions for the sub-workflow (`"args"` of a JSON rule): a JSON object as text, or empty."""
    allocation: str = ""
    """The first allocation of a JSON rule: `auto`, `first`, `max`, `error`, or empty."""


@dataclass(slots=True)
class Makeflow:
    """A whole file."""

    source: str
    variables: Variables
    rules: list[MakeflowRule] = field(default_factory=list)
    categories: dict[str, MakeflowCategory] = field(default_factory=dict)
    exports: dict[str, None] = field(default_factory=dict)
    """Names of exported variables, in the order they were first exported."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Files that garbage collection must keep; when empty, every file that no rule reads."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Estimated sizes of files in bytes (`.SIZE`)."""
    default_category: str = DEFAULT_CATEGORY
    """The category whose variables are visible in all other categories; JSON may name another one."""
    notes: list[str] = field(default_factory=list)
    """Warnings: accepted as written, but probably a mistake."""
    invalid_values: list[InputError] = field(default_factory=list)
    """Errors for values that the original silently ignores. `shoal makeflow` ignores them, too; other commands
    raise."""


SIZE_RESOURCES = ("MEMORY", "DISK")
RESOURCES = ("CORES", "MEMORY", "DISK", "GPUS", "MPI_PROCESSES", "WALL_TIME")
LARGEST_SIZE = 2**62
DIRECTIVE = re.compile(r"\.(?:MAKEFLOW|SIZE|UMBRELLA)(?=[ \t\n]|\Z)")

_NUMBER = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?:([KMGTP])(?:i?B)?)?", re.IGNORECASE)
_SUFFIXES = "KMGTP"


def read_number(text: str) -> tuple[float, int] | None:
    """Parses a text that is a number with an optional suffix; returns the number and the suffix's power of 1024."""
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else _amount(found)


def leading_number(text: str) -> tuple[float, int] | None:
    """Same as `read_number` for a text that only starts with a number: users' variables may contain more."""
    found = _NUMBER.match(text.strip("\"' \t"))
    return None if found is None else _amount(found)


def _amount(found: re.Match[str]) -> tuple[float, int]:
    return float(found[1]), _SUFFIXES.index(found[2].upper()) + 1 if found[2] else 0


def size_of(text: str) -> int | None:
    """Returns the bytes of a size such as `300` or `3G`; suffixes are powers of 1024."""
    number = read_number(text)
    return None if number is None else min(round(number[0] * 1024 ** number[1]), LARGEST_SIZE)


class Directive:
    """A parsed directive; `kind` is `variable`, `mode` or `size`."""

    __slots__ = ("kind", "name", "value")

    def __init__(self, kind: str, name: str, value: str) -> None:
        self.kind = kind
        self.name = name
        self.value = value


def read_directive(source: SourceText, start: int, tokens: list[Token]) -> Directive:
    """Parses and checks a directive that starts at `start`, from its tokens."""
    family, *words = tokens
    if family[1] == ".MAKEFLOW" and words and words[0][1] == "SIZE":
        family, *words = words
    expected = {".SIZE": "a file and its size", "SIZE": "a file and its size", ".UMBRELLA": "SPEC and a file"}
    if len(words) != 2:
        place = words[2][2] if len(words) > 2 else start
        wanted = expected.get(family[1], "a name such as CORES or CATEGORY and a value")
        raise source.error(place, f"{tokens[0][1]} takes exactly {wanted}")
    (_, name, name_place), (_, value, value_place) = words
    if family[1] == ".MAKEFLOW":
        return _makeflow_directive(source, name, name_place, value, value_place)
    if family[1] == ".UMBRELLA":
        if name != "SPEC":
            raise source.error(name_place, f".UMBRELLA supports SPEC only, not {name!r}")
        return Directive("variable", name, value)
    if size_of(value) is None:
        raise source.error(value_place, f"{value!r} is not a size", remedy="write a number of bytes, such as 300 or 3G")
    return Directive("size", name, value)


def _makeflow_directive(source: SourceText, name: str, place: int, value: str, value_place: int) -> Directive:
    if name == "CATEGORY":
        return Directive("variable", name, value)
    if name == "MODE":
        if value not in AllocationMode.__members__:
            modes = ", ".join(AllocationMode.__members__)
            raise source.error(value_place, f"unknown MODE {value!r}", remedy=f"use one of {modes}")
        return Directive("mode", name, value)
    if name not in RESOURCES:
        known = ", ".join(("CATEGORY", "MODE", "SIZE", *RESOURCES))
        raise source.error(place, f".MAKEFLOW does not support {name!r}", remedy=f"use one of {known}")
    if read_number(value) is None:
        raise _not_a_number(source, value_place, name, value)
    return Directive("variable", name, value)


def _not_a_number(source: SourceText, place: int, name: str, value: str) -> InputError:
    unit = "megabytes" if name in SIZE_RESOURCES else "seconds" if name == "WALL_TIME" else name.lower()
    return source.error(place, f"{name} must be a number, not {value!r}", remedy=f"write a number of {unit}")
