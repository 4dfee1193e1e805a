"""Waiting tickets that ask for the same: one queue, and in it who would like which machine.

Preferences do not change what would suffice, so they do not make another line. They only decide who of a line goes
first when something becomes free on a certain machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from shoal.steward.asking import ANYWHERE, Request
from shoal.steward.forest import Forest
from shoal.steward.placing import Share
from shoal.steward.unit import Unit


class State(Enum):
    """What has become of a ticket."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    ENDED = "ended"


class Ticket:
    """One request of a run."""

    __slots__ = ("line", "number", "request", "run", "shares", "state")

    def __init__(self, number: int, run: str, request: Request, line: Line) -> None:
        self.number, self.run, self.request, self.line = number, run, request, line
        self.state = State.WAITING
        self.shares: list[Share] = []


class Line:
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
        while tickets[0].state is not State.WAITING:
            tickets.popleft()
        return tickets[0]

    def join(self, ticket: Ticket, forest: Forest) -> None:
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
        return [ticket for ticket in self._tickets if ticket.state is State.WAITING]

    def fan_of(self, forest: Forest, roots: Iterable[Unit]) -> Ticket | None:
        """The oldest ticket that prefers one of these machines."""
        if not self._liked:
            return None
        for root in roots:
            for key in (root.name, *forest.labels_of[root.number]):
                fans = self._liked.get(key)
                while fans and fans[0].state is not State.WAITING:
                    fans.popleft()
                if fans:
                    return fans[0]
        return None

    def could_use(self, roots: Sequence[Unit]) -> bool:
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


def _machine_name(forest: Forest, wanted: int | str) -> str:
    unit = forest.find(wanted)
    return unit.root().name if unit is not None else ""
