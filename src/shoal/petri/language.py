"""The vocabulary of nets: places, ports, and what a transition may return (`each`, `result`, `eureka`, `NOTHING`).

These objects contain neither tokens nor the net, so a function that refers to them stays small when it is pickled and
sent to a node. `shoal.petri` explains their meaning; `shoal.petri.net` combines them.
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
    """Takes the oldest token that fits from the place. Ports with `key=` take tokens with equal keys."""
    return _port("take", place, key)


def read(place: Place, key: Key | None = None) -> Port:
    """Passes the oldest token of the place that fits, and leaves it there."""
    return _port("read", place, key)


def count(place: Place) -> Port:
    """Number of tokens of the place, including those taken by running tasks."""
    return _port("count", place, None)


def _port(kind: Literal["take", "read", "count"], place: Place, key: Key | None) -> Port:
    if not isinstance(place, Place):
        raise InputError(f"{kind} needs a place, not {place!r}", remedy="make one with net.place(name)")
    if key is not None and not callable(key):
        raise InputError(f"the key of {kind}({place.name}) must be a function of one token, not {key!r}")
    return Port(kind, place, key)


class _Nothing:
    """A singleton, also after unpickling."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
"""Return value for a place that gets no token."""


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
    """The result of the whole net, which ends with it; made by `result`."""

    value: Any


class Eureka(msgspec.Struct, frozen=True):
    """Cancels the running tasks of some groups; made by `eureka`."""

    groups: tuple[str, ...]
    again: bool = False


def result(value: object) -> Result:
    """Ends the net with this result: nothing fires any more, and running tasks are ignored."""
    return Result(value)


def eureka(*groups: str, again: bool = False) -> Eureka:
    """Cancels the running tasks of these groups, and prevents further firings of them unless `again` is set."""
    for group in groups:
        if not isinstance(group, str) or not group:
            raise InputError(f"eureka needs names of groups, not {group!r}")
    return Eureka(groups, again)


class Failure(msgspec.Struct, frozen=True):
    """The token put on the `on_error` place instead of a result."""

    task: str
    """Name of the transition."""
    message: str
    arguments: dict[str, Any]
    """Arguments of the task, by port."""
