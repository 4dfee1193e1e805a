"""Virtual time: a heap of (time, serial, item). The serial makes equal times come out in the order they went in."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Agenda(Generic[Item]):
    """What is going to happen; `now` is the time of what was taken last and never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, item: Item) -> None:
        """Puts an item on the agenda; a time that has passed means at once."""
        self._serial += 1
        heappush(self._heap, (max(when, self.now), self._serial, item))

    def after(self, delay: float, item: Item) -> None:
        self.at(self.now + delay, item)

    def next(self) -> Item:
        """Takes the earliest item and moves the clock to its time."""
        self.now, _, item = heappop(self._heap)
        return item

    def due_now(self) -> Item | None:
        """The next item if its time is `now`, left where it is."""
        if self._heap and self._heap[0][0] == self.now:
            return self._heap[0][2]
        return None

    def items(self) -> list[Item]:
        """All that is to come, in no order."""
        return [item for _, _, item in self._heap]
