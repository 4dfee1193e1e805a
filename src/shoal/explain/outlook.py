"""When a queued task is expected to start: the tasks ahead of it are placed one after another on what becomes free.

The scheduler would do so if every task took the mean duration of its category and nothing else became ready. The end of
a task that runs longer than that is unknown, so that there is no estimate for anything that needs its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from heapq import heapify, heappop, heappush

from shoal.broker.broker import Broker
from shoal.broker.lane import Bundle
from shoal.policy.order import Queue

MOST_FORESEEN = 5_000
MOST_LOOKS = 50_000
"""Longer queues, or queues with many lanes, are not copied and simulated: that would delay the run."""

SLACK = 0.25
"""Seconds by which a task may be late before it counts as overdue: its start is reported a little later, and of a
bundle only the start of the whole is known."""


def is_overdue(end: float | None, now: float) -> bool:
    """Whether a task should have ended and has not, so that its end is unknown."""
    return end is not None and end < now - SLACK


def queued_in_order(broker: Broker, until: int | None = None) -> list[int] | None:
    """The queued tasks in the order in which they would start, up to `until`; None if there are too many."""
    size = len(broker.queue)
    if size > MOST_FORESEEN or size * len(list(broker.queue.lanes())) > MOST_LOOKS:
        return None
    queue: Queue = deepcopy(broker.queue, {id(broker.columns): broker.columns})
    found: list[int] = []
    while len(queue) and (not found or found[-1] != until):
        first = queue.pop(list(queue.lanes()))
        if first is None:
            break
        found.append(first)
    return found


def expected_end(broker: Broker, bundle: Bundle, now: float, since: float | None, most: int = 0) -> float | None:
    """When the tasks of a bundle, or its first `most`, should end; None if no task of their lane has ended yet.

    The result is in the past if they take longer than the mean.
    """
    mean = broker.lanes[bundle.lane].mean_duration
    if mean is None:
        return None
    return (now if since is None else since) + mean * (most or bundle.left)


def expected_starts(broker: Broker, tasks: list[int], now: float, since: Mapping[int, float]) -> dict[int, float]:
    """When queued tasks are expected to start, one after another. Left out are tasks that cannot start as things are,
    or that come after tasks of unknown duration."""
    found: dict[int, float] = {}
    contract, lane_of = broker.contract, broker.columns.lane
    releases: list[tuple[float, int, list[tuple[int, int]]]] = []
    for number, (one, bundle) in enumerate(bundles(broker).items()):
        end = expected_end(broker, bundle, now, since.get(one))
        if end is None:
            return found
        if not is_overdue(end, now):
            releases.append((max(end, now), number, bundle.taken))
    number = len(broker.running)
    heapify(releases)
    free, moment = list(contract.free), now
    for other in tasks:
        needs = contract.needs[lane_of[other]]
        while any(free[at] < amount for at, amount in needs):
            if not releases:
                return found
            moment, _, taken = heappop(releases)
            for at, amount in taken:
                free[at] += amount
        found[other] = moment
        mean = broker.lanes[lane_of[other]].mean_duration
        if mean is None:
            return found
        for at, amount in needs:
            free[at] -= amount
        number += 1
        heappush(releases, (moment + mean, number, needs))
    return found


def bundles(broker: Broker) -> dict[int, Bundle]:
    """The running bundles, by their first task, which is the one that runs."""
    found: dict[int, tuple[int, Bundle]] = {}
    for task, bundle in broker.running.items():
        found.setdefault(id(bundle), (task, bundle))
    return dict(found.values())


def before_in_bundle(broker: Broker, task: int) -> list[int]:
    """The tasks of the same bundle that run before this one."""
    found = []
    bundle = broker.running[task]
    for other, its in broker.running.items():
        if other == task:
            break
        if its is bundle:
            found.append(other)
    return found
