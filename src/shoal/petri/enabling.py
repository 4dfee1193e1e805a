"""Enabling of transitions: places with live tokens, matching of tokens to ports, guards and joins, and firing order.

`prepare` creates the places and firings of a run. `TransitionAgenda` orders them: highest priority first, then
round-robin or random with a seed. In round-robin a transition that has fired goes to the end of its queue, so none of
equal priority starves. With a seed the choice is random among equal priorities, and reproducible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from shoal.petri.language import Key
from shoal.petri.net import Net, PlaceSpec
from shoal.petri.transition import Function, Guard, Transition

Filter = Callable[[Any], object]
SLACK = 64
"""Number of stale serials below which lists are never compacted."""
NOBODY = -1


class Offered(Protocol):
    """A port, or a port of a join, that is notified of each new token of its place."""

    owner: int

    def offer(self, serial: int) -> None: ...


class Serials:
    """Serial numbers for all places of one run, so that any two tokens are ordered."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class LivePlace:
    """Common base of both kinds of places."""

    __slots__ = ("add", "flying", "name", "spec", "watchers")

    def __init__(self, spec: PlaceSpec) -> None:
        self.spec = spec
        self.name = spec.place.name
        self.flying = 0
        """Number of tokens taken by running tasks."""
        self.watchers: list[int] = []
        """Numbers of the transitions that a new token may enable."""
        self.add: Callable[[object], None]

    def __len__(self) -> int:
        raise NotImplementedError

    def put_back(self, value: object, barred: int) -> None:
        """Returns a token that must not be offered to the transition `barred` again."""
        raise NotImplementedError

    def contents(self) -> Iterator[tuple[int, object, int]]:
        """Serial number, value and barred transition of each token, oldest first."""
        raise NotImplementedError


class QueuePlace(LivePlace):
    """A place with a single consumer that takes the oldest token."""

    __slots__ = ("queue", "shelf")

    def __init__(self, spec: PlaceSpec) -> None:
        super().__init__(spec)
        self.queue: deque[object] = deque()
        self.shelf: list[tuple[object, int]] = []
        """Tokens that must not be offered to the consumer again."""
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
    """A place whose tokens have serial numbers, for guards, keys and several consumers."""

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
        """Puts a token with a known serial number."""
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
    """Candidates of a port that accepts any token passing its filters, independent of other ports."""

    __slots__ = ("filters", "found", "fresh", "owner", "sweep_at", "values")

    def __init__(self, owner: int, place: IndexedPlace, filters: list[Filter]) -> None:
        self.owner = owner
        self.values = place.values
        self.filters = filters
        self.fresh: deque[int] = deque()
        self.sweep_at = SLACK
        self.found = 0
        """Latest accepted token, until it is taken."""
        place.ports.append(self)

    def offer(self, serial: int) -> None:
        fresh = self.fresh
        fresh.append(serial)
        if len(fresh) > self.sweep_at:
            values = self.values
            self.fresh = deque(old for old in fresh if old in values)
            self.sweep_at = 2 * len(self.fresh) + SLACK

    def head(self) -> int:
        """The oldest token that fits, or 0. Filters are evaluated once per token."""
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


class SerialList:
    """Ordered serial numbers with jumps over stale ones, so that stale stretches are not walked twice."""

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
    """One port of a join: the tokens it has seen, by key if it has one."""

    __slots__ = ("at", "by_key", "everything", "filters", "join", "key", "listed", "number", "owner", "values")

    def __init__(
        self, join: TokenJoin, number: int, at: int, place: IndexedPlace, key: Key | None, filters: list[Filter]
    ):
        self.join = join
        self.owner = join.owner
        self.number = number
        self.at = at
        """Index among the ports of the transition."""
        self.values = place.values
        self.key = key
        self.filters = filters
        self.everything = SerialList()
        self.by_key: dict[object, SerialList] = {}
        self.listed = 0
        place.ports.append(self)

    def offer(self, serial: int) -> None:
        self.join.offer(serial, self.number)

    def insert(self, serial: int, key: object) -> None:
        """Adds a token whose combinations were all tried; called only between searches."""
        if self.listed > 2 * len(self.values) + SLACK:
            self._sweep()
        self._note(serial, key)

    def _note(self, serial: int, key: object) -> None:
        self.listed += 1
        if self.key is not None:
            listing = self.by_key.get(key)
            if listing is None:
                listing = self.by_key[key] = SerialList()
            listing.append(serial)
        if self.key is None or self.join.needs_everything:
            self.everything.append(serial)

    def _sweep(self) -> None:
        """Rebuilds the lists from the live tokens."""
        by_key, everything, self.listed = self.by_key, self.everything, 0
        self.by_key, self.everything = {}, SerialList()
        if self.key is None:
            for serial in everything.living(self.values):
                self._note(serial, None)
        else:
            alive = [(serial, key) for key, listing in by_key.items() for serial in listing.living(self.values)]
            for serial, key in sorted(alive, key=lambda pair: pair[0]):
                self._note(serial, key)


