"""Admission by contract: a node is never committed beyond what it has.

Every distinct request of the tasks is a *lane*, so a fit is looked up per lane and not per task. The sizer stands in
front of this class: whatever it decides, `take` has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.resources import Resources


class Contract:
    """What one node has, what is free, and what each lane takes from it."""

    def __init__(self, node: Resources, requests: Sequence[Resources] = ()) -> None:
        names = {name for request in (node, *requests) for name in request.names()}
        self.names = sorted(names)
        self.total = list(node.vector(self.names))
        self.free = list(self.total)
        self.needs: list[list[tuple[int, int]]] = []
        """Per lane: pairs of position and amount, zeros left out; a list is replaced, never changed."""
        self.hopeless: dict[int, None] = {}
        """Lanes that do not fit on the node even when nothing else runs there."""
        for request in requests:
            self.add_lane(request)

    def add_lane(self, request: Resources) -> int:
        """Makes a lane for a request and returns its number; names the node has never heard of have an amount of 0."""
        for name in request.names():
            if name not in self.names:
                self.names.append(name)
                self.total.append(0)
                self.free.append(0)
        self.needs.append([(at, amount) for at, amount in enumerate(request.vector(self.names)) if amount])
        lane = len(self.needs) - 1
        if not self.could_fit(lane):
            self.hopeless[lane] = None
        return lane

    def fits(self, lane: int) -> bool:
        free = self.free
        for at, amount in self.needs[lane]:
            if free[at] < amount:
                return False
        return True

    def change_lane(self, lane: int, request: Resources) -> None:
        """From now on tasks of the lane take this; what runs keeps, and gives back, what it took."""
        self.needs[lane] = [(at, amount) for at, amount in enumerate(request.vector(self.names)) if amount]
        if self.could_fit(lane):
            self.hopeless.pop(lane, None)
        else:
            self.hopeless[lane] = None

    def could_fit(self, lane: int) -> bool:
        """Whether the lane's request fits on the node when nothing else runs there."""
        return all(self.total[at] >= amount for at, amount in self.needs[lane])

    def leaves_room(self, lane: int, other: int) -> bool:
        """Whether a start from `lane` would leave `other` as near to its own start as it is now."""
        free = self.free
        asked = dict(self.needs[other])
        return all(at not in asked or free[at] - amount >= asked[at] for at, amount in self.needs[lane])

    def places(self, lane: int) -> int:
        """How many tasks of a lane the whole node holds at once."""
        return min((self.total[at] // amount for at, amount in self.needs[lane]), default=1)

    def take(self, lane: int) -> list[tuple[int, int]]:
        """Takes what a task of the lane needs, and says what that was: the lane's need may change while it runs."""
        free, taken = self.free, self.needs[lane]
        for at, amount in taken:
            assert free[at] >= amount, f"{self.names[at]} oversubscribed"
            free[at] -= amount
        return taken

    def take_if_it_fits(self, lane: int) -> list[tuple[int, int]] | None:
        """`fits` and `take` in one, because this is asked for every task; None if it does not fit."""
        free, needs = self.free, self.needs[lane]
        for at, amount in needs:
            if free[at] < amount:
                return None
        for at, amount in needs:
            free[at] -= amount
        return needs

    def give_back(self, taken: list[tuple[int, int]]) -> None:
        free = self.free
        for at, amount in taken:
            free[at] += amount

    def capacity(self, name: str) -> int:
        return self.total[self.names.index(name)]

    def is_overcommitted(self, name: str) -> bool:
        """Whether more of a resource is in use than the node has."""
        return self.free[self.names.index(name)] < 0

    def raise_to(self, taken: list[tuple[int, int]], name: str, amount: int) -> list[tuple[int, int]]:
        """What runs uses more of a resource than it took: it holds that from now on, even if none is left."""
        at = self.names.index(name)
        held = dict(taken).get(at, 0)
        self.free[at] -= amount - held
        return [pair for pair in taken if pair[0] != at] + [(at, amount)]

    def resize(self, node: Resources) -> None:
        """The node's capacity changed; what runs keeps what it has, so `free` may be negative for a while."""
        for name in node.names():
            if name not in self.names:
                self.names.append(name)
                self.total.append(0)
                self.free.append(0)
        total = list(node.vector(self.names))
        self.free = [free + new - old for free, new, old in zip(self.free, total, self.total, strict=True)]
        self.total = total
        self.hopeless = dict.fromkeys(lane for lane in range(len(self.needs)) if not self.could_fit(lane))
