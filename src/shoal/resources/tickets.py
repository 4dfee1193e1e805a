"""Tickets (requests of runs), queues of equal requests, grants, events about tickets, and ranks of parallel tasks.

Preferences do not change which resources suffice, so requests that differ only in preferences share a queue.
Preferences only decide which ticket of the queue goes first when resources become free on a certain machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from shoal.errors import InputError
from shoal.resources.best_fit import MachineShare, allowed_by
from shoal.resources.requests import ANYWHERE, Choice, Request, Requirement
from shoal.resources.tree import Memory, ResourceTree, ResourceUnit, holdings_of, units_of


class TicketState(Enum):
    """State of a ticket."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    ENDED = "ended"


class Ticket:
    """One request of a run."""

    __slots__ = ("line", "number", "request", "run", "shares", "state")

    def __init__(self, number: int, run: str, request: Request, line: TicketQueue) -> None:
        self.number, self.run, self.request, self.line = number, run, request, line
        self.state = TicketState.WAITING
        self.shares: list[MachineShare] = []


class TicketQueue:
    """The tickets of one request, oldest first; ended ones are skipped when they reach the front."""

    __slots__ = ("_liked", "_quick", "_tickets", "number", "order", "possible", "request", "size", "version")

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        """The request without preferences."""
        self.order: list[int] = []
        """Indexes of its requirements, hardest first."""
        self.possible = False
        """Whether it is feasible on the machines as of this `version`."""
        self.version = -1
        self.size = 0
        """Number of waiting tickets."""
        self._tickets: deque[Ticket] = deque()
        self._liked: dict[str, deque[Ticket]] = {}
        """Tickets by the machines and labels they prefer."""
        self._quick = _smallest_needs(request)

    def head(self) -> Ticket:
        tickets = self._tickets
        while tickets[0].state is not TicketState.WAITING:
            tickets.popleft()
        return tickets[0]

    def join(self, ticket: Ticket, forest: ResourceTree) -> None:
        if not self.size:
            self._tickets.clear()
            self._liked.clear()
        self._tickets.append(ticket)
        self.size += 1
        for requirement in ticket.request:
            for wanted in requirement.prefer:
                key = wanted if isinstance(wanted, str) and "=" in wanted else _machine_name(forest, wanted)
                if key:
                    self._liked.setdefault(key, deque()).append(ticket)

    def waiting(self) -> list[Ticket]:
        return [ticket for ticket in self._tickets if ticket.state is TicketState.WAITING]

    def first_preferring(self, forest: ResourceTree, roots: Iterable[ResourceUnit]) -> Ticket | None:
        """The oldest ticket that prefers one of these machines."""
        if not self._liked:
            return None
        for root in roots:
            for key in (root.name, *forest.labels_of[root.number]):
                fans = self._liked.get(key)
                while fans and fans[0].state is not TicketState.WAITING:
                    fans.popleft()
                if fans:
                    return fans[0]
        return None

    def could_use(self, roots: Sequence[ResourceUnit]) -> bool:
        """Whether what is free on one of these machines could be the missing piece: a fast check."""
        for root in roots:
            free = root.free
            for kind, count in self._quick:
                if free.get(kind, 0) >= count or (kind == root.kind and root.is_ready()):
                    return True
        return not self._quick


def _smallest_needs(request: Request) -> list[tuple[str, int]]:
    """For a request on one machine: one need of each choice, without which the choice cannot be met."""
    if len(request) > 1 or request[0].nodes == ANYWHERE:
        return []
    return [choice.needs[0] for choice in request[0].choices]


def _machine_name(forest: ResourceTree, wanted: int | str) -> str:
    unit = forest.find(wanted)
    return unit.root().name if unit is not None else ""


class GrantedPart(msgspec.Struct, frozen=True):
    """The granted resources on one machine for one requirement."""

    node: str
    requirement: int
    """Index of the requirement in the request."""
    choice: int
    """Index of the selected choice of the requirement: determines which implementation to run."""
    units: tuple[str, ...]
    """Paths of the held units."""
    kinds: tuple[str, ...]
    """The class of each unit."""
    cpus: tuple[int, ...] = ()
    """Numbers of their processors in the operating system."""
    devices: tuple[str, ...] = ()
    """Their GPUs, as named in `CUDA_VISIBLE_DEVICES`."""
    memory: int = 0
    banks: tuple[tuple[str, int], ...] = ()
    """The units with that memory, and how much of each."""


class ResourceGrant(msgspec.Struct, frozen=True):
    """Everything a ticket holds, by requirement."""

    ticket: int
    run: str
    places: tuple[GrantedPart, ...]

    def on(self, node: str) -> list[GrantedPart]:
        return [place for place in self.places if place.node == node]

    def nodes(self) -> list[str]:
        """The machines, each once, in the order of the requirements."""
        return list(dict.fromkeys(place.node for place in self.places))