class Level:
    """The port to fill next in a search, and the guards that can be evaluated then."""

    __slots__ = ("before", "guards", "has_key", "port", "rivals")

    def __init__(self, port: JoinPort, guards: list[Guard], before: list[JoinPort]) -> None:
        self.port = port
        self.guards = guards
        self.before = before
        self.rivals = [other for other in before if other.values is port.values]
        """Ports of the same place that are filled earlier; they must get other tokens."""
        self.has_key = any(other.key is not None for other in before)
        """Whether the key is known at this point."""


class TokenJoin:
    """Ports of one transition whose tokens must be chosen together (guards over several ports, keys)."""

    def __init__(self, owner: int, width: int, guards: Sequence[Guard], volatile: bool) -> None:
        self.owner = owner
        self.guards = guards
        self.volatile = volatile
        """Whether a guard also depends on a count; then results are not cached."""
        self.ports: list[JoinPort] = []
        self.bound: list[Any] = [None] * width
        """Values of the combination under test, by port of the transition; the caller sets the counts."""
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
        """Plans the order in which ports are filled, for each port with which a search may begin."""
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
        """A matching combination, one serial number for each port of the join, or None."""
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
        """The next live token that passes its filters, with its key."""
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
        """Matching combinations of a token with tokens seen earlier."""
        chosen = [0] * len(self.ports)
        chosen[port.number] = serial
        self.bound[port.at] = port.values[serial]
        levels = self._levels[port.number]
        return self._extend(levels, 1, chosen, key)

    def _extend(self, levels: list[Level], depth: int, chosen: list[int], key: object) -> Iterator[tuple[int, ...]]:
        """Fills the remaining ports. Tokens may be taken while the generator is suspended; their combinations are
        skipped."""
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


Bind = Callable[[], "Sequence[Any] | None"]


class Firing:
    """Run-time state of one transition."""

    __slots__ = ("bind", "call", "held", "number", "queued", "rank", "spec", "stopped", "taken", "wakes")

    def __init__(self, number: int, spec: Transition) -> None:
        self.number = number
        self.spec = spec
        self.rank = 0
        """Rank of its priority in the net, the highest first."""
        self.queued = False
        self.stopped = False
        """Disabled, fired once, or member of a cancelled group."""
        self.bind: Bind = lambda: None
        self.call = _callable_with_positions(spec)
        self.taken: list[tuple[int, LivePlace]] = []
        """Ports whose tokens are removed from their places, with the places."""
        self.held: list[tuple[int, LivePlace]] = []
        """Those of them whose token returns when the task is over (windows)."""
        self.wakes: list[int] = []
        """Transitions that count tokens of a place from which this one takes."""


def prepare(net: Net, serials: Serials) -> tuple[dict[str, LivePlace], list[Firing]]:
    """Creates the empty places and the transitions of a run."""
    plain = _plain_places(net)
    places: dict[str, LivePlace] = {
        name: QueuePlace(spec) if name in plain else IndexedPlace(spec, serials) for name, spec in net.places.items()
    }
    firings = [Firing(number, spec) for number, spec in enumerate(net.transitions.values())]
    priorities = sorted({firing.spec.priority for firing in firings}, reverse=True)
    ranks = {priority: rank for rank, priority in enumerate(priorities)}
    counted: dict[str, list[int]] = {}
    for firing in firings:
        spec = firing.spec
        firing.rank = ranks[spec.priority]
        asked = {at for guard in spec.guards for at in guard.ports}
        for at, port in enumerate(spec.ports):
            if port.kind != "count" or at in asked:  # a count that no guard uses enables nothing
                watchers = places[port.place.name].watchers
                if not watchers or watchers[-1] != firing.number:
                    watchers.append(firing.number)
            if port.kind == "count" and at in asked:
                counted.setdefault(port.place.name, []).append(firing.number)
            if port.kind == "take":
                firing.taken.append((at, places[port.place.name]))
                if at >= spec.visible and spec.within is not None:
                    firing.held.append((at, places[port.place.name]))
        firing.bind = _binding(firing, places)
    for firing in firings:
        found = [number for _, place in firing.taken for number in counted.get(place.name, ())]
        firing.wakes = list(dict.fromkeys(found))
    return places, firings


