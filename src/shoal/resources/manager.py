"""The resource manager: grants resources to requests of runs; queues, fairness, and reservations against starvation.

Requests are granted completely or not at all, so no request holds resources while it waits, and there is no deadlock.
Everything that fits is granted immediately, also past waiting requests (*backfill*): a request waits only because its
resources are not free.

No request starves. The oldest waiting ticket may be passed by `patience` younger ones. Then it gets a *reservation*
(`shoal.resources.tickets`): units that can serve it, and that no other ticket gets when they become free. It is
served at the latest when every holder of these units has released them; then the next ticket is the oldest.

The bound: assume that every grant is released within H releases. While the oldest ticket waits, each sequence of H
releases passes it at least once; otherwise nothing would be held at its end, and the ticket would be served. So the
ticket has its reservation after `patience` such sequences, and the reservation is complete H releases later: a ticket
with Q older ones before it waits for at most (Q + 1) * ((patience + 1) * H + 1) releases. Where every release serves a
ticket, as under load, each counts as one of the `patience`, and the bound is (Q + 1) * (patience + H + 1).
`tests/resources/property/test_steward_property.py` checks it.

Methods return events about tickets other than their own. There is no clock: waiting is counted in grants. The caller
runs tasks on the granted units.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import msgspec

from shoal.core.quantities import show_bytes
from shoal.errors import InputError
from shoal.resources.best_fit import MachineShare, allowed_by, give_back, place
from shoal.resources.machine import MachinePart
from shoal.resources.requests import ANYWHERE, Choice, Request, Requirement, Wanted
from shoal.resources.tickets import (
    Happening,
    Reservation,
    ResourceGrant,
    Ticket,
    TicketEnded,
    TicketGranted,
    TicketLost,
    TicketQueue,
    TicketRefused,
    TicketState,
    claim,
    grant_of,
    is_possible,
    order_of,
)
from shoal.resources.tree import ResourceTree, ResourceUnit, holdings_of, units_of


def why_never(forest: ResourceTree, request: Sequence[Requirement]) -> str:
    """The reason why a request without a claim can never be granted."""
    for wanted in request:
        reason = _why_not(forest, wanted)
        if reason is not None:
            return f"{wanted} can never be granted: {reason}"
    together = ", and ".join(map(str, request))
    machines = len(forest.machines)
    return f"{together} can never be granted together on the {machines} machine{'s' * (machines != 1)}"


def _why_not(forest: ResourceTree, wanted: Requirement) -> str | None:
    """Why one requirement alone cannot be met; None if it can, judging by counts."""
    roots = list(forest.roots())
    if not roots:
        return "there are no machines"
    roots = list(forest.roots(allowed_by(forest, wanted.only)))
    if not roots:
        return f"no machine is {' and '.join(wanted.only)}"
    reasons = [_why_not_choice(roots, forest, wanted.nodes, choice) for choice in wanted.choices]
    return None if None in reasons else "; ".join(reason for reason in reasons if reason)


def _why_not_choice(roots: list[ResourceUnit], forest: ResourceTree, nodes: int, choice: Choice) -> str | None:
    for kind, count in choice.needs:
        counts = [_number(root, kind) for root in roots]
        if not any(counts):
            return f"no machine has any {kind}"
        if nodes == ANYWHERE:
            if sum(counts) < count:
                return f"there are only {sum(counts)} {kind} in total"
        elif max(counts) < count:
            return f"the largest number of {kind} on one node is {max(counts)}"
    most = max(forest.capacity[root.number] for root in roots)
    if most < choice.memory:
        return f"the largest memory of a node is {show_bytes(most)}"
    if nodes == ANYWHERE:
        return None
    having = [
        root
        for root in roots
        if forest.capacity[root.number] >= choice.memory
        and all(_number(root, kind) >= count for kind, count in choice.needs)
    ]
    if not having:
        return f"no node has {choice} together"
    if len(having) < nodes:
        return f"only {len(having)} machine{'s' * (len(having) > 1)} can provide that"
    return None


def _number(root: ResourceUnit, kind: str) -> int:
    """Number of units of a class on a machine, including the machine itself."""
    return root.total.get(kind, 0) + (root.kind == kind)


PATIENCE = 100
_REMEMBERED = 10_000
"""Empty queues are deleted when there are more than this."""


class ResourceManager:
    """Resources, grants and waiting tickets."""

    def __init__(self, parts: Iterable[MachinePart] = (), *, patience: int = PATIENCE, may_grow: bool = False) -> None:
        """If machines `may_grow` in number, a request that none of them can meet waits instead of being refused."""
        self.forest = ResourceTree()
        self.patience = patience
        self.may_grow = may_grow
        self.held: dict[int, Ticket] = {}
        self.waiting: dict[int, Ticket] = {}
        self.fence: Reservation | None = None
        self.order: list[tuple[int, int, TicketQueue]] = []
        """Queues with tickets that can be met, sorted by the number of their oldest ticket."""
        self.hoping: dict[int, TicketQueue] = {}
        """Queues that wait for other machines."""
        self._passed = 0
        """Number of grants to younger tickets since `_oldest` became the oldest."""
        self._oldest = 0
        self._lines: dict[Request, TicketQueue] = {}
        self._last = 0
        self._last_line = 0
        self._version = 0
        self.untried = False
        """Whether a ticket was queued without a test of what is free."""
        self.add(*parts)

    def request(self, run: str, wanted: Requirement | Sequence[Requirement]) -> Ticket:
        """Creates a ticket, which is granted immediately if possible and waits otherwise.

        A request that can never be met raises `InputError`, unless machines may be added.
        """
        request = (wanted,) if isinstance(wanted, Requirement) else tuple(wanted)
        if not request:
            raise InputError(f"the request of run {run!r} is empty", remedy="give at least one requirement")
        line = self._line_of(request)
        self._last += 1
        ticket = Ticket(self._last, run, request, line)
        if line.possible and not line.size:
            if self._is_due():
                self.untried = True
            else:
                shares = self._place(ticket)
                if shares is None and not self.held:
                    shares = self._claimed(line).hand_over()
                if shares is not None:
                    self._hold(ticket, shares)
                    if self.order:
                        self.passed_by()
                        self._passed += 1
                    return ticket
        self._queue(ticket)
        return ticket

    def grant(self, ticket: int) -> ResourceGrant:
        """The resources that a ticket holds."""
        return grant_of(self._holder(ticket))

    def release(self, ticket: int) -> list[Happening]:
        """Releases the resources of a ticket; returns the tickets that were served with them."""
        found = self._holder(ticket)
        del self.held[ticket]
        found.state = TicketState.ENDED
        give_back(self.forest, found.shares)
        if not self.order:
            return []
        return self._serve([share.root for share in found.shares])

    def cancel(self, ticket: int) -> list[Happening]:
        """Ends a ticket, including one that has been granted in the meantime."""
        if ticket in self.held:
            return self.release(ticket)
        found = self.waiting.get(ticket)
        if found is None:
            raise InputError(f"ticket {ticket} {self._fate(ticket)}")
        self._leave(found, TicketState.ENDED)
        return self._serve(None)

    def interrupt(self, run: str) -> list[Happening]:
        """Ends every waiting ticket of a run; granted resources are kept."""
        told: list[Happening] = []
        for ticket in [each for each in self.waiting.values() if each.run == run]:
            self._leave(ticket, TicketState.ENDED)
            told.append(TicketEnded(ticket.number, run))
        return told + self._serve(None)

    def depart(self, run: str) -> list[Happening]:
        """Ends all tickets of a run and releases its resources."""
        told = self.interrupt(run)
        for ticket in [each for each in self.held.values() if each.run == run]:
            told += self.release(ticket.number)
        return told

    def add(self, *parts: MachinePart) -> list[Happening]:
        """Adds machines; all of them, or none if one is invalid."""
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise InputError(f"two of the machines {', '.join(names)} have the same name")
        planted: list[ResourceUnit] = []
        try:
            for part in parts:
                planted.append(self.forest.add(part))
        except InputError:
            for root in planted:
                self.forest.cut(root)
            raise
        return self._recheck_feasibility() + self._serve(None)

    def remove(self, *wanted: Wanted) -> list[Happening]:
        """Removes machines or parts of them, whether in use or not; returns the tickets that held any of them."""
        units = [self._existing(each) for each in wanted]
        if self.fence is not None:
            self._lift()
        told: list[Happening] = []
        for unit in units:
            if not unit.gone:
                told += self._take_away(unit)
        told += self._recheck_feasibility()
        return told + self._serve(None)

    def _holder(self, ticket: int) -> Ticket:
        found = self.held.get(ticket)
        if found is None:
            raise InputError(f"ticket {ticket} holds nothing: it {self._fate(ticket)}")
        return found

    def _fate(self, ticket: int) -> str:
        if ticket in self.waiting:
            return "is still waiting"
        return "has already ended" if 0 < ticket <= self._last else "was never issued"

    def _existing(self, wanted: Wanted) -> ResourceUnit:
        unit = self.forest.find(wanted)
        if unit is None:
            raise InputError(f"there is no resource {wanted!r} to remove")
        return unit

    def _line_of(self, request: Request) -> TicketQueue:
        """The queue of equal requests; created and checked for feasibility if it is new."""
        line = self._lines.get(request)
        if line is None:
            bare = tuple(msgspec.structs.replace(each, prefer=()) if each.prefer else each for each in request)
            line = self._lines.get(bare)
            if line is None:
                if len(self._lines) > _REMEMBERED:
                    self._lines = {key: known for key, known in self._lines.items() if known.size}
                self._last_line += 1
                line = self._lines[bare] = TicketQueue(self._last_line, bare)
        if line.version != self._version:
            self._is_possible(line)
        if not line.possible and not self.may_grow:
            raise InputError(why_never(self.forest, line.request))
        return line

    def _is_possible(self, line: TicketQueue) -> bool:
        line.order = order_of(self.forest, line.request)
        line.possible = is_possible(self.forest, line.request, line.order)
        line.version = self._version
        return line.possible

    def _hold(self, ticket: Ticket, shares: list[MachineShare]) -> None:
        ticket.state, ticket.shares = TicketState.GRANTED, shares
        self.held[ticket.number] = ticket

    def _queue(self, ticket: Ticket) -> None:
        line = ticket.line
        line.join(ticket, self.forest)
        self.waiting[ticket.number] = ticket
        if line.size == 1:
            if line.possible:
                insort(self.order, (ticket.number, line.number, line))
            else:
                self.hoping[line.number] = line

    def _leave(self, ticket: Ticket, state: TicketState) -> None:
        """Removes a ticket from its queue."""
        line = ticket.line
        was_head = line.head() is ticket
        ticket.state = state
        line.size -= 1
        del self.waiting[ticket.number]
        if self.fence is not None and self.fence.owner == ticket.number:
            self._lift()
        if was_head and line.number not in self.hoping:
            del self.order[bisect_left(self.order, (ticket.number,))]
            if line.size:
                insort(self.order, (line.head().number, line.number, line))
        elif not line.size:
            self.hoping.pop(line.number, None)

    def _lift(self) -> None:
        assert self.fence is not None
        self.fence.lift()
        self.fence = None
        self.untried = True

    def passed_by(self) -> int:
        """How often the oldest ticket has been passed."""
        oldest = self.order[0][0]
        if oldest != self._oldest:
            self._oldest, self._passed = oldest, 0
        return self._passed

    def _is_due(self) -> bool:
        """Whether the oldest ticket must get a reservation before any other ticket is served."""
        return self.fence is None and bool(self.order) and self.passed_by() >= self.patience

    def _serve(self, touched: list[ResourceUnit] | None) -> list[Happening]:
        """Grants whatever fits, oldest first. Resources have become free on the `touched` machines, or anywhere if
        None."""
        told: list[Happening] = []
        if self.fence is not None:
            self._complete(touched, told)
        if self.untried:
            touched, self.untried = None, False
        at, is_due = 0, self._is_due()
        while at < len(self.order):
            line = self.order[at][2]
            if is_due and at:
                at = 0
                continue
            shares = None
            if touched is None or is_due or line.could_use(touched):
                ticket, shares = self._try(line, None if is_due else touched)
            if shares is not None:
                if ticket.number != self.order[0][0]:
                    self.passed_by()
                    self._passed += 1
                self._leave(ticket, TicketState.GRANTED)
                self._hold(ticket, shares)
                told.append(TicketGranted(ticket.number, ticket.run))
                is_due = self._is_due()
                if self.untried:  # it had a reservation, whose units are free now
                    touched, self.untried, at = None, False, 0
                elif touched is not None and not _has_room(touched):
                    break  # no other ticket can use what became free
            elif at == 0 and self.fence is None and (is_due or not self.held):
                self._start_reservation(line, told)
                is_due = self._is_due()
            else:
                at += 1
        return told

    def _try(self, line: TicketQueue, touched: list[ResourceUnit] | None) -> tuple[Ticket, list[MachineShare] | None]:
        """Takes the resources of a ticket of the queue: its oldest, or one that prefers a touched machine."""
        ticket = line.first_preferring(self.forest, touched) if touched is not None else None
        ticket = ticket or line.head()
        return ticket, self._place(ticket)

    def _place(self, ticket: Ticket) -> list[MachineShare] | None:
        """Takes the resources of a ticket where it prefers them; preferences never prevent a grant."""
        line = ticket.line
        shares = place(self.forest, ticket.request, line.order)
        if shares is None and len(ticket.request) > 1 and ticket.request != line.request:
            shares = place(self.forest, line.request, line.order)
        return shares

    def _start_reservation(self, line: TicketQueue, told: list[Happening]) -> None:
        """Starts a reservation for the oldest ticket."""
        self.fence = self._claimed(line)
        self.fence.owner = line.head().number
        self._complete([], told)

    def _claimed(self, line: TicketQueue) -> Reservation:
        """A reservation for a queue; it will be complete at the latest when nothing is held any more."""
        claims = claim(self.forest, line.request, line.order)
        assert claims is not None, "a queued ticket that cannot be met"
        return Reservation(self.forest, claims)

    def _complete(self, touched: list[ResourceUnit] | None, told: list[Happening]) -> None:
        """Collects reserved units that have become free; grants the ticket if these were the last ones."""
        fence = self.fence
        assert fence is not None
        for root in [each.root for each in fence.claims] if touched is None else touched:
            fence.collect(root)
        if fence.is_complete():
            ticket = self.waiting[fence.owner]
            shares = fence.hand_over()
            self.fence = None
            self._leave(ticket, TicketState.GRANTED)
            self._hold(ticket, shares)
            told.append(TicketGranted(ticket.number, ticket.run))

    def _take_away(self, unit: ResourceUnit) -> list[Happening]:
        """Removes a unit from the tree, and from all grants that hold any part of it."""
        root = unit.root()
        there: list[tuple[Ticket, MachineShare]] = []
        for ticket in self.held.values():
            there += [(ticket, share) for share in ticket.shares if share.root is root]
        give_back(self.forest, [share for _, share in there])
        around = [each.number for each in unit.around()]
        path = unit.path()
        self.forest.cut(unit)
        told: list[Happening] = []
        for ticket, share in there:
            units = [each for holding in share.holdings for each in units_of(holding)]
            lost = [each.path() for each in units if each.gone]
            lost += [path for each in units if each.number in around]
            memory = sum(size for bank, size in share.memory if bank.gone)
            share.holdings = holdings_of([each for each in units if not each.gone])
            share.memory = [(bank, size) for bank, size in share.memory if not bank.gone]
            self._retake(share)
            if lost or memory:
                told.append(TicketLost(ticket.number, ticket.run, tuple(lost), memory))
            if not share.holdings and not share.memory:
                ticket.shares.remove(share)
        return told

    def _retake(self, share: MachineShare) -> None:
        """Takes again what is left of a share, exactly where it was."""
        for holding in share.holdings:
            self.forest.take(*holding)
        if share.memory:
            self.forest.retake_memory(share.root, share.memory)

    def _recheck_feasibility(self) -> list[Happening]:
        """Checks the feasibility of all queues after a change of the machines; returns refused tickets."""
        told: list[Happening] = []
        self._version += 1
        impossible = [line for _, _, line in self.order if not self._is_possible(line)]
        possible = [line for line in self.hoping.values() if self._is_possible(line)]
        for line in impossible:
            told += self._give_up(line)
        for line in possible:
            del self.hoping[line.number]
            insort(self.order, (line.head().number, line.number, line))
        return told

    def _give_up(self, line: TicketQueue) -> list[Happening]:
        """Handles a queue that can no longer be met: its tickets wait for new machines, or end."""
        if self.may_grow:
            del self.order[bisect_left(self.order, (line.head().number,))]
            self.hoping[line.number] = line
            return []
        told: list[Happening] = []
        why = why_never(self.forest, line.request)
        for ticket in line.waiting():
            self._leave(ticket, TicketState.REFUSED)
            told.append(TicketRefused(ticket.number, ticket.run, why))
        return told


def _has_room(roots: Iterable[ResourceUnit]) -> bool:
    """Whether anything is free on one of these machines."""
    for root in roots:
        if not root.held and (root.is_ready() or any(root.free.values())):
            return True
    return False
