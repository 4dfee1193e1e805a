"""Two queues that look like one to a broker: Local, for tasks whose data is here, and Shared, which thieves may empty.

The broker takes from Local first. Which tasks are Local is decided when they arrive (`local` names them); a task that
is tried again is Shared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import nsmallest

from shoal.core.policies.order import LaneQueue, OrderQueue


class TwoLevelQueue:
    """The Queue of a broker among others."""

    def __init__(self, make: Callable[[], OrderQueue], weight: Sequence[int]) -> None:
        """`weight` is the bytes each task reads, or empty."""
        self._make = make
        self._weight = weight
        self.shared = make()
        self.own: OrderQueue = self.shared
        """The Local queue; until the first local task there is none, and this is the Shared one."""
        self.local: dict[int, None] = {}
        self.newest_first, self.learns = self.shared.newest_first, self.shared.learns
        assert isinstance(self.shared, LaneQueue)
        self.shared_tasks = self.shared.live

    def __len__(self) -> int:
        return len(self.shared) + len(self.local)

    def __bool__(self) -> bool:
        return bool(self.local or self.shared_tasks)

    def make_local(self, task: int) -> None:
        """The task is going to be pushed, and belongs to the Local queue."""
        if self.own is self.shared:
            self.own = self._make()
        self.local[task] = None

    def push(self, task: int) -> None:
        (self.own if task in self.local else self.shared).push(task)

    def pop(self, lanes: Sequence[int]) -> int:
        if not self.local:
            return self.shared.pop(lanes)
        here = [lane for lane in lanes if self.own.queued_in(lane)]
        if here:
            task = self.own.pop(here)
            del self.local[task]
            return task
        return self.shared.pop(lanes)

    def remove(self, task: int) -> None:
        if task in self.local:
            del self.local[task]
            self.own.remove(task)
        else:
            self.shared.remove(task)

    def waiting(self) -> list[int]:
        return [*self.own.waiting(), *self.shared.waiting()] if self.own is not self.shared else self.shared.waiting()

    def lanes(self) -> Iterable[int]:
        if not self.local:
            return self.shared.lanes()
        return dict.fromkeys((*self.own.lanes(), *self.shared.lanes()))

    def queued_in(self, lane: int) -> int:
        both = self.shared.queued_in(lane)
        return both + self.own.queued_in(lane) if self.local else both

    def peek(self, count: int) -> list[int]:
        if not self.local:
            return self.shared.peek(count)
        found = self.own.peek(count)
        return found + self.shared.peek(count - len(found)) if len(found) < count else found

    def learn(self, task: int, duration: float) -> None:
        self.shared.learn(task, duration)
        if self.own is not self.shared:
            self.own.learn(task, duration)

    def serve(self, cores: int) -> None:
        self.shared.serve(cores)
        self.own.serve(cores)

    def claim(self, tasks: Sequence[int]) -> None:
        """These Shared tasks come next, in this order: they are Local from now on."""
        for task in reversed(tasks) if self.newest_first else tasks:
            self.shared.remove(task)
            self.make_local(task)
            self.own.push(task)

    def release(self, count: int) -> None:
        """Lets go of Local tasks: of those with the least data, the oldest."""
        for task in self.lightest(self.own, count) if self.local else ():
            self.own.remove(task)
            del self.local[task]
            self.shared.push(task)

    def lightest(self, queue: OrderQueue, count: int, without: Collection[int] = ()) -> list[int]:
        """The tasks that cost the least to move, the oldest among equals: the owner serves the others himself.

        Those of the lanes in `without` stay.
        """
        assert isinstance(queue, LaneQueue)
        if count >= len(queue) and not without:
            return list(queue.live)
        lane_of = queue.columns.lane
        live = [task for task in queue.live if lane_of[task] not in without] if without else queue.live
        if self._weight:
            return nsmallest(count, live, key=self._weight.__getitem__)
        found = []
        for task in live:
            found.append(task)
            if len(found) == count:
                break
        return found
