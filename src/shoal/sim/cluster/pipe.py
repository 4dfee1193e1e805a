"""A pipe: something with a rate that all who use it at the same time share evenly (a link, a disk, a file system).

Exact and cheap: in the pipe's own measure, bytes that each flow has got so far, a flow's end does not change when
others come and go. So flows sit in a heap by that, and only the next end in real time has to be found anew.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Pipe(Generic[Item]):
    """Flows of bytes, and what each of them is for."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.version = 0
        """Changes whenever the next end does."""
        self._flows: list[tuple[float, int, Item]] = []
        self._given = 0.0
        """Bytes that a flow would have got that has been there from the beginning."""
        self._since = 0.0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._flows)

    def _advance(self, now: float) -> None:
        if self._flows:
            self._given += (now - self._since) * self.rate / len(self._flows)
        self._since = now

    def add(self, now: float, amount: float, item: Item) -> None:
        self._advance(now)
        self._serial += 1
        heappush(self._flows, (self._given + amount, self._serial, item))
        self.version += 1

    def next_end(self) -> float:
        """When the first of the flows will be through, if nobody else comes."""
        if not self._flows:
            return inf
        return self._since + max(0.0, self._flows[0][0] - self._given) * len(self._flows) / self.rate

    def take(self, now: float) -> Item:
        """The flow whose end has come."""
        self._advance(now)
        through, _, item = heappop(self._flows)
        self._given = max(self._given, through)
        if not self._flows:
            self._given = 0.0  # so that it stays exact
        self.version += 1
        return item

    def drop(self, now: float, items: set[int]) -> None:
        """Flows whose item's `id` is named are no longer there."""
        self._advance(now)
        self._flows = sorted(flow for flow in self._flows if id(flow[2]) not in items)
        self.version += 1

    def set_rate(self, now: float, rate: float) -> None:
        self._advance(now)
        self.rate = rate
        self.version += 1
