"""The words a net is written in: places, ports, and what a transition may return.

They carry no tokens and no net, so a function that mentions them stays small when it travels to a node. What they mean
is told in `shoal.petri`; `shoal.petri.net` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from shoal.errors import InputError

Key = Callable[[Any], object]


class Place:
    """The name of a place in a net; the key under which a transition returns its tokens."""

    __slots__ = ("name", "net")

    def __init__(self, net: str, name: str) -> None:
        self.net = net
        self.name = name

    def __repr__(self) -> str:
        return f"<place {self.name!r} of the net {self.net!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Place, (self.net, self.name)


class Port(msgspec.Struct, frozen=True):
    """How a transition uses a place; made by `take`, `read` and `count`."""

    kind: Literal["take", "read", "count"]
    place: Place
    key: Key | None = None


def take(place: Place, key: Key | None = None) -> Port:
    """Take one token away from the place, the oldest that fits. Ports with `key=` take tokens whose keys are equal."""
    return _port("take", place, key)


def read(place: Place, key: Key | None = None) -> Port:
    """See one token of the place, the oldest that fits, and leave it there."""
    return _port("read", place, key)


def count(place: Place) -> Port:
    """The number of tokens of the place, those taken by tasks that still run included."""
    return _port("count", place, None)


def _port(kind: Literal["take", "read", "count"], place: Place, key: Key | None) -> Port:
    if not isinstance(place, Place):
        raise InputError(f"{kind} wants a place, not {place!r}", remedy="make one with net.place(name)")
    if key is not None and not callable(key):
        raise InputError(f"the key of {kind}({place.name}) must be a function of one token, not {key!r}")
    return Port(kind, place, key)


class _Nothing:
    """The only value of its kind, also after it has travelled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
"""What a transition returns for a place that is to get no token."""


class Each:
    """Several tokens for one place; made by `each`."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[object]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"each({list(self.values)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return Each, (self.values,)


def each(values: Iterable[object]) -> Each:
    """One token for every element, in order."""
    return Each(values)


class Result(msgspec.Struct, frozen=True):
    """The answer of the whole net, which ends with it; made by `result`."""

    value: Any


class Eureka(msgspec.Struct, frozen=True):
    """The tasks of some groups are not wanted any more; made by `eureka`."""

    groups: tuple[str, ...]
    again: bool = False


def result(value: object) -> Result:
    """The answer of the whole net: nothing fires any more, and what still runs is ignored."""
    return Result(value)


def eureka(*groups: str, again: bool = False) -> Eureka:
    """Ignore the tasks of these groups that still run, and fire none of them any more unless `again` is said."""
    for group in groups:
        if not isinstance(group, str) or not group:
            raise InputError(f"eureka wants names of groups, not {group!r}")
    return Eureka(groups, again)


class Failure(msgspec.Struct, frozen=True):
    """The token that `on_error=place` gets in the place of a result."""

    task: str
    """The name of the transition."""
    message: str
    arguments: dict[str, Any]
    """What the task was called with, by port."""