def grant_of(ticket: Ticket) -> ResourceGrant:
    return ResourceGrant(ticket.number, ticket.run, tuple(_place_of(share) for share in ticket.shares))


def _place_of(share: MachineShare) -> GrantedPart:
    units = [unit for holding in share.holdings for unit in units_of(holding)]
    inside = [part for unit in units for part in unit.walk()]
    return GrantedPart(
        share.root.name,
        share.requirement,
        share.choice,
        tuple(unit.path() for unit in units),
        tuple(unit.kind for unit in units),
        tuple(sorted(part.cpu for part in inside if part.cpu is not None)),
        tuple(part.device for part in inside if part.device is not None),
        sum(size for _, size in share.memory),
        tuple((bank.path(), size) for bank, size in share.memory),
    )


class TicketGranted(msgspec.Struct, frozen=True, tag=True):
    """A ticket was granted; `ResourceManager.grant` returns its resources."""

    ticket: int
    run: str


class TicketRefused(msgspec.Struct, frozen=True, tag=True):
    """A ticket ends because its request is no longer feasible and no machines can be added."""

    ticket: int
    run: str
    why: str


class TicketEnded(msgspec.Struct, frozen=True, tag=True):
    """A waiting ticket of an interrupted run ended."""

    ticket: int
    run: str


class TicketLost(msgspec.Struct, frozen=True, tag=True):
    """Resources of a ticket were removed; the ticket holds the rest until its release."""

    ticket: int
    run: str
    units: tuple[str, ...]
    memory: int = 0


Happening: TypeAlias = TicketGranted | TicketRefused | TicketEnded | TicketLost


class Rank(msgspec.Struct, frozen=True):
    """One process of a parallel task."""

    rank: int
    node: str
    local_rank: int
    """Rank among the processes on its machine."""
    places: tuple[GrantedPart, ...]
    """Resources on its machine; shared by its ranks there unless there is one rank per unit."""
    environment: tuple[tuple[str, str], ...]


def ranks_of(grant: ResourceGrant, *, per: str | None = None) -> list[Rank]:
    """One rank for each machine, or one for each held unit of the class `per`; ordered by machine.

    The ranks of one machine are consecutive, so that `SHOAL_HOSTS` with its counts determines their machines.
    """
    nodes = grant.nodes()
    shares: list[tuple[str, tuple[GrantedPart, ...]]] = []
    for node in nodes:
        places = grant.on(node)
        if per is None:
            shares.append((node, tuple(places)))
        else:
            count = sum(place.kinds.count(per) for place in places)
            shares += [(node, tuple(places))] * count
    if not shares:
        raise InputError(f"the grant holds no {per}, so there is nothing to run a rank on")
    counts = {node: sum(each == node for each, _ in shares) for node in nodes}
    common = (
        ("SHOAL_HOSTS", ",".join(node for node in nodes if counts[node])),
        ("SHOAL_HOST_RANKS", ",".join(str(counts[node]) for node in nodes if counts[node])),
        ("SHOAL_RANKS", str(len(shares))),
    )
    ranks: list[Rank] = []
    on_node = dict.fromkeys(nodes, 0)
    for rank, (node, places_here) in enumerate(shares):
        own = (("SHOAL_RANK", str(rank)), ("SHOAL_LOCAL_RANK", str(on_node[node])))
        ranks.append(Rank(rank, node, on_node[node], places_here, (*common, *own)))
        on_node[node] += 1
    return ranks


class MachineClaim:
    """The claimed units and memory of one requirement on one machine."""

    __slots__ = ("choice", "memory", "requirement", "root", "units")

    def __init__(
        self, requirement: int, choice: int, root: ResourceUnit, units: list[ResourceUnit], memory: int
    ) -> None:
        self.requirement, self.choice, self.root = requirement, choice, root
        self.units, self.memory = units, memory


class SearchOrder(Enum):
    """The order in which a search visits machines, and groups within them."""

    SOONEST = "what is free"
    SMALLEST = "small"
    LARGEST = "large"


_ALWAYS_SAME = (SearchOrder.SMALLEST, SearchOrder.LARGEST)