def _plain_places(net: Net) -> set[str]:
    """Places with a single consumer that does not examine the tokens."""
    users: dict[str, set[str]] = {}
    looked_at: set[str] = set()
    for name, spec in net.transitions.items():
        guarded = {at for guard in spec.guards for at in guard.ports}
        seen: dict[str, str] = {}
        for at, port in enumerate(spec.ports):
            if port.kind == "count":
                continue
            place = port.place.name
            users.setdefault(place, set()).add(name)
            if at in guarded or port.key is not None or seen.get(place, port.kind) != port.kind:
                looked_at.add(place)
            if port.kind == "read" and place in seen:
                looked_at.add(place)
            seen[place] = port.kind
    return {name for name in net.places if name not in looked_at and len(users.get(name, ())) <= 1}


def _callable_with_positions(spec: Transition) -> Function:
    """The function of a step, called with the bound values in the order of the ports."""
    function = spec.function
    if function is None:
        return lambda *values: None
    names, visible = spec.port_names, spec.visible
    if spec.by_keyword:
        return lambda *values: function(**dict(zip(names[:visible], values, strict=False)))
    if visible < len(names):
        return lambda *values: function(*values[:visible])
    return function


def _binding(firing: Firing, places: dict[str, LivePlace]) -> Bind:
    """Returns the closure that searches for tokens and takes them."""
    spec = firing.spec
    counts = [(at, places[port.place.name]) for at, port in enumerate(spec.ports) if port.kind == "count"]
    queues: list[tuple[int, deque[object], bool]] = []
    indexed: list[tuple[int, IndexedPlace]] = []
    for at, port in enumerate(spec.ports):
        place = places[port.place.name]
        if port.kind == "count":
            continue
        if isinstance(place, QueuePlace):
            queues.append((at, place.queue, port.kind == "take"))
        else:
            assert isinstance(place, IndexedPlace)
            indexed.append((at, place))
    if not counts and not indexed:
        return _from_queues(queues, len(spec.ports))
    return _general(firing, counts, queues, indexed)


def _from_queues(queues: list[tuple[int, deque[object], bool]], width: int) -> Bind:
    """Binding for ports that take the oldest token."""
    if width == 1 and queues[0][2]:
        only = queues[0][1]
        pop_only = only.popleft
        return lambda: (pop_only(),) if only else None
    distinct = len({id(queue) for _, queue, _ in queues}) == width
    if width == 2 and distinct and queues[0][2] and queues[1][2]:
        first, second = queues[0][1], queues[1][1]
        pop_first, pop_second = first.popleft, second.popleft
        return lambda: (pop_first(), pop_second()) if first and second else None
    needs = _needs(queues)
    fetches = [queue.popleft if takes else queue.__getitem__ for _, queue, takes in queues]
    arguments = [() if takes else (0,) for _, _, takes in queues]
    pairs = list(zip(fetches, arguments, strict=True))

    def bind() -> Sequence[Any] | None:
        for queue, need in needs:
            if len(queue) < need:
                return None
        return [fetch(*argument) for fetch, argument in pairs]

    return bind


def _needs(queues: list[tuple[int, deque[object], bool]]) -> list[tuple[deque[object], int]]:
    """The number of tokens that each queue must have."""
    wanted: dict[int, tuple[deque[object], int]] = {}
    for _, queue, _ in queues:
        wanted[id(queue)] = (queue, wanted.get(id(queue), (queue, 0))[1] + 1)
    return list(wanted.values())


