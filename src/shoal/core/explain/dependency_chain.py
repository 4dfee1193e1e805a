"""Why a task waits for dependencies: the chain to the ancestor that delays it, and when the task could start.

If durations are known, this is the chain expected to take longest, otherwise the one that is furthest from running. A
`ChainSource` provides the facts: a local run, a store with nodes, a simulator or a ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from heapq import heapify, heappop, heappush
from typing import Protocol

import msgspec

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, WaitCause
from shoal.core.policies.order import OrderQueue
from shoal.core.scheduler import LaneBundle, Scheduler

MOST_FORESEEN = 5_000
MOST_LOOKS = 50_000
"""Maximum queue length (times lanes) that is copied and simulated: more would delay the run."""

SLACK = 0.25
"""Seconds by which a task may be late before it counts as overdue: its start is reported with a small delay, and for a
bundle only the start of the whole bundle is known."""


def is_overdue(end: float | None, now: float) -> bool:
    """Whether a task was expected to end before now, so that its end is unknown."""
    return end is not None and end < now - SLACK


def queued_in_order(scheduler: Scheduler, until: int | None = None) -> list[int] | None:
    """The queued tasks in the order in which they would start, up to `until`; None if there are too many."""
    size = len(scheduler.queue)
    if size > MOST_FORESEEN or size * len(list(scheduler.queue.lanes())) > MOST_LOOKS:
        return None
    queue: OrderQueue = deepcopy(scheduler.queue, {id(scheduler.columns): scheduler.columns})
    found: list[int] = []
    while len(queue) and (not found or found[-1] != until):
        first = queue.pop(list(queue.lanes()))
        if first is None:
            break
        found.append(first)
    return found


def expected_end(
    scheduler: Scheduler, bundle: LaneBundle, now: float, since: float | None, most: int = 0
) -> float | None:
    """When the tasks of a bundle, or its first `most`, should end; None if no task of their lane has ended yet.

    The result is in the past if they take longer than the mean.
    """
    mean = scheduler.lanes[bundle.lane].mean_duration
    if mean is None:
        return None
    return (now if since is None else since) + mean * (most or bundle.left)


def expected_starts(scheduler: Scheduler, tasks: list[int], now: float, since: Mapping[int, float]) -> dict[int, float]:
    """When queued tasks are expected to start, one after another. Omits tasks that cannot start in the current
    situation, and tasks behind one of unknown duration."""
    found: dict[int, float] = {}
    contract, lane_of = scheduler.contract, scheduler.columns.lane
    releases: list[tuple[float, int, list[tuple[int, int]]]] = []
    for number, (one, bundle) in enumerate(bundles(scheduler).items()):
        end = expected_end(scheduler, bundle, now, since.get(one))
        if end is None:
            return found
        if not is_overdue(end, now):
            releases.append((max(end, now), number, bundle.taken))
    number = len(scheduler.running)
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
        mean = scheduler.lanes[lane_of[other]].mean_duration
        if mean is None:
            return found
        for at, amount in needs:
            free[at] -= amount
        number += 1
        heappush(releases, (moment + mean, number, needs))
    return found


def bundles(scheduler: Scheduler) -> dict[int, LaneBundle]:
    """The running bundles, keyed by their first task, the only one that is running."""
    found: dict[int, tuple[int, LaneBundle]] = {}
    for task, bundle in scheduler.running.items():
        found.setdefault(id(bundle), (task, bundle))
    return dict(found.values())


def before_in_bundle(scheduler: Scheduler, task: int) -> list[int]:
    """The tasks of the same bundle that run before this one."""
    found = []
    bundle = scheduler.running[task]
    for other, its in scheduler.running.items():
        if other == task:
            break
        if its is bundle:
            found.append(other)
    return found


MOST_ANCESTORS = 20_000
"""Maximum number of ancestors examined; beyond it the first chain found is used."""
MOST_TOLD = 50
"""Tasks that are listed at each end of a chain."""
NEVER = float("inf")
_LITTLE = 1e-9
_PLAIN = {TaskStatus.DONE: WaitCause.DONE, TaskStatus.FAILED: WaitCause.FAILED, TaskStatus.EXCLUDED: WaitCause.EXCLUDED}


class ChainSource(Protocol):
    """A snapshot of the facts about a run."""

    @property
    def now(self) -> float: ...

    def status(self, task: int) -> TaskStatus:
        """Status of a task; `READY` if a scheduler has it or is about to get it."""

    def needs(self, task: int) -> Iterable[int]:
        """Its dependencies, done or not."""

    def held(self, task: int) -> Answer:
        """Why a ready task is in its state."""

    def seconds(self, task: int) -> float | None:
        """Expected duration; None if no task of its kind has ended yet."""

    def running_since(self, task: int) -> float | None:
        """When it started, if it is running."""

    def may_start(self, task: int) -> float | None:
        """When a ready task that is not running is expected to start; None if it cannot start, or if that is
        unknown."""

    def share(self, task: int) -> float | None:
        """The fraction of all resources that a task takes while it runs; None if no such task can start at present."""

    @property
    def stopping(self) -> str | None:
        """Why the whole run starts nothing more; empty if the reason is unknown, None if the run is not stopping."""

    @property
    def horizon(self) -> int:
        """Maximum number of unfinished ancestors examined to estimate when a task starts."""


class FunctionSource:
    """A source made of functions, for a run whose queue is not known."""

    def __init__(
        self,
        now: float,
        needs: Callable[[int], Iterable[int]],
        status: Callable[[int], TaskStatus],
        held: Callable[[int], Answer],
        seconds: Callable[[int], float | None] = lambda task: None,
        share: Callable[[int], float | None] = lambda task: 1.0,
        horizon: int = MOST_ANCESTORS,
    ) -> None:
        self.now, self.horizon = now, horizon
        self.needs, self.status, self.held, self.seconds, self.share = needs, status, held, seconds, share
        self.stopping: str | None = None  # one node may be stopping while others are not

    def running_since(self, task: int) -> float | None:
        """Unknown here; the node that has the task at the end of the chain is asked instead."""
        return None

    def may_start(self, task: int) -> float | None:
        """As far as known here, it may start now."""
        return self.now

    def explain(self, task: int) -> Answer:
        return explain(self, task)


def explain(source: ChainSource, task: int) -> Answer:
    """Why a task is in its state."""
    status = source.status(task)
    if status in _PLAIN:
        return Answer(task, _PLAIN[status])
    if status is TaskStatus.READY:
        return source.held(task)
    if status is TaskStatus.DOOMED:
        return _doomed(source, task)
    return _waiting(source, task)


def _doomed(source: ChainSource, task: int) -> Answer:
    """Follows the chain to the task that failed."""
    chain: list[int] = []
    current = task
    while source.status(current) is TaskStatus.DOOMED:
        lost = [
            other for other in source.needs(current) if source.status(other) in (TaskStatus.FAILED, TaskStatus.DOOMED)
        ]
        if not lost:
            break  # the failure has been undone since
        current = next((other for other in lost if source.status(other) is TaskStatus.FAILED), lost[0])
        chain.append(current)
    root = Answer(chain[-1], WaitCause.FAILED) if chain and source.status(chain[-1]) is TaskStatus.FAILED else None
    return _shortened(Answer(task, WaitCause.DOOMED, chain=chain, links=len(chain), root=root))


def _unfinished(source: ChainSource, task: int) -> list[int]:
    return [other for other in dict.fromkeys(source.needs(task)) if source.status(other) <= TaskStatus.READY]


def _waiting(source: ChainSource, task: int) -> Answer:
    unfinished = _unfinished(source, task)
    stopping = source.stopping
    answer = Answer(task, WaitCause.NEEDS, unfinished=len(unfinished))
    if stopping is not None:
        answer.cause, answer.detail = WaitCause.STOPPING, stopping
    elif not unfinished:
        answer.cause = WaitCause.ARRIVING
    if not unfinished:
        return answer
    foreseen = _foreseen(source, task)
    finish = foreseen.finish if foreseen is not None else None
    current, needed = task, unfinished
    while needed:
        current = max(needed, key=lambda other: _lateness(source, other, finish)) if len(needed) > 1 else needed[0]
        answer.chain.append(current)
        needed = _unfinished(source, current) if source.status(current) is TaskStatus.WAITING else []
    answer.links = len(answer.chain)
    answer.root = explain(source, current)
    if foreseen is not None and stopping is None:
        answer.starts = _expected(source, answer.root, foreseen)
    return _shortened(answer)


def _shortened(answer: Answer) -> Answer:
    """Removes the middle of a very long chain."""
    if answer.links > 2 * MOST_TOLD:
        answer.chain = answer.chain[:MOST_TOLD] + answer.chain[-MOST_TOLD:]
    return answer


def _lateness(source: ChainSource, task: int, finish: dict[int, float] | None) -> tuple[float, bool, int]:
    """Sort key: larger if the task is expected to be done later. The first of equal ones is chosen."""
    moment = finish.get(task, 0.0) if finish is not None else 0.0
    return moment, source.status(task) is TaskStatus.WAITING, -task


# ---- when all ancestors would be done --------------------------------------------------------------------------------


class Step(msgspec.Struct, frozen=True):
    """An ancestor that is not done."""

    seconds: float
    needs: list[int]
    """Its unfinished dependencies."""
    is_placed: bool
    """It is running, or it is queued and its start is known."""


class Foreseen(msgspec.Struct):
    """All unfinished ancestors of a task; each comes after its dependencies."""

    finish: dict[int, float]
    """When each would be done if only its dependencies and its place in a queue delayed it."""
    steps: dict[int, Step]
    is_unknown: bool = False
    """One of them runs longer than the mean, or cannot start at present: its end is unknown."""


def _foreseen(source: ChainSource, task: int) -> Foreseen | None:
    """When each unfinished ancestor would be done if only its dependencies and its place in a queue delayed it; None if
    that is unknown."""
    foreseen = Foreseen({}, {})
    finish = foreseen.finish
    stack = _unfinished(source, task)
    while stack:
        current = stack[-1]
        if current in finish:
            stack.pop()
            continue
        seconds = source.seconds(current)
        if seconds is None or len(finish) + len(stack) > source.horizon:
            return None
        needed = _unfinished(source, current) if source.status(current) is TaskStatus.WAITING else []
        missing = [other for other in needed if other not in finish]
        if missing:
            stack += missing
            continue
        start = source.running_since(current)
        is_placed = start is not None
        if needed:
            start = max(finish[other] for other in needed)
        elif start is None:
            start = source.may_start(current) if source.status(current) is TaskStatus.READY else source.now
            is_placed = start is not None and start > source.now
        foreseen.is_unknown |= start is None or is_overdue(start + seconds, source.now)
        finish[current] = max(source.now, start + seconds) if start is not None else NEVER
        foreseen.steps[current] = Step(seconds, needed, is_placed)
        stack.pop()
    return foreseen


def _expected(source: ChainSource, root: Answer, foreseen: Foreseen) -> float | None:
    """When all ancestors should be done; None if one of them cannot start, or runs longer than expected."""
    if foreseen.is_unknown or root.overdue:
        return None
    seconds, now = foreseen.steps[root.task].seconds, source.now
    if root.cause is not WaitCause.RUNNING:
        if root.starts is None:
            return None
        end = root.starts + seconds
    else:
        begun = root.since if root.since is not None else now
        end = root.until if root.until is not None else begun + seconds
        if is_overdue(end, now):
            return None
    return played(foreseen, source.share, {root.task: max(end, now)}, now)


def played(
    foreseen: Foreseen, share: Callable[[int], float | None], ends: Mapping[int, float], now: float
) -> float | None:
    """Simulates the ancestors: when the last one is done; None if one cannot start. `ends`: tasks whose end is known.

    Every task takes the mean duration of its category and starts when its dependencies are done and resources are free,
    in the order of `foreseen.steps`. Queued tasks come first, in queue order. Tasks that are not ancestors count only
    if they are ahead of an ancestor in the queue.
    """
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
