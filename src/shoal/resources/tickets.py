"""Tickets (requests of runs), queues of equal requests, grants, events about tickets, and ranks of parallel tasks.

Preferences do not change which resources suffice, so requests that differ only in preferences share a queue.
Preferences only decide which ticket of the queue goes first when resources become free on a certain machine.
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
