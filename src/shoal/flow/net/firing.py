"""A transition made ready to fire: which places it may use as plain queues, and the quickest way to bind its tokens.

`prepare` makes the places and the transitions of a flow; each `Firing.bind` is a closure made for the ports and guards
that this transition really has. Binding takes the tokens away, or takes nothing and returns None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shoal.flow.net.build import Net
from shoal.flow.net.joining import Join
from shoal.flow.net.places import Candidates, Filter, IndexedPlace, LivePlace, QueuePlace, Serials
from shoal.flow.net.transition import Function, Guard, Transition

Bind = Callable[[], "Sequence[Any] | None"]


class Firing:
    """One transition of a running net."""

    __slots__ = ("bind", "call", "held", "number", "queued", "rank", "spec", "stopped", "taken", "wakes")

    def __init__(self, number: int, spec: Transition) -> None:
        self.number = number
        self.spec = spec
        self.rank = 0
        """Position of its priority among those of the net, the highest first."""
        self.queued = False
        self.stopped = False
        """Set aside, fired its once, or of a group that is not wanted any more."""
        self.bind: Bind = lambda: None
        self.call = _callable_with_positions(spec)
        self.taken: list[tuple[int, LivePlace]] = []
        """Ports whose token leaves its place, with the place."""
        self.held: list[tuple[int, LivePlace]] = []
        """Those of them whose token is given back when the task is over."""
        self.wakes: list[int] = []
        """Transitions that count tokens of a place from which this one takes."""


def prepare(net: Net, serials: Serials) -> tuple[dict[str, LivePlace], list[Firing]]:
    """The places, empty, and the transitions of a flow."""
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
            if port.kind != "count" or at in asked:  # a count that no guard asks for enables nothing
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
    """Places that one transition only uses, and that without a look at the token."""
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
    """The function of a step as one that takes the bound values in the order of the ports."""
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
    """The closure that looks for tokens and takes them."""
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
    """For ports that want whatever is oldest."""
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
    """How many tokens each queue must have."""
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
    """For everything: cheap conditions first, the join last, and only then are tokens taken."""
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


def _from_one(port: Candidates) -> Bind:
    """For a transition whose only port takes a token that its filters let in."""
    head, take_away = port.head, port.values.pop

    def bind() -> Sequence[Any] | None:
        serial = head()
        return (take_away(serial),) if serial else None

    return bind


def _join_and_free(
    firing: Firing, indexed: list[tuple[int, IndexedPlace]]
) -> tuple[Join | None, list[tuple[int, Candidates]]]:
    """Ports whose tokens must be chosen together, as one join, and those that are independent of all others."""
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
    free = [(at, Candidates(firing.number, place, filters[at])) for at, place in indexed if (at, place) not in chosen]
    if not chosen:
        return None, free
    volatile = any(spec.ports[at].kind == "count" for guard in joint for at in guard.ports)
    join = Join(firing.number, len(spec.ports), joint, volatile)
    for at, place in chosen:
        join.port(at, place, spec.ports[at].key, filters[at])
    join.close()
    return join, free