class _Search:
    """State of a search: the units claimed so far."""

    def __init__(self, forest: ResourceTree, way: SearchOrder) -> None:
        self.forest = forest
        self.way = way
        self.taken: set[int] = set()
        self.around: dict[int, int] = {}
        """Number of claimed units within each unit."""
        self.memory: dict[int, int] = {}
        """Bytes claimed on each machine."""

    def machines(self, allowed: int) -> Iterator[ResourceUnit]:
        """The machines of the mask, in the order of the search."""
        if self.way is SearchOrder.SOONEST:
            return _emptiest_first(self.forest, allowed)
        return iter(sorted(self.forest.roots(allowed), key=lambda root: self._rank(root, "")))

    def mark(self, unit: ResourceUnit) -> None:
        self.taken.add(unit.number)
        for above in unit.around():
            self.around[above.number] = self.around.get(above.number, 0) + 1

    def unmark(self, unit: ResourceUnit) -> None:
        self.taken.discard(unit.number)
        for above in unit.around():
            self.around[above.number] -= 1

    def find(self, unit: ResourceUnit, kind: str, count: int, found: list[ResourceUnit]) -> None:
        """Claims up to `count` units within one unit and appends them to `found`."""
        if unit.number in self.taken:
            return
        for part in sorted(unit.parts, key=lambda part: self._rank(part, kind)):
            if len(found) == count:
                return
            if part.gone or part.number in self.taken:
                continue
            if part.kind == kind and not self.around.get(part.number):
                self.mark(part)
                found.append(part)
            elif part.total.get(kind):
                self.find(part, kind, count, found)

    def _rank(self, part: ResourceUnit, kind: str) -> tuple[int, int]:
        if self.way is not SearchOrder.SOONEST:
            size = sum(part.total.values())
            return (size if self.way is SearchOrder.SMALLEST else -size), 0
        if part.kind == kind:
            return 0 if part.is_ready() else 1, part.busy
        return (1 if part.held else 0), -part.free.get(kind, 0)

    def machine(self, root: ResourceUnit, choice: Choice) -> list[ResourceUnit] | None:
        """Claims a choice on one machine; None, with nothing claimed, if it does not fit."""
        if self.memory.get(root.number, 0) + choice.memory > self.forest.capacity[root.number]:
            return None
        found: list[ResourceUnit] = []
        for kind, count in sorted(choice.needs, key=lambda need: root.total.get(need[0], 0)):
            units: list[ResourceUnit] = []
            if count == 1 and kind == root.kind and not self.around.get(root.number) and root.number not in self.taken:
                self.mark(root)
                units.append(root)
            elif root.total.get(kind, 0) >= count:
                self.find(root, kind, count, units)
            found += units
            if len(units) < count:
                for unit in found:
                    self.unmark(unit)
                return None
        self.memory[root.number] = self.memory.get(root.number, 0) + choice.memory
        return found


def claim(forest: ResourceTree, request: Sequence[Requirement], order: Sequence[int]) -> list[MachineClaim] | None:
    """Units for a whole request, each once; exists for every request that `is_possible`."""
    return _search(forest, request, order, (SearchOrder.SOONEST, *_ALWAYS_SAME))


def is_possible(forest: ResourceTree, request: Sequence[Requirement], order: Sequence[int]) -> bool:
    """Whether a request could be met if nothing were held; independent of the current grants."""
    return _search(forest, request, order, _ALWAYS_SAME) is not None


def _search(
    forest: ResourceTree, request: Sequence[Requirement], order: Sequence[int], ways: Sequence[SearchOrder]
) -> list[MachineClaim] | None:
    for way in ways:
        search = _Search(forest, way)
        claims: list[MachineClaim] = []
        for at in order:
            found = _claim_requirement(search, request[at], at)
            if found is None:
                break
            claims += found
        else:
            return sorted(claims, key=lambda each: each.requirement)
    return None


def order_of(forest: ResourceTree, request: Sequence[Requirement]) -> list[int]:
    """Indexes of the requirements, hardest first: few matching machines, then large units."""
    if len(request) == 1:
        return [0]

    def hardness(at: int) -> tuple[int, int, int]:
        kinds = request[at].choices[0].needs
        scarcest = min(forest.top.total.get(kind, 0) for kind, _ in kinds)
        return allowed_by(forest, request[at].only).bit_count(), scarcest, at

    return sorted(range(len(request)), key=hardness)


def _claim_requirement(search: _Search, wanted: Requirement, at: int) -> list[MachineClaim] | None:
    allowed = allowed_by(search.forest, wanted.only)
    for number, choice in enumerate(wanted.choices):
        found = _claim_choice(search, wanted.nodes, choice, allowed, at, number)
        if found is not None:
            return found
    return None


def _claim_choice(
    search: _Search, nodes: int, choice: Choice, allowed: int, at: int, number: int
) -> list[MachineClaim] | None:
    if nodes == ANYWHERE:
        return _claim_anywhere(search, choice, allowed, at, number)
    claims: list[MachineClaim] = []
    for root in search.machines(allowed):
        units = search.machine(root, choice)
        if units is not None:
            claims.append(MachineClaim(at, number, root, units, choice.memory))
            if len(claims) == nodes:
                return claims
    for each in claims:
        search.memory[each.root.number] -= each.memory
        for unit in each.units:
            search.unmark(unit)
    return None


