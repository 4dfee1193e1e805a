"""Random histories of the resource manager with an oracle, for tests: requests of runs, and machines that come and go.

Each seed gives one history. Every step is followed by a check of all invariants. A separate oracle records who has
which unit: it checks that a grant is what was requested, and that no unit is granted twice. At the end no more faults
occur and holders only release. Then every waiting request must be granted, or wait for new machines.
"""

from __future__ import annotations

import random

from shoal.errors import InputError
from shoal.resources.best_fit import place
from shoal.resources.machine import GPU, MachinePart, machine
from shoal.resources.manager import ResourceManager
from shoal.resources.requests import ANYWHERE, Kinds, Request, Requirement, Wanted, require
from shoal.resources.tickets import (
    Happening,
    Reservation,
    Ticket,
    TicketEnded,
    TicketGranted,
    TicketLost,
    TicketQueue,
    TicketRefused,
    TicketState,
    is_possible,
)
from shoal.resources.tree import ResourceTree, ResourceUnit, memory_level, units_of


def check_manager(manager: ResourceManager, *, judging: bool = True) -> None:
    """Raises AssertionError if an invariant is violated; with `judging`, also recomputes which requests are
    possible."""
    holders: dict[int, str] = {}
    memory: dict[int, int] = {}
    for ticket in manager.held.values():
        assert ticket.state is TicketState.GRANTED
        for share in ticket.shares:
            for holding in share.holdings:
                for unit in units_of(holding):
                    _note(holders, unit, f"ticket {ticket.number}")
            for bank, size in share.memory:
                assert not bank.gone and size > 0
                memory[bank.number] = memory.get(bank.number, 0) + size
    if manager.fence is not None:
        _check_fence(manager, manager.fence, holders, memory)
    _check_disjoint(manager.forest, holders)
    _check_counts(manager.forest, holders)
    _check_memory(manager.forest, memory)
    _check_lines(manager)
    if judging:
        for line in (*(entry[2] for entry in manager.order), *manager.hoping.values()):
            assert line.possible == is_possible(manager.forest, line.request, line.order)
    if judging and not manager.untried:
        # Only requests for one resource class: a new search for several classes may succeed because other units were
        # taken.
        for line in [line for _, _, line in manager.order if _is_plain(line)]:
            assert place(manager.forest, line.request, line.order) is None, f"{line.request} waits for what is free"


def _is_plain(line: TicketQueue) -> bool:
    return len(line.request) == 1 and all(len(choice.needs) == 1 for choice in line.request[0].choices)


def _note(holders: dict[int, str], unit: ResourceUnit, who: str) -> None:
    assert not unit.gone, f"{who} holds {unit.path()}, which is gone"
    assert unit.number not in holders, f"{unit.path()} is held by {holders[unit.number]} and {who}"
    holders[unit.number] = who


def _check_fence(manager: ResourceManager, fence: Reservation, holders: dict[int, str], memory: dict[int, int]) -> None:
    assert fence.owner in manager.waiting, "a reservation without an owner"
    assert not fence.is_complete(), "a complete reservation that was not granted"
    for unit in fence.held.values():
        _note(holders, unit, "the reservation")
    for _, (bank, size) in fence.memory:
        memory[bank.number] = memory.get(bank.number, 0) + size


def _check_disjoint(forest: ResourceTree, holders: dict[int, str]) -> None:
    for number, who in holders.items():
        for above in forest.units[number].around():
            assert above.number not in holders, f"{who} and {holders[above.number]} share {above.path()}"


def _check_counts(forest: ResourceTree, holders: dict[int, str]) -> None:
    """Recomputes usage counts, free units and levels from the leaves up."""
    in_all: dict[str, int] = {}
    for root in forest.roots():
        _busy, free, total = _count(root, holders)
        for kind, count in free.items():
            in_all[kind] = in_all.get(kind, 0) + count
        is_held = root.number in holders
        for kind in root.free:
            level = 0 if is_held else root.free[kind]
            assert forest.levels[kind].masks[level] & root.bit, f"{root.path()}: {kind} at a wrong level"
        assert {kind: count for kind, count in total.items() if count} == _some(root.total, root.kind)
    assert {kind: count for kind, count in forest.top.free.items() if count} == {k: c for k, c in in_all.items() if c}
    for levels in forest.levels.values():
        seen = 0
        for level, mask in levels.masks.items():
            assert not seen & mask, "a machine on two levels"
            seen |= mask
            assert bool(levels.occupied >> level & 1) == bool(mask)
        assert not seen & ~forest.everyone


def _some(counts: dict[str, int], kind: str) -> dict[str, int]:
    """Counts plus one of this class, without zeros."""
    found = {each: count for each, count in counts.items() if count}
    found[kind] = found.get(kind, 0) + 1
    return found


