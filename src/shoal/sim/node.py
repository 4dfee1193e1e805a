"""The virtual node of a simulation: runs batches of tasks in slots, does its own resource accounting, and keeps the
event queue.

The accounting uses the requests in the graph and not the scheduler's state: a start that does not fit raises
`Violation`. The node injects no faults itself; `OutcomeSampler` and the driver decide on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from heapq import heappop, heappush
from typing import Generic, TypeVar

import msgspec

from shoal.core.graph import Graph
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import NOTHING, SIZED, Amounts
from shoal.core.resources import Resources
from shoal.core.scheduler_messages import Start, TaskGrew, TaskResult
from shoal.sim.scenario import OutcomeSampler, PlannedOutcome


class Violation(AssertionError):  # noqa: N818  reads better without the suffix
    """A simulation check failed: a bug in Shoal."""


class SimulatedBundle(msgspec.Struct, eq=False):
    """A batch of tasks in a slot: the first one runs, the others wait."""

    number: int
    request: Resources
    tasks: list[tuple[int, int]]
    """(task, attempt) pairs, the running one first."""
    planned: PlannedOutcome
    started: float
    sizes: Amounts = NOTHING
    """Expected use of each resource in `SIZED` per task; 0 where unknown."""
    turn: int = 0
    """Incremented whenever the planned end changes, so that the end event of a killed attempt is ignored."""


class VirtualNode:
    """Occupied slots of a node, and the resources that they use."""

    def __init__(
        self,
        graph: Graph,
        capacity: Resources,
        durations: list[float],
        outcomes: OutcomeSampler,
        peaks: Sequence[Amounts] = (),
    ) -> None:
        """`peaks`: the real use of each resource in `SIZED`, by task; empty: not simulated."""
        self.graph = graph
        self.capacity = capacity
        self.durations = durations
        self.outcomes = outcomes
        self.peaks = peaks
        self.places: dict[int, SimulatedBundle] = {}
        self.taken: dict[str, int] = {}
        self.place_of: dict[int, int] = {}
        self.busy = 0.0
        """Core seconds so far."""
        self._numbers = 0

    def start(self, now: float, command: Start) -> SimulatedBundle:
        """Allocates the resources of one task of the batch and starts the first one."""
        requests = [self.graph.profile_of(task).resources for task in command.tasks]
        request = requests[0]
        if any(other != request for other in requests):
            raise Violation(f"a batch with different requests: {command}")
        sized = {name: size for name, size in zip(SIZED, command.sizes, strict=True) if size}
        if sized:
            request = Resources.of({**dict(request.amounts), **sized})
        for name, amount in request.amounts:
            taken = self.taken.get(name, 0) + amount
            if taken > self.capacity.get(name):
                raise Violation(f"{name} of the node is overcommitted by {command}")
            self.taken[name] = taken
        self._numbers += 1
        tasks = list(zip(command.tasks, command.attempts, strict=True))
        place = SimulatedBundle(self._numbers, request, tasks, self._plan(*tasks[0]), now, command.sizes)
        self.places[place.number] = place
        for task, _ in tasks:
            if task in self.place_of:
                raise Violation(f"task {task} runs twice at the same time")
            self.place_of[task] = place.number
        return place

    def _plan(self, task: int, attempt: int) -> PlannedOutcome:
        return self.outcomes.draw(task, attempt, self.durations[task], self.graph.profile_of(task).timeout)

    def growing(self, place: SimulatedBundle) -> list[str]:
        """The resources of which the running task will use more than expected."""
        if not self.peaks:
            return []
        peaks = self.peaks[place.tasks[0][0]]
        return [
            name
            for name, peak, size in zip(SIZED, peaks, place.sizes, strict=True)
            if peak > size > 0 and name != "cores"
        ]

    def grow(self, place: SimulatedBundle, name: str) -> TaskGrew:
        """The running task reaches its peak, which may exceed the node's capacity."""
        task, attempt = place.tasks[0]
        peak = self.peaks[task][SIZED.index(name)]
        self.taken[name] = self.taken.get(name, 0) + peak - place.request.get(name)
        place.request = Resources.of({**dict(place.request.amounts), name: peak})
        return TaskGrew(task, attempt, peak, resource=name)

    def end_turn(self, now: float, place: SimulatedBundle) -> list[TaskResult]:
        """The running attempt ends as planned. After a crash or a timeout the rest of the batch ends, too."""
        results = [self._end_first(now, place, place.planned.outcome)]
        if place.planned.outcome in (AttemptOutcome.CRASHED, AttemptOutcome.TIMEOUT):
            results += [self._end_first(now, place, AttemptOutcome.UNBEGUN) for _ in range(len(place.tasks))]
        self._next_turn(now, place)
        return results

    def lose_worker(self, now: float, place: SimulatedBundle) -> list[TaskResult]:
        """The worker of a batch dies: the running call crashes, the others have not started."""
        results = [self._end_first(now, place, AttemptOutcome.CRASHED)]
        results += [self._end_first(now, place, AttemptOutcome.UNBEGUN) for _ in range(len(place.tasks))]
        self._next_turn(now, place)
        return results

    def kill(
        self, now: float, task: int, attempt: int, latency: float, outcome: AttemptOutcome = AttemptOutcome.CANCELLED
    ) -> SimulatedBundle | None:
        """Kills an attempt: it ends after `latency`, unless its own end comes first.

        Returns the slot whose end event must be scheduled again. Returns None if the task only waited in its batch,
        from which it is now removed, or is not here any more.
        """
        place = self.places.get(self.place_of.get(task, 0))
        if place is None or (task, attempt) not in place.tasks:
            return None
        if place.tasks[0] != (task, attempt):
            place.tasks.remove((task, attempt))
            del self.place_of[task]
            return None
        if place.started + place.planned.seconds > now + latency:
            place.planned = PlannedOutcome(outcome, now + latency - place.started)
            place.turn += 1
        return place

    def _end_first(self, now: float, place: SimulatedBundle, outcome: AttemptOutcome) -> TaskResult:
        task, attempt = place.tasks.pop(0)
        del self.place_of[task]
        seconds = now - place.started
        self.busy += seconds * place.request.get("cores")
        place.started = now
        used = self.peaks[task] if self.peaks and outcome is AttemptOutcome.OK else NOTHING
        return TaskResult(task, attempt, outcome, seconds, used)

    def _next_turn(self, now: float, place: SimulatedBundle) -> None:
        place.turn += 1
        if place.tasks:
            place.started = now
            place.planned = self._plan(*place.tasks[0])
            return
        del self.places[place.number]
        for name, amount in place.request.amounts:
            self.taken[name] -= amount


Item = TypeVar("Item")


class EventHeap(Generic[Item]):
    """Priority queue of simulated events; `now` is the time of the last event taken and never decreases."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, item: Item) -> None:
        """Schedules an event; a time in the past means now."""
        self._serial += 1
        heappush(self._heap, (max(when, self.now), self._serial, item))

    def after(self, delay: float, item: Item) -> None:
        self.at(self.now + delay, item)

    def next(self) -> Item:
        """Takes the earliest event and advances the clock to its time."""
        self.now, _, item = heappop(self._heap)
        return item

    def due_now(self) -> Item | None:
        """The next event if it is due at `now`; leaves it in the queue."""
        if self._heap and self._heap[0][0] == self.now:
            return self._heap[0][2]
        return None

    def items(self) -> list[Item]:
        """All pending events, in no particular order."""
        return [item for _, _, item in self._heap]


def trace_digest(lines: Iterable[bytes], outcome: tuple[object, ...]) -> str:
    """The SHA-256 of a trace. Two runs have the same digest only if they took the same decisions."""
    whole = sha256()
    for line in lines:
        whole.update(line)
        whole.update(b"\n")
    whole.update(repr(outcome).encode())
    return whole.hexdigest()
