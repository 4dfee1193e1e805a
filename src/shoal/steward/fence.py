"""What is kept for the request that has waited longest: concrete units, which nobody else gets as they become free.

The fence holds every piece of a claim that is free, and takes the others when their holders give them back: of a socket
first the idle cores, then each core that is released. It never takes anything outside its claim. When it has
everything, the request is granted just that. So it waits for those who held parts of the claim when it was made, and
for nobody else.
"""

from __future__ import annotations

from shoal.steward.claiming import Claim
from shoal.steward.forest import Forest, Memory, holdings_of
from shoal.steward.placing import Share
from shoal.steward.unit import Unit


class Fence:
    """Pieces of a claim that are held until it is complete."""

    def __init__(self, forest: Forest, claims: list[Claim]) -> None:
        self.owner = 0
        """The ticket it is for."""
        self.claims = claims
        self.held: dict[int, Unit] = {}
        """Pieces by number: claimed units, or parts of them."""
        self.memory: list[tuple[Unit, Memory]] = []
        """By machine."""
        self._forest = forest
        self._targets: dict[int, list[Unit]] = {}
        """Claimed units that are not complete, by machine."""
        self._missing: dict[int, int] = {}
        """Bytes that are still to come, by machine."""
        for each in claims:
            self._targets.setdefault(each.root.number, []).extend(each.units)
            if each.memory:
                self._missing[each.root.number] = self._missing.get(each.root.number, 0) + each.memory
        for each in claims:
            self.collect(each.root)

    def stands_on(self, root: Unit) -> bool:
        return any(each.root is root for each in self.claims)

    def collect(self, root: Unit) -> None:
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

    def _gather(self, unit: Unit) -> bool:
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

    def _hold(self, unit: Unit) -> None:
        assert unit.parent is not None
        self._forest.take(unit.parent, unit.kind, unit.bit)
        self.held[unit.number] = unit

    def _let_go(self, unit: Unit) -> None:
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

    def hand_over(self) -> list[Share]:
        """The shares of the owner, once everything is there."""
        assert self.is_complete()
        self.lift()
        shares = []
        for each in self.claims:
            holdings = holdings_of(each.units)
            for holding in holdings:
                self._forest.take(*holding)
            memory = self._forest.take_memory(each.root, each.memory, each.units[0]) if each.memory else []
            shares.append(Share(each.requirement, each.choice, each.root, holdings, memory))
        return shares
