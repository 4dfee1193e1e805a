"""What the nodes of a cluster say runs on them, over time: a task of which nobody says that it began is in the ledger
only when it has ended, and a run of long tasks would look idle until then.

All nodes are added up, at moments that lie ever further apart the longer a run takes, so that it needs little memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.ledger.records import NodeTold
from shoal.model.resources import FRACTION

if TYPE_CHECKING:
    from shoal.view.columns import Floats

MOST_MOMENTS = 2048
_APART = 0.5
_LITTLE = 0.05
"""Up to this part of what there is, what nodes say and what has ended may differ: they speak only now and then."""


class Underway:
    """Tasks that run and cores that they hold, as all nodes said."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, float]] = {}
        self._running, self._cores = 0, 0.0
        self._moments: list[tuple[float, int, float]] = []
        self._apart = _APART

    def take(self, told: NodeTold) -> None:
        """A node has said how it stands."""
        if told.running is not None:
            self._note(told.time, told.node, (told.running, told.cores / FRACTION))

    def leave(self, time: float, node: int) -> None:
        """A node is gone, and what ran there with it."""
        self._note(time, node, (0, 0.0))

    def _note(self, time: float, node: int, stands: tuple[int, float]) -> None:
        before = self._said.get(node, (0, 0.0))
        self._said[node] = stands
        self._running += stands[0] - before[0]
        self._cores += stands[1] - before[1]
        if self._moments and time < self._moments[-1][0] + self._apart:
            self._moments[-1] = (self._moments[-1][0], self._running, self._cores)
            return
        self._moments.append((time, self._running, self._cores))
        if len(self._moments) > MOST_MOMENTS:
            self._moments, self._apart = self._moments[::2], 2 * self._apart

    def core_seconds(self, until: float) -> float:
        """Held up to a moment of the clock."""
        ends = [moment for moment, _, _ in self._moments[1:]] + [until]
        return sum(cores * max(0.0, end - began) for (began, _, cores), end in zip(self._moments, ends, strict=False))

    def over(self, edges: Floats, origin: float, until: float) -> tuple[Floats, Floats]:
        """Tasks that ran and cores that were held, on average in each bucket up to a moment of the clock."""
        import numpy as np  # seldom needed by those who only add up

        from shoal.view.spread import total_over

        begins = np.array([moment for moment, _, _ in self._moments]) - origin
        ends = np.append(begins[1:], max(until - origin, begins[-1] if len(begins) else 0.0))[: len(begins)]
        running, cores = (np.array([moment[at] for moment in self._moments], np.float64) for at in (1, 2))
        return total_over(begins, ends, running, edges), total_over(begins, ends, cores, edges)


def not_told(said: Floats, known: Floats, there: Floats) -> Floats:
    """What is missing of what nodes said in the last buckets: further back everything has ended and is known."""
    import numpy as np

    missing = said - known
    enough = missing <= _LITTLE * np.maximum(there, 1.0)
    enough[-1:] = False  # what began a moment ago
    settled = np.flatnonzero(enough)
    found: Floats = np.maximum(0.0, missing)
    found[: settled[-1] + 1 if len(settled) else 0] = 0.0
    return found
