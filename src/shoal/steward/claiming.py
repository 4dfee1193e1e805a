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

from shoal.steward.asking import ANYWHERE, Choice, Requirement
from shoal.steward.forest import Forest
from shoal.steward.placing import allowed_by
from shoal.steward.unit import Unit


class Claim:
    """What one requirement is to have on one machine."""

    __slots__ = ("choice", "memory", "requirement", "root", "units")

    def __init__(self, requirement: int, choice: int, root: Unit, units: list[Unit], memory: int) -> None:
        self.requirement, self.choice, self.root = requirement, choice, root
        self.units, self.memory = units, memory


class Way(Enum):
    """Which machines, and groups in them, a search looks at first."""

    SOONEST = "what is free"
    SMALLEST = "small"
    LARGEST = "large"


_ALWAYS_SAME = (Way.SMALLEST, Way.LARGEST)


class _Search:
    """What has been claimed so far."""

    def __init__(self, forest: Forest, way: Way) -> None:
        self.forest = forest
        self.way = way
        self.taken: set[int] = set()
        self.around: dict[int, int] = {}
        """How many claimed units are in each."""
        self.memory: dict[int, int] = {}
        """Bytes claimed on each machine."""

    def machines(self, allowed: int) -> Iterator[Unit]:
        """These machines, in the order of the search."""
        if self.way is Way.SOONEST:
            return _emptiest_first(self.forest, allowed)
        return iter(sorted(self.forest.roots(allowed), key=lambda root: self._rank(root, "")))

    def mark(self, unit: Unit) -> None:
        self.taken.add(unit.number)
        for above in unit.around():
            self.around[above.number] = self.around.get(above.number, 0) + 1

    def unmark(self, unit: Unit) -> None:
        self.taken.discard(unit.number)
        for above in unit.around():
            self.around[above.number] -= 1

    def find(self, unit: Unit, kind: str, count: int, found: list[Unit]) -> None:
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

    def _rank(self, part: Unit, kind: str) -> tuple[int, int]:
        if self.way is not Way.SOONEST:
            size = sum(part.total.values())
            return (size if self.way is Way.SMALLEST else -size), 0
        if part.kind == kind:
            return 0 if part.is_ready() else 1, part.busy
        return (1 if part.held else 0), -part.free.get(kind, 0)

    def machine(self, root: Unit, choice: Choice) -> list[Unit] | None:
        """Claims a choice on one machine; None, and nothing is claimed, if it is not there."""
        if self.memory.get(root.number, 0) + choice.memory > self.forest.capacity[root.number]:
            return None
        found: list[Unit] = []
        for kind, count in sorted(choice.needs, key=lambda need: root.total.get(need[0], 0)):
            units: list[Unit] = []
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


def claim(forest: Forest, request: Sequence[Requirement], order: Sequence[int]) -> list[Claim] | None:
    """Units for a whole request, none of them twice; there are some if it `is_possible`."""
    return _search(forest, request, order, (Way.SOONEST, *_ALWAYS_SAME))


def is_possible(forest: Forest, request: Sequence[Requirement], order: Sequence[int]) -> bool:
    """Whether a request could be met if nobody held anything; does not depend on who holds what."""
    return _search(forest, request, order, _ALWAYS_SAME) is not None


def _search(
    forest: Forest, request: Sequence[Requirement], order: Sequence[int], ways: Sequence[Way]
) -> list[Claim] | None:
    for way in ways:
        search = _Search(forest, way)
        claims: list[Claim] = []
        for at in order:
            found = _claim_requirement(search, request[at], at)
            if found is None:
                break
            claims += found
        else:
            return sorted(claims, key=lambda each: each.requirement)
    return None


def order_of(forest: Forest, request: Sequence[Requirement]) -> list[int]:
    """The requirements, hardest first: those of few machines, then those of large units."""
    if len(request) == 1:
        return [0]

    def hardness(at: int) -> tuple[int, int, int]:
        kinds = request[at].choices[0].needs
        scarcest = min(forest.top.total.get(kind, 0) for kind, _ in kinds)
        return allowed_by(forest, request[at].only).bit_count(), scarcest, at

    return sorted(range(len(request)), key=hardness)


def _claim_requirement(search: _Search, wanted: Requirement, at: int) -> list[Claim] | None:
    allowed = allowed_by(search.forest, wanted.only)
    for number, choice in enumerate(wanted.choices):
        found = _claim_choice(search, wanted.nodes, choice, allowed, at, number)
        if found is not None:
            return found
    return None


def _claim_choice(
    search: _Search, nodes: int, choice: Choice, allowed: int, at: int, number: int
) -> list[Claim] | None:
    if nodes == ANYWHERE:
        return _claim_anywhere(search, choice, allowed, at, number)
    claims: list[Claim] = []
    for root in search.machines(allowed):
        units = search.machine(root, choice)
        if units is not None:
            claims.append(Claim(at, number, root, units, choice.memory))
            if len(claims) == nodes:
                return claims
    for each in claims:
        search.memory[each.root.number] -= each.memory
        for unit in each.units:
            search.unmark(unit)
    return None


def _claim_anywhere(search: _Search, choice: Choice, allowed: int, at: int, number: int) -> list[Claim] | None:
    claims: list[Claim] = []
    for kind, count in choice.needs:
        left = count
        for root in search.machines(allowed):
            units: list[Unit] = []
            if kind == root.kind and not search.around.get(root.number) and root.number not in search.taken:
                search.mark(root)
                units.append(root)
            elif root.total.get(kind):
                search.find(root, kind, left, units)
            if units:
                claims.append(Claim(at, number, root, units, 0))
                left -= len(units)
                if not left:
                    break
        if left:
            for each in claims:
                for unit in each.units:
                    search.unmark(unit)
            return None
    return claims


def _emptiest_first(forest: Forest, allowed: int) -> Iterator[Unit]:
    """Machines in the order of what is free on them, counted in the most numerous class."""
    finest = max(forest.levels, key=lambda kind: forest.top.total[kind], default=None)
    if finest is not None:
        for mask in forest.levels[finest].downward():
            yield from forest.roots(mask & allowed)
            allowed &= ~mask
    yield from forest.roots(allowed)
