"""When the ancestors of a task would all be done: they are played forward, each taking its part of what there is.

Every task takes as long as its kind does on average, and is started as soon as what it needs is done and there is room,
in the order in which they are known. Those that are queued come first, when it is their turn. Of tasks that are no
ancestors only those are looked at that are before them in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

import msgspec

_LITTLE = 1e-9


class Step(msgspec.Struct, frozen=True):
    """An ancestor that is not done."""

    seconds: float
    needs: list[int]
    """Those that it waits for, of those that are not done."""
    is_placed: bool
    """It runs, or it is queued and its turn is known."""


class Foreseen(msgspec.Struct):
    """All unfinished ancestors of a task; each comes after those that it needs."""

    finish: dict[int, float]
    """When each would be done if only its own needs, and its place in a queue, held it up."""
    steps: dict[int, Step]
    is_unknown: bool = False
    """One of them runs for longer than its kind does, or cannot start as things are: nobody knows when it ends."""


def played(
    foreseen: Foreseen, share: Callable[[int], float | None], ends: Mapping[int, float], now: float
) -> float | None:
    """When the last one is done; None if one cannot start. `ends`: those whose end is known from elsewhere."""
    missing = {task: len(step.needs) for task, step in foreseen.steps.items()}
    waiting: dict[int, list[int]] = {}
    parts: dict[int, float] = {}
    active: list[tuple[float, int]] = []
    startable: deque[int] = deque()
    free, moment = 1.0, now
    for task, step in foreseen.steps.items():
        part = share(task)
        if part is None:
            return None
        parts[task] = part
        for other in step.needs:
            waiting.setdefault(other, []).append(task)
        if step.is_placed or task in ends:
            heappush(active, (ends.get(task, foreseen.finish[task]), task))
            free -= part
        elif not step.needs:
            startable.append(task)
    while startable or active:
        while startable and (free >= parts[startable[0]] - _LITTLE or not active):
            task = startable.popleft()
            free -= parts[task]
            heappush(active, (moment + foreseen.steps[task].seconds, task))
        moment, task = heappop(active)
        free += parts[task]
        for other in waiting.get(task, ()):
            missing[other] -= 1
            if not missing[other]:
                startable.append(other)
    return moment
