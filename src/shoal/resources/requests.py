"""Requests to the resource manager: requirements with alternative choices in order of preference.

A *choice* is what is needed on one machine, such as four cores and a GPU with 8 GiB of memory. A *requirement* needs
one of its choices on each of a number of different machines. A *request* is a list of requirements, met together or not
at all. `require` builds requirements from user input. `shoal.resources.tickets` checks whether they can be met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError

ANYWHERE = 0
"""Value of `nodes`: the units may be on any machines, as few as possible."""

Wanted: TypeAlias = int | str
"""A unit by number or path, a machine by name, or a label `KEY=VALUE`."""


class Choice(msgspec.Struct, frozen=True):
    """Resources needed together on one machine."""

    needs: tuple[tuple[str, int], ...]
    """Pairs of class and count, each class once, sorted."""
    memory: int = 0

    def __str__(self) -> str:
        words = [f"{count} {kind}" for kind, count in self.needs]
        if self.memory:
            words.append(f"{show_bytes(self.memory)} of memory")
        return " and ".join(words)


class Requirement(msgspec.Struct, frozen=True):
    """One of several choices, on each of `nodes` different machines."""

    choices: tuple[Choice, ...]
    nodes: int = 1
    prefer: tuple[Wanted, ...] = ()
    """Preferred units, machines or labels, in order; any other is acceptable."""
    only: tuple[str, ...] = ()
    """Labels that a machine must carry, or names of allowed machines."""

    def __str__(self) -> str:
        what = " or ".join(map(str, self.choices))
        if self.nodes == ANYWHERE:
            where = " anywhere"
        else:
            where = " on one node" if self.nodes == 1 else f" on each of {self.nodes} nodes"
        return what + where + (f" with {' and '.join(self.only)}" if self.only else "")


Request: TypeAlias = tuple[Requirement, ...]

Kinds: TypeAlias = str | Mapping[str, int]
"""A class, or classes and counts that are needed together."""


def require(
    *choices: Kinds,
    count: int = 1,
    memory: int = 0,
    nodes: int = 1,
    prefer: Sequence[Wanted] = (),
    only: Sequence[str] = (),
) -> Requirement:
    """`require("core", count=4)`, `require({"core": 4, "gpu": 1}, "node")`: the first choice that fits is granted.

    `count` applies to classes that are given without a count; `memory` is in bytes on each machine.
    """
    _whole(nodes, "nodes", ANYWHERE)
    _whole(memory, "memory", 0)
    if not choices:
        raise InputError("a requirement names no class of resources", remedy='write one, such as require("core")')
    if nodes == ANYWHERE and memory:
        raise InputError(
            "memory requires a number of nodes: it is memory of a machine",
            remedy="give the number of nodes, or leave out the memory",
        )
    for name in only:
        if not isinstance(name, str) or not name:
            raise InputError(f"only={name!r} is neither a label nor the name of a machine")
    for wanted in prefer:
        if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
            raise InputError(f"prefer={wanted!r} is neither a resource nor a machine nor a label")
    return Requirement(tuple(_choice(each, count, memory) for each in choices), nodes, tuple(prefer), tuple(only))


def _choice(kinds: Kinds, count: int, memory: int) -> Choice:
    needs = {kinds: count} if isinstance(kinds, str) else dict(kinds)
    if not needs:
        raise InputError("a choice is empty", remedy='write what it needs, such as {"core": 4}')
    for kind, number in needs.items():
        if not isinstance(kind, str) or not kind:
            raise InputError(f"{kind!r} is not a class of resources", remedy="write a name such as 'core'")
        _whole(number, f"the number of {kind}", 1)
    return Choice(tuple(sorted(needs.items())), memory)


def _whole(value: object, what: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{what} must be an integer of at least {least}, not {value!r}")