def _claim_anywhere(search: _Search, choice: Choice, allowed: int, at: int, number: int) -> list[MachineClaim] | None:
    claims: list[MachineClaim] = []
    for kind, count in choice.needs:
        left = count
        for root in search.machines(allowed):
            units: list[ResourceUnit] = []
            if kind == root.kind and not search.around.get(root.number) and root.number not in search.taken:
                search.mark(root)
                units.append(root)
            elif root.total.get(kind):
                search.find(root, kind, left, units)
            if units:
                claims.append(MachineClaim(at, number, root, units, 0))
                left -= len(units)
                if not left:
                    break
        if left:
            for each in claims:
                for unit in each.units:
                    search.unmark(unit)
            return None
    return claims


def _emptiest_first(forest: ResourceTree, allowed: int) -> Iterator[ResourceUnit]:
    """Machines by free units of the most numerous class, descending."""
    finest = max(forest.levels, key=lambda kind: forest.top.total[kind], default=None)
    if finest is not None:
        for mask in forest.levels[finest].downward():
            yield from forest.roots(mask & allowed)
            allowed &= ~mask
    yield from forest.roots(allowed)


class Reservation:
    """Units of a claim that are collected until the claim is complete."""

    def __init__(self, forest: ResourceTree, claims: list[MachineClaim]) -> None:
        self.owner = 0
        """Number of the ticket that it serves."""
        self.claims = claims
        self.held: dict[int, ResourceUnit] = {}
        """Collected pieces by unit number: claimed units, or parts of them."""
        self.memory: list[tuple[ResourceUnit, Memory]] = []
        """Collected memory by machine."""
        self._forest = forest
        self._targets: dict[int, list[ResourceUnit]] = {}
        """Claimed units that are not complete, by machine."""
        self._missing: dict[int, int] = {}
        """Bytes still missing, by machine."""
        for each in claims:
            self._targets.setdefault(each.root.number, []).extend(each.units)
            if each.memory:
                self._missing[each.root.number] = self._missing.get(each.root.number, 0) + each.memory
        for each in claims:
            self.collect(each.root)

    def collect(self, root: ResourceUnit) -> None:
        """Takes claimed units that have become free on a machine."""
        waiting = self._targets.get(root.number)
        if waiting:
            left = [unit for unit in waiting if unit.is_enclosed() or not self._gather(unit)]
            if left:
                self._targets[root.number] = left
            else:
                del self._targets[root.number]
        missing = self._missing.get(root.number, 0)
        share = min(missing, self._forest.room[root.number])
        if share:
            self.memory += [(root, taken) for taken in self._forest.take_memory(root, share, None)]
            self._missing[root.number] = missing - share
            if missing == share:
                del self._missing[root.number]

    def _gather(self, unit: ResourceUnit) -> bool:
        """Takes a unit, or what is free within it; returns whether all of it is held now."""
        if unit.number in self.held:
            return True
        if unit.is_ready():
            self._hold(unit)
            return True
        if unit.held or not unit.parts:
            return False
        parts = [part for part in unit.parts if not part.gone]
        gathered = [self._gather(part) for part in parts]  # a list, because all parts must be visited
        if not all(gathered):
            return False
        for part in parts:
            self._let_go(part)
        self._hold(unit)
        return True

    def _hold(self, unit: ResourceUnit) -> None:
        assert unit.parent is not None
        self._forest.take(unit.parent, unit.kind, unit.bit)
        self.held[unit.number] = unit

    def _let_go(self, unit: ResourceUnit) -> None:
        assert unit.parent is not None
        self._forest.give(unit.parent, unit.kind, unit.bit)
        del self.held[unit.number]

    def is_complete(self) -> bool:
        return not self._targets and not self._missing

    def lift(self) -> None:
        """Releases everything that was collected."""
        for unit in list(self.held.values()):
            self._let_go(unit)
        for root, taken in self.memory:
            self._forest.give_memory(root, [taken])
        self.memory.clear()

    def hand_over(self) -> list[MachineShare]:
        """The complete claim as shares of the ticket."""
        assert self.is_complete()
        self.lift()
        shares = []
        for each in self.claims:
            holdings = holdings_of(each.units)
            for holding in holdings:
                self._forest.take(*holding)
            memory = self._forest.take_memory(each.root, each.memory, each.units[0]) if each.memory else []
            shares.append(MachineShare(each.requirement, each.choice, each.root, holdings, memory))
        return shares
