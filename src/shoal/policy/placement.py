"""Placement: to which node a task goes that has just become ready (design §4.4).

Asked by the broker that completed the task's last parent. The answer is a node, into whose Local queue the task goes,
or `ANYWHERE`: it stays in the asking broker's Shared queue, and whoever is idle may take it. What counts is the sum of
a task's input bytes on each node, cached replicas included, never a single object.

`DataAware` is MATRIX's Algorithm 1 with a threshold: infinite balances load only (MLB), zero follows the data whatever
it costs (MDL), between them data decides if moving it would take long beside the task (RLDS, and FLDS with release).
`Candidates` is Pwrake's rule: any node with more than half of what the richest has.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol, TypeAlias

ANYWHERE = -1
SHORTEST_TASK = 0.001
"""Seconds. A task is never taken to be shorter: moving is compared with it."""
LONG_TRANSFER = 1.0
"""Seconds of transfer above which data counts as large while nothing is known of the task's length."""
Holdings: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of node and bytes of a task's inputs that are there; each node once, no zeros."""


class Placement(Protocol):
    """What a broker asks of a placement."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        """The node for a task of this expected length (None: not known yet), or `ANYWHERE`."""

    def moved(self, transfer: float, computing: float) -> None:
        """Seconds that finished tasks spent on fetching their inputs and on computing, so that it can adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """Bytes a second that come here over a link."""


class DataAware:
    """Follows the data if moving it would take longer than `threshold` times the task."""

    def __init__(self, threshold: float, bandwidth: float) -> None:
        """`bandwidth` in bytes per second."""
        self.threshold = threshold
        self.bandwidth = bandwidth

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        if not holdings or self.threshold == inf:
            return ANYWHERE
        if seconds is None:
            least = LONG_TRANSFER * self.bandwidth if self.threshold else 0.0
        else:
            least = self.threshold * max(seconds, SHORTEST_TASK) * self.bandwidth
        total = sum([amount for _, amount in holdings])
        if total <= least:
            return ANYWHERE
        node, most = richest(here, holdings)
        return node if most > least else ANYWHERE

    def moved(self, transfer: float, computing: float) -> None:
        """A fixed threshold does not adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth


class Adaptive(DataAware):
    """A threshold that moves at run time: down, towards the data, while much time goes into moving it; else up."""

    MUCH, LITTLE = 0.2, 0.02
    """Shares of the time that tasks spend on fetching."""
    LOWEST, HIGHEST = 1 / 64, 64.0
    PERIOD = 32
    """Finished tasks between two changes, so that a change shows before the next."""

    def __init__(self, threshold: float, bandwidth: float) -> None:
        super().__init__(threshold, bandwidth)
        self._transfer = self._computing = 0.0
        self._count = 0

    def moved(self, transfer: float, computing: float) -> None:
        self._transfer += transfer
        self._computing += computing
        self._count += 1
        if self._count < self.PERIOD:
            return
        spent = self._transfer + self._computing
        share = self._transfer / spent if spent else 0.0
        if share > self.MUCH:
            self.threshold = max(self.LOWEST, self.threshold / 2)
        elif share < self.LITTLE:
            self.threshold = min(self.HIGHEST, self.threshold * 2)
        self._transfer = self._computing = 0.0
        self._count = 0


class Candidates:
    """Pwrake's rule: this node if it has more than half of what the richest has, else the richest."""

    def choose(self, here: int, holdings: Holdings, seconds: float | None) -> int:
        if not holdings:
            return ANYWHERE
        node, most = richest(here, holdings)
        for candidate, amount in holdings:
            if candidate == here and 2 * amount > most:
                return here
        return node

    def moved(self, transfer: float, computing: float) -> None:
        """The rule does not adapt."""

    def set_bandwidth(self, bandwidth: float) -> None:
        """Only amounts are compared."""


def richest(here: int, holdings: Holdings) -> tuple[int, int]:
    """The node with the most bytes, and how many: this one among equals, else the one named first."""
    best, most = ANYWHERE, 0
    for node, amount in holdings:
        if amount > most or (amount == most and node == here):
            best, most = node, amount
    return best, most
