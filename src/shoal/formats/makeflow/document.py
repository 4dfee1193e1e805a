"""What a Makeflow file says, once read: rules, categories and the variables they saw.

Plain values, made by the parser or from JSON (`json_reader`), read by `build` and by the printers (`write_*`). A rule
keeps its place in the history of variables (`MakeflowRule.version`) instead of a copy of them, so a hundred thousand
rules share one set of tables.
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
    """The values of one name in one table; entry *i* is the first `counts[i]` of `parts[i]`."""

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
        """The value as of `version`, or the last one; None if that was before the first."""
        entry = len(self.versions) if version is None else bisect_right(self.versions, version)
        if not entry:
            return None
        return " ".join(self.parts[entry - 1][: self.counts[entry - 1]])


class Variables:
    """Assignments per category, and the environment behind them."""

    def __init__(self, environment: Mapping[str, str], default_category: str) -> None:
        self.environment = environment
        self.version = 0
        self._default: dict[str, VariableHistory] = {}
        self._tables = {default_category: self._default}

    def assign(self, category: str, name: str, value: str) -> None:
        self.version += 1
        self._tables.setdefault(category, {}).setdefault(name, VariableHistory()).add(self.version, [value])

    def append(self, name: str, value: str) -> None:
        """`NAME += value` outside a rule: as in the original it works on the default category, whichever is open."""
        self.version += 1
        history = self._default.setdefault(name, VariableHistory())
        if not history.parts and name in self.environment:
            history.add(self.version, [self.environment[name]])
        parts = history.parts[-1] if history.parts else []
        parts.append(value)
        history.add(self.version, parts)

    def latest(self, category: str, name: str) -> str | None:
        """The value now: of the category, else of the default category, else of the environment."""
        found = self.assigned(category, name)
        return self.environment.get(name) if found is None else found

    def assigned(self, category: str, name: str, version: int | None = None) -> str | None:
        """The value the file itself gives, as of `version` or now."""
        for table in (self._tables.get(category), self._default):
            history = table.get(name) if table else None
            value = history.at(version) if history is not None else None
            if value is not None:
                return value
        return None

    def table(self, category: str) -> dict[str, str]:
        """The last value of each name that was assigned in this very category, in the order of first assignment."""
        histories = self._tables.get(category, {})
        return {name: value for name, history in histories.items() if (value := history.at(None)) is not None}


DEFAULT_CATEGORY = "default"


class AllocationMode(enum.Enum):
    """How first allocations of a category are chosen (`.MAKEFLOW MODE`)."""

    FIXED = "FIXED"
    MAX_THROUGHPUT = "MAX_THROUGHPUT"
    MIN_WASTE = "MIN_WASTE"


@dataclass(slots=True)
class MakeflowCategory:
    """Rules that are expected to behave alike; its resources are variables of the same name in its table."""

    name: str
    mode: AllocationMode = AllocationMode.FIXED


class MakeflowRule(msgspec.Struct, gc=False):
    """One rule. Not tracked by the collector: it refers to nothing that could refer back to it."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    command: str
    """What goes to the shell, variables replaced, modifiers taken off; empty for a sub-workflow."""
    line: int
    category: str
    version: int
    """The last assignment this rule can see, for variables that are looked up after parsing."""
    local: bool = False
    """Whether the rule must run on the submitting machine (`LOCAL` or `BATCH_LOCAL`)."""
    workflow: str = ""
    """The file of a `MAKEFLOW` sub-workflow."""
    variables: tuple[tuple[str, str], ...] = ()
    """The rule's own variables."""
    renames: tuple[tuple[str, str], ...] = ()
    """Pairs of a file's name here and its name where the task runs (`here->there`)."""
    arguments: str = ""
    """What the sub-workflow is given to work with (`"args"` of a JSON rule): a JSON object as text, or nothing."""
    allocation: str = ""
    """What a JSON rule says of its first allocation: `auto`, `first`, `max`, `error`, or nothing."""


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
    """The category whose variables the rules of all others see, too; JSON may name another one."""
    notes: list[str] = field(default_factory=list)
    """What is carried out as written, although it is hardly meant."""
    doubts: list[InputError] = field(default_factory=list)
    """What cannot be meant but is passed over in silence by the original, and so by whoever stands in for it."""


SIZE_RESOURCES = ("MEMORY", "DISK")
RESOURCES = ("CORES", "MEMORY", "DISK", "GPUS", "MPI_PROCESSES", "WALL_TIME")
LARGEST_SIZE = 2**62
DIRECTIVE = re.compile(r"\.(?:MAKEFLOW|SIZE|UMBRELLA)(?=[ \t\n]|\Z)")

_NUMBER = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?:([KMGTP])(?:i?B)?)?", re.IGNORECASE)
_SUFFIXES = "KMGTP"


def read_number(text: str) -> tuple[float, int] | None:
    """A number and the power of 1024 its suffix stands for, from text that is nothing else."""
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else _amount(found)


def leading_number(text: str) -> tuple[float, int] | None:
    """As `read_number`, from text that only starts with a number: variables are the user's own and may hold more."""
    found = _NUMBER.match(text.strip("\"' \t"))
    return None if found is None else _amount(found)


def _amount(found: re.Match[str]) -> tuple[float, int]:
    return float(found[1]), _SUFFIXES.index(found[2].upper()) + 1 if found[2] else 0


def size_of(text: str) -> int | None:
    """Bytes from `300` or `3G`; suffixes are powers of 1024."""
    number = read_number(text)
    return None if number is None else min(round(number[0] * 1024 ** number[1]), LARGEST_SIZE)


class Directive:
    """One directive line, taken apart: `kind` is `variable`, `mode` or `size`."""

    __slots__ = ("kind", "name", "value")

    def __init__(self, kind: str, name: str, value: str) -> None:
        self.kind = kind
        self.name = name
        self.value = value


def read_directive(source: SourceText, start: int, tokens: list[Token]) -> Directive:
    """Checks the words of a directive line that starts at `start`."""
    family, *words = tokens
    if family[1] == ".MAKEFLOW" and words and words[0][1] == "SIZE":
        family, *words = words
    expected = {".SIZE": "a file and its size", "SIZE": "a file and its size", ".UMBRELLA": "SPEC and a file"}
    if len(words) != 2:
        place = words[2][2] if len(words) > 2 else start
        wanted = expected.get(family[1], "a name such as CORES or CATEGORY and a value")
        raise source.error(place, f"{tokens[0][1]} takes {wanted}, nothing less and nothing more")
    (_, name, name_place), (_, value, value_place) = words
    if family[1] == ".MAKEFLOW":
        return _makeflow_directive(source, name, name_place, value, value_place)
    if family[1] == ".UMBRELLA":
        if name != "SPEC":
            raise source.error(name_place, f".UMBRELLA knows SPEC only, not {name!r}")
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
            raise source.error(value_place, f"there is no MODE {value!r}", remedy=f"use one of {modes}")
        return Directive("mode", name, value)
    if name not in RESOURCES:
        known = ", ".join(("CATEGORY", "MODE", "SIZE", *RESOURCES))
        raise source.error(place, f".MAKEFLOW does not know {name!r}", remedy=f"use one of {known}")
    if read_number(value) is None:
        raise _not_a_number(source, value_place, name, value)
    return Directive("variable", name, value)


def _not_a_number(source: SourceText, place: int, name: str, value: str) -> InputError:
    unit = "megabytes" if name in SIZE_RESOURCES else "seconds" if name == "WALL_TIME" else name.lower()
    return source.error(place, f"{name} must be a number, not {value!r}", remedy=f"write a number of {unit}")
