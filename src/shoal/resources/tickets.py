"""Waiting tickets that ask for the same: one queue, and in it who would like which machine.

Preferences do not change what would suffice, so they do not make another line. They only decide who of a line goes
first when something becomes free on a certain machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec

from shoal.errors import InputError
from shoal.resources.best_fit import MachineShare
from shoal.resources.requests import ANYWHERE, Request
from shoal.resources.tree import ResourceTree, ResourceUnit, units_of


class TicketState(Enum):
    """What has become of a ticket."""

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
    """The tickets of one request, oldest first; those that ended are passed over when they come to the front."""

    __slots__ = ("_liked", "_quick", "_tickets", "number", "order", "possible", "request", "size", "version")

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        """Without preferences."""
        self.order: list[int] = []
        """Its requirements, hardest first."""
        self.possible = False
        """Whether it can be met at all by the forest of this `version`."""
        self.version = -1
        self.size = 0
        """Tickets that wait."""
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

    def fan_of(self, forest: ResourceTree, roots: Iterable[ResourceUnit]) -> Ticket | None:
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
        """Whether what is free on one of these machines could be the missing piece; a quick look."""
        for root in roots:
            free = root.free
            for kind, count in self._quick:
                if free.get(kind, 0) >= count or (kind == root.kind and root.is_ready()):
                    return True
        return not self._quick


def _smallest_needs(request: Request) -> list[tuple[str, int]]:
    """Of a request that is all on one machine: one need of each choice, without which the choice is not met there."""
    if len(request) > 1 or request[0].nodes == ANYWHERE:
        return []
    return [choice.needs[0] for choice in request[0].choices]


def _machine_name(forest: ResourceTree, wanted: int | str) -> str:
    unit = forest.find(wanted)
    return unit.root().name if unit is not None else ""


class GrantedPart(msgspec.Struct, frozen=True):
    """What a grant has on one machine for one requirement."""

    node: str
    requirement: int
    """Its position in the request."""
    choice: int
    """Which of the requirement's choices was selected: which implementation is to be run."""
    units: tuple[str, ...]
    """Paths of what is held."""
    kinds: tuple[str, ...]
    """The class of each of these."""
    cpus: tuple[int, ...] = ()
    """Processors in it, by the system's numbers."""
    devices: tuple[str, ...] = ()
    """GPUs in it, as `CUDA_VISIBLE_DEVICES` calls them."""
    memory: int = 0
    banks: tuple[tuple[str, int], ...] = ()
    """Of which units that memory is, and how much of each."""


class ResourceGrant(msgspec.Struct, frozen=True):
    """Everything a ticket holds, requirement by requirement."""

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
    """A ticket holds what it asked for; `ResourceManager.grant` says what."""

    ticket: int
    run: str


class TicketRefused(msgspec.Struct, frozen=True, tag=True):
    """A ticket ends because what it asks for is no longer there and no machines are to come."""

    ticket: int
    run: str
    why: str


class TicketEnded(msgspec.Struct, frozen=True, tag=True):
    """A waiting ticket of an interrupted run."""

    ticket: int
    run: str


class TicketLost(msgspec.Struct, frozen=True, tag=True):
    """What a ticket held, wholly or within something, and is no longer there; the rest it holds until its release."""

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
    """Among the ranks on its machine."""
    places: tuple[GrantedPart, ...]
    """What it has on its machine; several ranks there share it unless there is one for each unit."""
    environment: tuple[tuple[str, str], ...]


def ranks_of(grant: ResourceGrant, *, per: str | None = None) -> list[Rank]:
    """One rank for each machine, or one for each held unit of the class `per`; ordered by machine.

    Ranks of one machine stand together, so that `SHOAL_HOSTS` with its counts says who is where.
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
