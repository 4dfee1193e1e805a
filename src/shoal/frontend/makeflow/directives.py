"""Directives (`.MAKEFLOW`, `.SIZE`, `.UMBRELLA`): checked and split here, carried out by the parser."""

from __future__ import annotations

import re

from shoal.errors import InputError
from shoal.frontend.makeflow.document import Allocation
from shoal.frontend.makeflow.lexer import Token
from shoal.frontend.source import Source

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


def read_directive(source: Source, start: int, tokens: list[Token]) -> Directive:
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


def _makeflow_directive(source: Source, name: str, place: int, value: str, value_place: int) -> Directive:
    if name == "CATEGORY":
        return Directive("variable", name, value)
    if name == "MODE":
        if value not in Allocation.__members__:
            modes = ", ".join(Allocation.__members__)
            raise source.error(value_place, f"there is no MODE {value!r}", remedy=f"use one of {modes}")
        return Directive("mode", name, value)
    if name not in RESOURCES:
        known = ", ".join(("CATEGORY", "MODE", "SIZE", *RESOURCES))
        raise source.error(place, f".MAKEFLOW does not know {name!r}", remedy=f"use one of {known}")
    if read_number(value) is None:
        raise _not_a_number(source, value_place, name, value)
    return Directive("variable", name, value)


def _not_a_number(source: Source, place: int, name: str, value: str) -> InputError:
    unit = "megabytes" if name in SIZE_RESOURCES else "seconds" if name == "WALL_TIME" else name.lower()
    return source.error(place, f"{name} must be a number, not {value!r}", remedy=f"write a number of {unit}")
