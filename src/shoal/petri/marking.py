"""The tokens of a running net, place by place, and what the transitions know of them.

A place from which only one transition takes or reads, and that without looking at the token, is a plain queue. Every
other place gives its tokens serial numbers and offers each new one to every port; a port notes whom its filter let in,
and finds out when it looks at a number that the token is gone meanwhile. So nothing is searched for when a token goes,
and a token that a guard has rejected is not looked at again. Dead numbers are swept out when they are the majority,
which costs O(1) for each token ever put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from shoal.petri.net import PlaceSpec

Filter = Callable[[Any], object]
SLACK = 64
"""Dead numbers that are never worth a sweep."""
NOBODY = -1


class Offered(Protocol):
    """A port, or a pair of port and join, that is told of each new token of its place."""

    owner: int

    def offer(self, serial: int) -> None: ...


class Serials:
    """Serial numbers for all places of one flow, so that any two tokens have an order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class LivePlace:
    """What both kinds of place have in common."""

    __slots__ = ("add", "flying", "name", "spec", "watchers")

    def __init__(self, spec: PlaceSpec) -> None:
        self.spec = spec
        self.name = spec.place.name
        self.flying = 0
        """Tokens taken by tasks that still run."""
        self.watchers: list[int] = []
        """Numbers of the transitions that a new token may enable."""
        self.add: Callable[[object], None]

    def __len__(self) -> int:
        raise NotImplementedError

    def put_back(self, value: object, barred: int) -> None:
        """Take a token that the transition `barred` must not be offered again."""
        raise NotImplementedError

    def contents(self) -> Iterator[tuple[int, object, int]]:
        """Serial number, value and barred transition of each token, oldest first."""
        raise NotImplementedError


class QueuePlace(LivePlace):
    """A place whose only user takes whatever is oldest."""

    __slots__ = ("queue", "shelf")

    def __init__(self, spec: PlaceSpec) -> None:
        super().__init__(spec)
        self.queue: deque[object] = deque()
        self.shelf: list[tuple[object, int]] = []
        """Tokens that the only user must not have again."""
        self.add = self.queue.append

    def __len__(self) -> int:
        return len(self.queue) + len(self.shelf)

    def put_back(self, value: object, barred: int) -> None:
        if barred == NOBODY:
            self.queue.append(value)
        else:
            self.shelf.append((value, barred))

    def contents(self) -> Iterator[tuple[int, object, int]]:
        for value in self.queue:
            yield 0, value, NOBODY
        for value, barred in self.shelf:
            yield 0, value, barred


class IndexedPlace(LivePlace):
    """A place whose tokens have serial numbers, for guards, keys and several users."""

    __slots__ = ("barred", "ports", "serials", "values")

    def __init__(self, spec: PlaceSpec, serials: Serials) -> None:
        super().__init__(spec)
        self.serials = serials
        self.values: dict[int, object] = {}
        self.ports: list[Offered] = []
        self.barred: dict[int, int] = {}
        self.add = self._add

    def __len__(self) -> int:
        return len(self.values)

    def _add(self, value: object) -> None:
        serials = self.serials
        serials.last = serial = serials.last + 1
        self.values[serial] = value
        for port in self.ports:
            port.offer(serial)

    def put_back(self, value: object, barred: int) -> None:
        self.serials.last += 1
        self.restore(self.serials.last, value, barred)

    def restore(self, serial: int, value: object, barred: int) -> None:
        """Take a token under a number that is known."""
        self.values[serial] = value
        if barred != NOBODY:
            if len(self.barred) > 2 * len(self.values) + SLACK:
                self.barred = {old: owner for old, owner in self.barred.items() if old in self.values}
            self.barred[serial] = barred
        for port in self.ports:
            if port.owner != barred:
                port.offer(serial)

    def contents(self) -> Iterator[tuple[int, object, int]]:
        barred = self.barred
        for serial, value in self.values.items():
            yield serial, value, barred.get(serial, NOBODY)


class PortCandidates:
    """A port that needs any one token its filters let in, whatever the other ports get."""

    __slots__ = ("filters", "found", "fresh", "owner", "sweep_at", "values")

    def __init__(self, owner: int, place: IndexedPlace, filters: list[Filter]) -> None:
        self.owner = owner
        self.values = place.values
        self.filters = filters
        self.fresh: deque[int] = deque()
        self.sweep_at = SLACK
        self.found = 0
        """The last token that was let in, until it is gone."""
        place.ports.append(self)

    def offer(self, serial: int) -> None:
        fresh = self.fresh
        fresh.append(serial)
        if len(fresh) > self.sweep_at:
            values = self.values
            self.fresh = deque(old for old in fresh if old in values)
            self.sweep_at = 2 * len(self.fresh) + SLACK

    def head(self) -> int:
        """The oldest token that fits, or 0. A filter sees each token once."""
        values = self.values
        if self.found in values:
            return self.found
        fresh, filters = self.fresh, self.filters
        while fresh:
            serial = fresh.popleft()
            if serial in values and all(passes(values[serial]) for passes in filters):
                self.found = serial
                return serial
        return 0
