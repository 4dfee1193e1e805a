"""When all ancestors of a task would be done: simulates them, each taking its fraction of all resources.

Every task takes the mean duration of its category, and starts as soon as its dependencies are done and there is room,
in the order in which the tasks are known. Queued tasks come first, when it is their turn. Tasks that are not ancestors
count only if they are ahead of an ancestor in the queue.
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
    """Its unfinished dependencies."""
    is_placed: bool
    """It runs, or it is queued and its turn is known."""


class Foreseen(msgspec.Struct):
    """All unfinished ancestors of a task; each comes after its dependencies."""

    finish: dict[int, float]
    """When each would be done if only its dependencies and its place in a queue delayed it."""
    steps: dict[int, Step]
    is_unknown: bool = False
    """One of them runs longer than the mean, or cannot start as things are: its end is unknown."""


def played(
    foreseen: Foreseen, share: Callable[[int], float | None], ends: Mapping[int, float], now: float
) -> float | None:
    """When the last one is done; None if one cannot start. `ends`: tasks whose end is already known."""
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
