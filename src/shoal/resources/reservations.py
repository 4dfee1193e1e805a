"""Where a request could be if nobody held anything: whether it can ever be met, and what to keep for it.

A claim names concrete units. They may be held by others now; machines and groups where most is free come first, because
those are complete soonest. The same search answers whether a request is possible at all, so whatever is let into the
queue can be given a claim, and whoever has a claim is served when its present holders have gone.

The search is greedy, hardest requirement first. Whether a request is possible is found out with small machines and
groups first, then with large ones first, whatever is free at the moment. What would fit on irregular machines only by a
cleverer packing than both is taken for impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from shoal.resources.best_fit import MachineShare, allowed_by
from shoal.resources.requests import ANYWHERE, Choice, Requirement
from shoal.resources.tree import Memory, ResourceTree, ResourceUnit, holdings_of


class MachineClaim:
    """What one requirement is to have on one machine."""

    __slots__ = ("choice", "memory", "requirement", "root", "units")

    def __init__(
        self, requirement: int, choice: int, root: ResourceUnit, units: list[ResourceUnit], memory: int
    ) -> None:
        self.requirement, self.choice, self.root = requirement, choice, root
        self.units, self.memory = units, memory


class SearchOrder(Enum):
    """Which machines, and groups in them, a search looks at first."""

    SOONEST = "what is free"
    SMALLEST = "small"
    LARGEST = "large"


_ALWAYS_SAME = (SearchOrder.SMALLEST, SearchOrder.LARGEST)


class _Search:
    """What has been claimed so far."""

    def __init__(self, forest: ResourceTree, way: SearchOrder) -> None:
        self.forest = forest
        self.way = way
        self.taken: set[int] = set()
        self.around: dict[int, int] = {}
        """How many claimed units are in each."""
        self.memory: dict[int, int] = {}
        """Bytes claimed on each machine."""

    def machines(self, allowed: int) -> Iterator[ResourceUnit]:
        """These machines, in the order of the search."""
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
        """Claims up to so many units in one; `found` gets them."""
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
        """Claims a choice on one machine; None, and nothing is claimed, if it is not there."""
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
    """Units for a whole request, none of them twice; there are some if it `is_possible`."""
    return _search(forest, request, order, (SearchOrder.SOONEST, *_ALWAYS_SAME))


def is_possible(forest: ResourceTree, request: Sequence[Requirement], order: Sequence[int]) -> bool:
    """Whether a request could be met if nobody held anything; does not depend on who holds what."""
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
    """The requirements, hardest first: those of few machines, then those of large units."""
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
    """Machines in the order of what is free on them, counted in the most numerous class."""
    finest = max(forest.levels, key=lambda kind: forest.top.total[kind], default=None)
    if finest is not None:
        for mask in forest.levels[finest].downward():
            yield from forest.roots(mask & allowed)
            allowed &= ~mask
    yield from forest.roots(allowed)


class Reservation:
    """Pieces of a claim that are held until it is complete."""

    def __init__(self, forest: ResourceTree, claims: list[MachineClaim]) -> None:
        self.owner = 0
        """The ticket it is for."""
        self.claims = claims
        self.held: dict[int, ResourceUnit] = {}
        """Pieces by number: claimed units, or parts of them."""
        self.memory: list[tuple[ResourceUnit, Memory]] = []
        """By machine."""
        self._forest = forest
        self._targets: dict[int, list[ResourceUnit]] = {}
        """Claimed units that are not complete, by machine."""
        self._missing: dict[int, int] = {}
        """Bytes that are still to come, by machine."""
        for each in claims:
            self._targets.setdefault(each.root.number, []).extend(each.units)
            if each.memory:
                self._missing[each.root.number] = self._missing.get(each.root.number, 0) + each.memory
        for each in claims:
            self.collect(each.root)

    def collect(self, root: ResourceUnit) -> None:
        """Takes what has become free on a machine and is claimed."""
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
        """Takes a unit, or what is free in it; whether all of it is held."""
        if unit.number in self.held:
            return True
        if unit.is_ready():
            self._hold(unit)
            return True
        if unit.held or not unit.parts:
            return False
        parts = [part for part in unit.parts if not part.gone]
        gathered = [self._gather(part) for part in parts]  # all of them, whatever the first ones say
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
        """Gives everything back."""
        for unit in list(self.held.values()):
            self._let_go(unit)
        for root, taken in self.memory:
            self._forest.give_memory(root, [taken])
        self.memory.clear()

    def hand_over(self) -> list[MachineShare]:
        """The shares of the owner, once everything is there."""
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