def _general(
    firing: Firing,
    counts: list[tuple[int, LivePlace]],
    queues: list[tuple[int, deque[object], bool]],
    indexed: list[tuple[int, IndexedPlace]],
) -> Bind:
    """Binding for all other cases: cheap conditions first, the join last, and tokens are taken only after all
    succeed."""
    spec = firing.spec
    needs = _needs(queues)
    count_guards = [guard for guard in spec.guards if all(spec.ports[at].kind == "count" for at in guard.ports)]
    join, free = _join_and_free(firing, indexed)
    if len(spec.ports) == len(free) == len(firing.taken) == 1:
        return _from_one(free[0][1])
    taken = {at for at, _ in firing.taken}
    free_ports = [(at, port, port.head, at in taken) for at, port in free]
    join_ports = [(at, place.values, at in taken) for at, place in indexed if all(at != other for other, _ in free)]
    width = len(spec.ports)

    def bind() -> Sequence[Any] | None:
        for queue, need in needs:
            if len(queue) < need:
                return None
        for _, _, head, _ in free_ports:
            if not head():
                return None
        values: list[Any] = [None] * width
        for at, place in counts:
            values[at] = len(place) + place.flying
        for guard in count_guards:
            if not guard.function(*[values[at] for at in guard.ports]):
                return None
        if join is not None:
            if join.volatile:
                for at, _ in counts:
                    join.bound[at] = values[at]
            found = join.find()
            if found is None:
                return None
            for serial, (at, tokens, takes) in zip(found, join_ports, strict=True):
                values[at] = tokens.pop(serial) if takes else tokens[serial]
        for at, port, head, takes in free_ports:
            values[at] = port.values.pop(head()) if takes else port.values[head()]
        for at, queue, takes in queues:
            values[at] = queue.popleft() if takes else queue[0]
        return values

    return bind


def _from_one(port: PortCandidates) -> Bind:
    """Binding for a transition with a single port that takes a token passing its filters."""
    head, take_away = port.head, port.values.pop

    def bind() -> Sequence[Any] | None:
        serial = head()
        return (take_away(serial),) if serial else None

    return bind


def _join_and_free(
    firing: Firing, indexed: list[tuple[int, IndexedPlace]]
) -> tuple[TokenJoin | None, list[tuple[int, PortCandidates]]]:
    """Splits the ports into a join, whose tokens must be chosen together, and independent ports."""
    spec = firing.spec
    joint: list[Guard] = []
    filters: dict[int, list[Filter]] = {at: [] for at, _ in indexed}
    for guard in spec.guards:
        kinds = [spec.ports[at].kind for at in guard.ports]
        if len(guard.ports) == 1 and kinds[0] != "count":
            filters[guard.ports[0]].append(guard.function)
        elif any(kind != "count" for kind in kinds):
            joint.append(guard)
    together = {at for guard in joint for at in guard.ports}
    here = [place for _, place in indexed]
    chosen = [
        (at, place)
        for at, place in indexed
        if at in together or spec.ports[at].key is not None or sum(place is other for other in here) > 1
    ]
    free = [
        (at, PortCandidates(firing.number, place, filters[at])) for at, place in indexed if (at, place) not in chosen
    ]
    if not chosen:
        return None, free
    volatile = any(spec.ports[at].kind == "count" for guard in joint for at in guard.ports)
    join = TokenJoin(firing.number, len(spec.ports), joint, volatile)
    for at, place in chosen:
        join.port(at, place, spec.ports[at].key, filters[at])
    join.close()
    return join, free


_MASK = (1 << 64) - 1


class Dice:
    """Seeded random generator whose whole state is one number (splitmix64)."""

    __slots__ = ("state",)

    def __init__(self, state: int) -> None:
        self.state = state & _MASK

    def below(self, limit: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % limit


class TransitionAgenda:
    """Transitions to examine, ordered by rank; each is queued at most once."""

    __slots__ = ("_active", "_dice", "_queues", "_ranks", "looks")

    def __init__(self, ranks: int, dice: Dice | None) -> None:
        self._queues: list[deque[Firing]] = [deque() for _ in range(ranks)]
        self._ranks: list[int] = []
        """Heap of the ranks with non-empty queues; may contain ranks whose queues have become empty."""
        self._active = bytearray(ranks)
        self._dice = dice
        self.looks = 0

    def __bool__(self) -> bool:
        return any(self._queues[rank] for rank in self._ranks)

    def append(self, firing: Firing) -> None:
        """Appends a transition to its queue; it must not be queued already."""
        rank = firing.rank
        if not self._active[rank]:
            self._active[rank] = 1
            heappush(self._ranks, rank)
        self._queues[rank].append(firing)

    def pick(self) -> Firing | None:
        """Removes the transition to examine now; it counts as queued until the caller resets it."""
        ranks = self._ranks
        while ranks:
            queue = self._queues[ranks[0]]
            if queue:
                self.looks += 1
                if self._dice is not None and len(queue) > 1:
                    at = self._dice.below(len(queue))
                    queue[0], queue[at] = queue[at], queue[0]
                return queue.popleft()
            self._active[heappop(ranks)] = 0
        return None

    def names(self) -> list[str]:
        """Names of the queued transitions, by rank, then in queue order."""
        return [firing.spec.name for rank in sorted(self._ranks) for firing in self._queues[rank]]