def _count(unit: ResourceUnit, holders: dict[int, str]) -> tuple[int, dict[str, int], dict[str, int]]:
    """Number of allocated units in and including this one, and by class the available and the existing units."""
    busy, inside, total = 0, dict[str, int](), dict[str, int]()
    for part in unit.parts:
        if part.gone:
            continue
        if not part.parts:  # a fast path for leaves, since this runs after every step
            kind = part.kind
            is_held = part.number in holders
            assert is_held is not (unit.ready[kind] & part.bit != 0), f"{part.path()} is wrong about being available"
            busy += is_held
            inside[kind] = inside.get(kind, 0) + 1 - is_held
            total[kind] = total.get(kind, 0) + 1
            continue
        more, free, there = _count(part, holders)
        busy += more
        for kind, count in free.items():
            inside[kind] = inside.get(kind, 0) + count
        for kind, count in there.items():
            total[kind] = total.get(kind, 0) + count
    assert unit.busy == busy >= 0, f"{unit.path()} counts {unit.busy} held units in it, there are {busy}"
    for kind, count in unit.free.items():
        assert count == inside.get(kind, 0), f"{unit.path()} miscounts {kind}"
    is_held = unit.number in holders
    if unit.parts:
        assert unit.held == is_held, f"{unit.path()} is wrong about being held"
    assert unit.is_ready() == (not is_held and not busy), f"{unit.path()} is wrong about being available"
    total[unit.kind] = total.get(unit.kind, 0) + 1
    if is_held:
        return busy + 1, {}, total
    if not busy:
        inside[unit.kind] = inside.get(unit.kind, 0) + 1
    return busy, inside, total


def _check_memory(forest: ResourceTree, taken: dict[int, int]) -> None:
    for root in forest.roots():
        banks = forest.banks[root.number]
        for bank in banks:
            assert bank.memory_free == bank.memory - taken.pop(bank.number, 0) >= 0, f"{bank.path()} miscounts memory"
        room = forest.room[root.number]
        assert room == sum(bank.memory_free for bank in banks)
        assert forest.capacity[root.number] == sum(bank.memory for bank in banks)
        assert forest.memory.masks[memory_level(room)] & root.bit
    assert not taken, "memory of an unknown bank is taken"


def _check_lines(manager: ResourceManager) -> None:
    assert [entry[:2] for entry in manager.order] == sorted(entry[:2] for entry in manager.order)
    assert not manager.order or manager.held, "tickets wait although nothing is allocated"
    if manager.order and manager.fence is None:
        assert manager.passed_by() <= manager.patience, "the limit of overtaking is exceeded without a reservation"
    sizes = 0
    for number, _, line in manager.order:
        assert line.possible and line.head().number == number
        assert line.size == len(line.waiting())
        sizes += line.size
    for line in manager.hoping.values():
        assert not line.possible and line.size == len(line.waiting()) > 0
        sizes += line.size
    assert sizes == len(manager.waiting)


_RUNS = ["a", "b", "c"]
_LABELS = ["site=x", "site=y"]


