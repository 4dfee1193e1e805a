"""The search for tokens of several places that belong together: by equal keys, by a guard over them, or by being two.

Theory of operation. A join looks at tokens in the order of their serial numbers. When it comes to a token it tries the
combinations of that token with those it has seen before, and remembers where it stopped when one is accepted. So each
combination is tried once in the whole run, the first accepted one is always the one whose youngest token is oldest, and
which one that is depends on the marking only, not on when the question was asked: a flow that was stopped and resumed
chooses alike. With keys only tokens of the same key are combined, found by hash: O(1) for each token. Without, a guard
over two places with m and n tokens is called m times n times in all, however often the transition fires.

A guard that also asks for a count may change its mind when the count does. Such a join remembers nothing: each look
begins anew with the oldest tokens and costs as many calls as combinations are rejected before the first accepted one.
Guards that mix both should therefore be written as a list, `when=[lambda v: ..., lambda n: ...]`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.flow.net.places import SLACK, Filter, IndexedPlace
from shoal.flow.net.transition import Guard
from shoal.flow.net.words import Key


class Listing:
    """Serial numbers in order, with jumps over those found dead, so that no dead stretch is walked twice."""

    __slots__ = ("head", "jump", "serials")

    def __init__(self) -> None:
        self.serials: list[int] = []
        self.jump: list[int] = []
        self.head = 0

    def append(self, serial: int) -> None:
        self.serials.append(serial)
        self.jump.append(len(self.serials))

    def living(self, values: dict[int, object]) -> Iterator[int]:
        serials, jump = self.serials, self.jump
        size, before, at = len(serials), -1, self.head
        while at < size:
            serial = serials[at]
            following = jump[at]
            if serial in values:
                yield serial
                before = at
            elif before < 0:
                self.head = following
            else:
                jump[before] = following
            at = following


class JoinPort:
    """One port of a join: the tokens it has seen, by key where there is one."""

    __slots__ = ("at", "by_key", "everything", "filters", "join", "key", "listed", "number", "owner", "values")

    def __init__(self, join: Join, number: int, at: int, place: IndexedPlace, key: Key | None, filters: list[Filter]):
        self.join = join
        self.owner = join.owner
        self.number = number
        self.at = at
        """Position among the ports of the transition."""
        self.values = place.values
        self.key = key
        self.filters = filters
        self.everything = Listing()
        self.by_key: dict[object, Listing] = {}
        self.listed = 0
        place.ports.append(self)

    def offer(self, serial: int) -> None:
        self.join.offer(serial, self.number)

    def insert(self, serial: int, key: object) -> None:
        """Note a token that is done with; called only while no search is under way."""
        if self.listed > 2 * len(self.values) + SLACK:
            self._sweep()
        self._note(serial, key)

    def _note(self, serial: int, key: object) -> None:
        self.listed += 1
        if self.key is not None:
            listing = self.by_key.get(key)
            if listing is None:
                listing = self.by_key[key] = Listing()
            listing.append(serial)
        if self.key is None or self.join.needs_everything:
            self.everything.append(serial)

    def _sweep(self) -> None:
        """Begin the lists anew with the living tokens."""
        by_key, everything, self.listed = self.by_key, self.everything, 0
        self.by_key, self.everything = {}, Listing()
        if self.key is None:
            for serial in everything.living(self.values):
                self._note(serial, None)
        else:
            alive = [(serial, key) for key, listing in by_key.items() for serial in listing.living(self.values)]
            for serial, key in sorted(alive, key=lambda pair: pair[0]):
                self._note(serial, key)


class Level:
    """A port that is filled next, and the guards that can be asked once it is."""

    __slots__ = ("before", "guards", "has_key", "port", "rivals")

    def __init__(self, port: JoinPort, guards: list[Guard], before: list[JoinPort]) -> None:
        self.port = port
        self.guards = guards
        self.before = before
        self.rivals = [other for other in before if other.values is port.values]
        """Ports of the same place that are filled before; they must hold other tokens."""
        self.has_key = any(other.key is not None for other in before)
        """Whether the key is known by then."""


class Join:
    """Ports of one transition whose tokens are chosen together."""

    def __init__(self, owner: int, width: int, guards: Sequence[Guard], volatile: bool) -> None:
        self.owner = owner
        self.guards = guards
        self.volatile = volatile
        """Whether a guard asks for a count too."""
        self.ports: list[JoinPort] = []
        self.bound: list[Any] = [None] * width
        """Values under trial, by port of the transition; the counts are set by the caller."""
        self.needs_everything = False
        self._fresh: deque[tuple[int, int]] = deque()
        self._sweep_at = SLACK
        self._found: tuple[int, ...] | None = None
        self._search: Iterator[tuple[int, ...]] | None = None
        self._youngest: tuple[JoinPort, int, object] | None = None
        self._levels: list[list[Level]] = []

    def port(self, at: int, place: IndexedPlace, key: Key | None, filters: list[Filter]) -> None:
        self.ports.append(JoinPort(self, len(self.ports), at, place, key, filters))

    def close(self) -> None:
        """Lay out the orders in which ports are filled, one for each port that a search may begin with."""
        unkeyed = [port for port in self.ports if port.key is None]
        self.needs_everything = bool(unkeyed) or self.volatile
        starts: list[list[JoinPort]] = [[]] if self.volatile else [[port] for port in self.ports]
        keyed_first = sorted(self.ports, key=lambda port: port.key is None)
        counts = [at for guard in self.guards for at in guard.ports if all(at != port.at for port in self.ports)]
        for start in starts:
            order = start + [port for port in keyed_first if port not in start]
            known, asked, levels = set(counts), [False] * len(self.guards), []
            for number, port in enumerate(order):
                known.add(port.at)
                ready = [at for at, guard in enumerate(self.guards) if not asked[at] and known.issuperset(guard.ports)]
                for at in ready:
                    asked[at] = True
                levels.append(Level(port, [self.guards[at] for at in ready], order[:number]))
            self._levels.append(levels)

    def offer(self, serial: int, number: int) -> None:
        fresh = self._fresh
        fresh.append((serial, number))
        if len(fresh) > self._sweep_at:
            ports = self.ports
            self._fresh = deque(pair for pair in fresh if pair[0] in ports[pair[1]].values)
            self._sweep_at = 2 * len(self._fresh) + SLACK

    def find(self) -> tuple[int, ...] | None:
        """The tokens to fire with, one serial number for each port of the join, or None."""
        if self.volatile:
            while (seen := self._next_fresh()) is not None:
                seen[0].insert(seen[1], seen[2])
            return next(self._extend(self._levels[0], 0, [0] * len(self.ports), None), None)
        if self._found is not None and self._lives(self._found):
            return self._found
        while True:
            if self._search is None:
                self._youngest = self._next_fresh()
                if self._youngest is None:
                    self._found = None
                    return None
                self._search = self._with(*self._youngest)
            self._found = next(self._search, None)
            if self._found is not None:
                return self._found
            assert self._youngest is not None
            port, serial, key = self._youngest
            self._search = None
            if serial in port.values:
                port.insert(serial, key)

    def _lives(self, found: tuple[int, ...]) -> bool:
        for port, serial in zip(self.ports, found, strict=True):
            if serial not in port.values:
                return False
        return True

    def _next_fresh(self) -> tuple[JoinPort, int, object] | None:
        """The next token that lives and that its filters let in, with its key."""
        fresh = self._fresh
        while fresh:
            serial, number = fresh.popleft()
            port = self.ports[number]
            if serial in port.values:
                value = port.values[serial]
                if all(passes(value) for passes in port.filters):
                    return port, serial, port.key(value) if port.key is not None else None
        return None

    def _with(self, port: JoinPort, serial: int, key: object) -> Iterator[tuple[int, ...]]:
        """The accepted combinations of a token with those seen before."""
        chosen = [0] * len(self.ports)
        chosen[port.number] = serial
        self.bound[port.at] = port.values[serial]
        levels = self._levels[port.number]
        return self._extend(levels, 1, chosen, key)

    def _extend(self, levels: list[Level], depth: int, chosen: list[int], key: object) -> Iterator[tuple[int, ...]]:
        """Fill the remaining ports. Tokens may go while it rests at a `yield`: what had them is then given up."""
        level, is_last = levels[depth], depth + 1 == len(levels)
        port, bound = level.port, self.bound
        values, key_of = port.values, port.key
        if key_of is not None and level.has_key:
            listing = port.by_key.get(key)
            if listing is None:
                return
        else:
            listing = port.everything
        for serial in listing.living(values):
            if level.rivals and any(chosen[rival.number] == serial for rival in level.rivals):
                continue
            chosen[port.number] = serial
            bound[port.at] = values[serial]
            for guard in level.guards:
                if not guard.function(*[bound[at] for at in guard.ports]):
                    break
            else:
                if is_last:
                    yield tuple(chosen)
                else:
                    own_key = key_of(values[serial]) if key_of is not None and not level.has_key else key
                    for found in self._extend(levels, depth + 1, chosen, own_key):
                        yield found
                        if serial not in values:
                            break
                for other in level.before:
                    if chosen[other.number] not in other.values:
                        return
