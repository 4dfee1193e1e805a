"""Which transitions are worth a look, and in which order: highest priority first, then in turn or by seeded choice.

In turn means that a transition that has fired goes to the end of its queue, so none of equal priority starves. With a
seed the choice is random among those of equal priority, and the same for the same seed.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from shoal.flow.net.firing import Firing

_MASK = (1 << 64) - 1


class Dice:
    """A seeded source of choices whose whole state is one number (splitmix64)."""

    __slots__ = ("state",)

    def __init__(self, state: int) -> None:
        self.state = state & _MASK

    def below(self, limit: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self.state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % limit


class Agenda:
    """Transitions to look at; each stands in it once at most."""

    __slots__ = ("_active", "_dice", "_queues", "_ranks", "looks")

    def __init__(self, ranks: int, dice: Dice | None) -> None:
        self._queues: list[deque[Firing]] = [deque() for _ in range(ranks)]
        self._ranks: list[int] = []
        """A heap of the ranks whose queues are not empty, or were not when last looked at."""
        self._active = bytearray(ranks)
        self._dice = dice
        self.looks = 0

    def __bool__(self) -> bool:
        return any(self._queues[rank] for rank in self._ranks)

    def append(self, firing: Firing) -> None:
        """Put a transition at the end of its queue; the caller knows that it stands in none."""
        rank = firing.rank
        if not self._active[rank]:
            self._active[rank] = 1
            heappush(self._ranks, rank)
        self._queues[rank].append(firing)

    def pick(self) -> Firing | None:
        """Take out the transition to look at now; it counts as queued until the caller says otherwise."""
        ranks = self._ranks
        while ranks:
            queue = self._queues[ranks[0]]
            if queue:
                self.looks += 1
                if self._dice is not None and len(queue) > 1:
                    at = self._dice.below(len(queue))
                    queue[0], queue[at] = queue[at], queue[0]
                return queue.popleft()
            self._active[heappop(ranks)] = 0
        return None

    def names(self) -> list[str]:
        """In the order of ranks, then of the queues."""
        return [firing.spec.name for rank in sorted(self._ranks) for firing in self._queues[rank]]