class ManagerHistory:
    """One resource manager and its clients and machines."""

    def __init__(self, seed: int, *, steps: int = 25) -> None:
        self.dice = random.Random(seed)
        self.steps = steps
        self.grants = 0
        self.refusals = 0
        self.losses = 0
        self._machines = 0
        parts = [self._machine() for _ in range(self.dice.randint(1, 3))]
        self.manager = ResourceManager(parts, patience=self.dice.randint(0, 4), may_grow=self.dice.random() < 0.3)
        self.tickets: dict[int, Ticket] = {}
        """All waiting and granted tickets, as the oracle knows them."""
        self._owner: dict[int, int] = {}
        """The ticket that has each leaf unit."""

    def play(self) -> ManagerHistory:
        """Runs the whole history; raises AssertionError at the first violation."""
        acts = [self._request, self._release, self._cancel, self._interrupt, self._add, self._remove, self._depart]
        for at, act in enumerate(self.dice.choices(acts, [50, 30, 5, 3, 3, 6, 2], k=self.steps)):
            act()
            check_manager(self.manager, judging=at % 8 == 0)
        self._release_all()
        return self

    def _machine(self) -> MachinePart:
        dice = self.dice
        self._machines += 1
        made = machine(
            f"m{self._machines}",
            sockets=dice.randint(1, 2),
            numas=dice.choice([0, 0, 1]),
            cores=dice.randint(1, 4),
            threads=dice.choice([0, 0, 2]),
            gpus=dice.choice([0, 0, 1, 2]),
            memory=dice.choice([0, 100, 1000]),
            labels=dice.sample(_LABELS, dice.randint(0, 1)),
        )
        if dice.random() < 0.1:  # an irregular machine: a board with its own GPU and socket
            board = MachinePart("board", "board0", (MachinePart(GPU, "gpu9", device="9"), *machine("", cores=2).parts))
            made = MachinePart(made.kind, made.name, (*made.parts, board), made.memory, made.labels)
        return made

    def _wanted(self) -> Request:
        """Draws a request, mostly one that the existing machines can satisfy."""
        return tuple(self._requirement() for _ in range(self.dice.choice([1, 1, 1, 1, 2, 3])))

    def _requirement(self) -> Requirement:
        dice, forest = self.dice, self.manager.forest
        there = [kind for kind, count in forest.top.total.items() if count]
        if not there or dice.random() < 0.03:
            there = ["board", "licence"]
        kinds = [dice.choice(["core", *there]) for _ in range(dice.choice([1, 1, 1, 2]))]
        together = dice.random() < 0.15 and len(there) > 1
        choices: list[Kinds] = [dict.fromkeys(dice.sample(there, 2), 1)] if together else [*kinds]
        few = together or "core" not in kinds
        nodes = dice.choice([1, 1, 1, 1, 2 if len(forest.machines) > 1 else 1, ANYWHERE])
        places: list[Wanted] = [*forest.machines, *forest.units, *_LABELS]
        has_memory = nodes != ANYWHERE and any(forest.capacity.values())
        return require(
            *choices,
            count=1 if few else dice.choice([1, 1, 2, 2, 3, 4]),
            memory=dice.choice([0, 0, 30, 90]) if has_memory else 0,
            nodes=nodes,
            prefer=dice.sample(places, 2) if dice.random() < 0.3 else (),
            only=dice.sample([*forest.labels, *forest.machines, "site=z"], 1) if dice.random() < 0.1 else (),
        )

    def _request(self) -> None:
        request = self._wanted()
        try:
            ticket = self.manager.request(self.dice.choice(_RUNS), request)
        except InputError as error:
            assert "can never be granted" in error.message
            self.refusals += 1
            return
        self.tickets[ticket.number] = ticket
        if ticket.state is TicketState.GRANTED:
            self._granted(ticket)

    def _release(self) -> None:
        if self.manager.held:
            number = self.dice.choice(list(self.manager.held))
            self._forget(number)
            self._handle(self.manager.release(number))

    def _cancel(self) -> None:
        if self.tickets:
            number = self.dice.choice(list(self.tickets))
            self._forget(number)
            self._handle(self.manager.cancel(number))

    def _interrupt(self) -> None:
        self._handle(self.manager.interrupt(self.dice.choice(_RUNS)))

    def _depart(self) -> None:
        run = self.dice.choice(_RUNS)
        for ticket in [each for each in self.tickets.values() if each.run == run and each.state is TicketState.GRANTED]:
            self._forget(ticket.number)
        self._handle(self.manager.depart(run))
        assert not any(each.run == run for each in self.tickets.values())

    def _add(self) -> None:
        self._handle(self.manager.add(self._machine()))

    def _remove(self) -> None:
        forest = self.manager.forest
        if not forest.units:
            return
        names: list[Wanted] = list(forest.machines) if self.dice.random() < 0.5 else list(forest.units)
        wanted = self.dice.sample(names, min(len(names), self.dice.randint(1, 2)))
        gone = [unit.number for each in wanted for unit in _leaves(forest.find(each))]
        losers = {self._owner.pop(number) for number in gone if number in self._owner}
        events = self.manager.remove(*wanted)
        assert {each.ticket for each in events if isinstance(each, TicketLost)} >= losers, "a loss was not reported"
        self._handle(events)

    def _release_all(self) -> None:
        """All holders release their units, oldest first, without new requests."""
        while self.manager.held:
            number = next(iter(self.manager.held))
            self._forget(number)
            self._handle(self.manager.release(number))
        check_manager(self.manager)
        assert not self.manager.order, "a request waits forever"
        assert self.manager.may_grow or not self.manager.waiting
        assert not self._owner

    def _handle(self, events: list[Happening]) -> None:
        for each in events:
            match each:
                case TicketGranted():
                    self._granted(self.tickets[each.ticket])
                case TicketRefused() | TicketEnded():
                    assert self.tickets.pop(each.ticket).state is not TicketState.GRANTED
                case TicketLost():
                    self.losses += 1

    def _forget(self, number: int) -> None:
        del self.tickets[number]
        self._owner = {unit: owner for unit, owner in self._owner.items() if owner != number}

    def _granted(self, ticket: Ticket) -> None:
        """Checks that the grant is what was requested, and that its units are not granted to others."""
        self.grants += 1
        grant = self.manager.grant(ticket.number)
        for at, wanted in enumerate(ticket.request):
            places = [place for place in grant.places if place.requirement == at]
            choice = wanted.choices[places[0].choice]
            assert all(place.choice == places[0].choice for place in places)
            if wanted.nodes == ANYWHERE:
                _check_needs([kind for place in places for kind in place.kinds], choice.needs)
            else:
                assert len({place.node for place in places}) == len(places) == wanted.nodes
                for place in places:
                    _check_needs(place.kinds, choice.needs)
                    assert place.memory == choice.memory
        for share in ticket.shares:
            for holding in share.holdings:
                for leaf in [leaf for unit in units_of(holding) for leaf in _leaves(unit)]:
                    assert leaf.number not in self._owner, f"{leaf.path()} is granted twice"
                    self._owner[leaf.number] = ticket.number


def _check_needs(kinds: list[str] | tuple[str, ...], needs: tuple[tuple[str, int], ...]) -> None:
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert tuple(sorted(counts.items())) == needs, f"requested {needs}, granted {counts}"


def _leaves(unit: ResourceUnit | None) -> list[ResourceUnit]:
    return [each for each in unit.walk() if not each.parts] if unit is not None else []
