"""Admission control: the resource contract of one node, which is never overcommitted, and the caps of the throttle.

Every distinct resource request is a *lane*, so the fit is checked per lane and not per task. Sizes are decided before
tasks come here; whatever the sizer decides, `take` has the last word.

Lanes may share a cap: each task takes one of its places, like a resource. But a cap may fall to 0 and rise again, so it
never makes a lane hopeless. `shoal.core.policies.throttle` sets the caps.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.resources import FRACTION, Resources

UNLIMITED = 1 << 40
"""Number of places under a cap without a limit."""


class Contract:
    """Total and free resources of one node, and the request of each lane."""

    def __init__(self, node: Resources, requests: Sequence[Resources] = (), caps: Sequence[str] = ()) -> None:
        """`caps` names the cap of each lane; an empty name means no cap."""
        names = {name for request in (node, *requests) for name in request.names()}
        self.names = sorted(names)
        self.total = list(node.vector(self.names))
        self.free = list(self.total)
        self.needs: list[list[tuple[int, int]]] = []
        """Per lane: pairs of resource index and amount, without zeros. A list is replaced, never modified."""
        self.hopeless: dict[int, None] = {}
        """Lanes that do not fit on the node even when nothing else runs there (a dictionary used as an ordered set)."""
        self.caps: dict[str, int] = {}
        """Resource index of each cap: caps are entries of the resource vector."""
        self._cap_of: list[int] = []
        """Per lane: index of its cap, -1 if it has none."""
        for lane, request in enumerate(requests):
            self.add_lane(request, caps[lane] if caps else "")

    def whole_cores(self) -> int:
        """Whole cores of the node, at least 1."""
        return max(1, self.total[self.names.index("cores")] // FRACTION)

    def add_lane(self, request: Resources, cap: str = "") -> int:
        """Adds a lane for a request and returns its number. The node has an amount of 0 of unknown resources."""
        for name in request.names():
            if name not in self.names:
                self.names.append(name)
                self.total.append(0)
                self.free.append(0)
        if cap and cap not in self.caps:
            self.caps[cap] = len(self.names)
            self.names.append(f"places of {cap}")
            self.total.append(UNLIMITED)
            self.free.append(UNLIMITED)
        self._cap_of.append(self.caps[cap] if cap else -1)
        lane = len(self.needs)
        self.needs.append(self._needs_of(lane, request))
        if not self.could_fit(lane):
            self.hopeless[lane] = None
        return lane

    def _needs_of(self, lane: int, request: Resources) -> list[tuple[int, int]]:
        needs = [(at, amount) for at, amount in enumerate(request.vector(self.names)) if amount]
        return [(self._cap_of[lane], 1), *needs] if self._cap_of[lane] >= 0 else needs

    def set_cap(self, name: str, count: int | None) -> None:
        """Sets the number of places under a cap. Running tasks continue, so `free` may become negative."""
        at = self.caps.get(name)
        if at is not None:
            count = UNLIMITED if count is None else count
            self.free[at] += count - self.total[at]
            self.total[at] = count

    def cap_of(self, lane: int) -> tuple[int, int] | None:
        """Total and free places under the lane's cap; None if it has no limit."""
        at = self._cap_of[lane]
        return None if at < 0 or self.total[at] >= UNLIMITED else (self.total[at], self.free[at])

    def is_held_back(self, lane: int) -> bool:
        """Whether no place is left under the lane's cap, whatever else is free."""
        at = self._cap_of[lane]
        return at >= 0 and self.free[at] < 1

    def is_over_cap(self, lane: int) -> bool:
        """Whether more tasks run under the lane's cap than it allows since it was lowered."""
        at = self._cap_of[lane]
        return at >= 0 and self.free[at] < 0

    def fits(self, lane: int) -> bool:
        free = self.free
        for at, amount in self.needs[lane]:
            if free[at] < amount:
                return False
        return True

    def change_lane(self, lane: int, request: Resources) -> None:
        """Changes the request of a lane. Running tasks keep, and later return, what they took."""
        self.needs[lane] = self._needs_of(lane, request)
        if self.could_fit(lane):
            self.hopeless.pop(lane, None)
        else:
            self.hopeless[lane] = None

    def could_fit(self, lane: int) -> bool:
        """Whether the request of the lane fits on the node when nothing else runs there."""
        cap = self._cap_of[lane]
        return all(self.total[at] >= amount for at, amount in self.needs[lane] if at != cap)

    def leaves_room(self, lane: int, other: int) -> bool:
        """Whether a start from `lane` would not delay a start from `other`."""
        free = self.free
        asked = dict(self.needs[other])
        return all(at not in asked or free[at] - amount >= asked[at] for at, amount in self.needs[lane])

    def places(self, lane: int) -> int:
        """How many tasks of a lane fit on the empty node."""
        return min((self.total[at] // amount for at, amount in self.needs[lane]), default=1)

    def admits(self, lane: int) -> int | None:
        """How many tasks of a lane fit on the empty node, without its cap; None if nothing limits."""
        cap = self._cap_of[lane]
        return min((self.total[at] // amount for at, amount in self.needs[lane] if at != cap), default=None)

    def room(self, lane: int) -> int:
        """How many tasks of a lane could start now."""
        return max(0, min((self.free[at] // amount for at, amount in self.needs[lane]), default=1))

    def take(self, lane: int) -> list[tuple[int, int]]:
        """Allocates the request of the lane; returns what was taken, because the request may change while the task
        runs."""
        free, taken = self.free, self.needs[lane]
        for at, amount in taken:
            assert free[at] >= amount, f"{self.names[at]} oversubscribed"
            free[at] -= amount
        return taken

    def take_if_it_fits(self, lane: int) -> list[tuple[int, int]] | None:
        """`fits` and `take` in one call, because this runs for every task; None if the lane does not fit."""
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
        """Whether more of a resource is allocated than the node has."""
        return self.free[self.names.index(name)] < 0

    def raise_to(self, taken: list[tuple[int, int]], name: str, amount: int) -> list[tuple[int, int]]:
        """Raises the allocation of a running task to its real use of a resource, even if none is left."""
        at = self.names.index(name)
        held = dict(taken).get(at, 0)
        self.free[at] -= amount - held
        return [pair for pair in taken if pair[0] != at] + [(at, amount)]

    def resize(self, node: Resources) -> None:
        """Changes the capacity of the node; running tasks keep their resources, so `free` may be negative for a
        while."""
        for name in node.names():
            if name not in self.names:
                self.names.append(name)
                self.total.append(0)
                self.free.append(0)
        total = list(node.vector(self.names))
        for at in self.caps.values():
            total[at] = self.total[at]
        self.free = [free + new - old for free, new, old in zip(self.free, total, self.total, strict=True)]
        self.total = total
        self.hopeless = dict.fromkeys(lane for lane in range(len(self.needs)) if not self.could_fit(lane))
