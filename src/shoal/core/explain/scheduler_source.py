"""Why a task is not running, from the state of its scheduler: checks in the order in which the scheduler decides.

A scheduler starts everything it can whenever it decides, so a queued task always has a reason: the node starts nothing
more, the throttle holds its category back, too little of a resource is free, or resources are reserved for larger
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import msgspec

from shoal.core.dependencies import TaskStatus
from shoal.core.explain.answer import Answer, Cap, Kind, ResourceHolder, RunAnswer, Shortage, WaitCause, WaitingGroup
from shoal.core.explain.dependency_chain import (
    MOST_ANCESTORS,
    before_in_bundle,
    bundles,
    expected_end,
    expected_starts,
    explain,
    is_overdue,
    queued_in_order,
)
from shoal.core.graph import Graph
from shoal.core.peer_scheduler import PeerScheduler
from shoal.core.policies.admission import UNLIMITED
from shoal.core.policies.sizing.adviser import SIZED
from shoal.core.quantities import show_bytes
from shoal.core.resources import is_label
from shoal.core.scheduler import Scheduler, TaskState

MOST_HOLDERS = 10
_NO_TIMES: Mapping[int, float] = {}
_NO_REASONS: Mapping[str, str] = {}


def explain_held(
    scheduler: Scheduler,
    task: int,
    now: float,
    *,
    since: Mapping[int, float] = _NO_TIMES,
    reasons: Mapping[str, str] = _NO_REASONS,
    foresees: bool = True,
) -> Answer:
    """What the task waits for. `since`: when running tasks were started; `reasons`: a sentence for each cap.

    `foresees`: estimate the start of the task, too. That examines all tasks ahead of it in the queue.
    """
    state = scheduler.state.get(task, TaskState.ABSENT)
    answer = Answer(task, WaitCause.TURN, scheduler.attempt.get(task, 0))
    match state:
        case TaskState.ABSENT:
            answer.cause = WaitCause.ARRIVING
        case TaskState.RUNNING | TaskState.ENDING:
            _explain_running(scheduler, answer, now, since)
        case TaskState.RESTING if scheduler.draining:
            answer.cause = WaitCause.STOPPING
        case TaskState.RESTING:
            answer.cause = WaitCause.RETRY
            if task in scheduler.cramped:
                answer.detail = (
                    f"its input files, {show_bytes(scheduler.cramped[task].need)}, do not fit on the node now"
                )
            answer.until = min(when for when, other in scheduler.resting if other == task)
            answer.starts = max(now, answer.until)
        case TaskState.QUEUED:
            _explain_queued(scheduler, answer, now, since, reasons)
            if foresees and answer.cause is not WaitCause.STOPPING:
                order = queued_in_order(scheduler, task)
                if order and order[-1] == task:
                    answer.ahead = len(order) - 1
                    answer.starts = expected_starts(scheduler, order, now, since).get(task)
    return answer


def _explain_running(scheduler: Scheduler, answer: Answer, now: float, since: Mapping[int, float]) -> None:
    """In a bundle the first task is the one that runs."""
    task, bundle = answer.task, scheduler.running[answer.task]
    before = before_in_bundle(scheduler, task)
    begun = since.get(before[0] if before else task)
    end = expected_end(scheduler, bundle, now, begun, len(before) or 1)
    if scheduler.state[task] is TaskState.ENDING:
        answer.cause, answer.since = WaitCause.ENDING, begun
    elif before:
        answer.cause = WaitCause.BUNDLED
        answer.starts = max(now, end) if end is not None and not is_overdue(end, now) else None
    else:
        answer.cause, answer.since, answer.until = WaitCause.RUNNING, begun, end
        answer.overdue = is_overdue(end, now)


def _explain_queued(
    scheduler: Scheduler, answer: Answer, now: float, since: Mapping[int, float], reasons: Mapping[str, str]
) -> None:
    answer.queued = len(scheduler.queue)
    contract, lane = scheduler.contract, scheduler.columns.lane[answer.task]
    cap = contract.cap_of(lane)
    if scheduler.draining:
        answer.cause = WaitCause.STOPPING
    elif scheduler.awaiting_ready:
        answer.cause = WaitCause.TURN
    elif cap is not None and contract.is_held_back(lane):
        name = scheduler.lanes[lane].cap
        answer.cause = WaitCause.THROTTLE
        answer.cap = Cap(name, cap[0], cap[0] - cap[1], reasons.get(name, ""))
    elif not contract.fits(lane):
        answer.shortage = _shortage(scheduler, lane, now, since)
        answer.cause = WaitCause.LABEL if is_label(answer.shortage.resource) else WaitCause.RESOURCES
    else:
        larger = _larger(scheduler, lane)
        if larger is not None:
            answer.cause = WaitCause.LARGER_FIRST
            answer.larger = str(scheduler.lanes[larger].request())
            lane_of = scheduler.columns.lane
            answer.first = next((each for each in scheduler.queue.waiting() if lane_of[each] == larger), None)


def _shortage(scheduler: Scheduler, lane: int, now: float, since: Mapping[int, float]) -> Shortage:
    """The resource with the smallest ratio of free to requested, and the tasks that hold it."""
    contract = scheduler.contract
    lacking = [(at, amount) for at, amount in contract.needs[lane] if contract.free[at] < amount]
    at, asked = max(lacking, key=lambda pair: (pair[1] - contract.free[pair[0]]) / pair[1])
    holders = []
    for task, bundle in bundles(scheduler).items():
        amount = dict(bundle.taken).get(at, 0)
        if amount:
            begun = since.get(task)
            end = expected_end(scheduler, bundle, now, begun)
            holders.append(ResourceHolder(task, amount, begun, end, overdue=is_overdue(end, now)))
    holders.sort(key=lambda each: (each.until is None, each.overdue, each.until or 0.0, -each.amount, each.task))
    name, free = contract.names[at], max(0, contract.free[at])
    reckoned = name in SIZED and bool(scheduler.lanes[lane].sizes[SIZED.index(name)])
    return Shortage(name, asked, free, contract.total[at], holders[:MOST_HOLDERS], len(holders), reckoned)


def _larger(scheduler: Scheduler, lane: int) -> int | None:
    """The lane for which free resources are reserved; None if there is none."""
    if scheduler.lanes[lane].passed_over >= scheduler.patience:
        return None
    for other in scheduler.queue.lanes():
        if scheduler.lanes[other].passed_over >= scheduler.patience and not scheduler.contract.leaves_room(lane, other):
            return other
    return None


def among_others(member: PeerScheduler, answer: Answer) -> Answer:
    """Adapts the answer for one of several schedulers: a task may wait here because its input files are here."""
    if answer.task in member.tiers.local and answer.cause in (WaitCause.RESOURCES, WaitCause.LARGER_FIRST):
        answer.cause = WaitCause.LOCALITY
    return answer


def groups_of(
    scheduler: Scheduler, explain: Callable[[int], Answer], apart: Callable[[int], Hashable] = lambda task: None
) -> list[WaitingGroup]:
    """The tasks that a scheduler has and does not run, grouped by what they wait for, the largest group first.

    One queued task represents its lane, or the tasks of its lane with the same value of `apart`.
    """
    lane_of = scheduler.columns.lane
    alike: dict[tuple[int, Hashable], list[int]] = {}
    for task in scheduler.queue.waiting():
        alike.setdefault((lane_of[task], apart(task)), []).append(task)
    found: dict[Kind, WaitingGroup] = {}
    under_way = bundles(scheduler)
    later = [task for task in scheduler.running if task not in under_way]
    bundled = [task for task in later if scheduler.state[task] is TaskState.RUNNING]
    ending = [task for task in later if scheduler.state[task] is not TaskState.RUNNING]
    resting = [task for task, state in scheduler.state.items() if state is TaskState.RESTING]
    if resting:
        still = set(resting)
        _, first = min(entry for entry in scheduler.resting if entry[1] in still)
        resting = [first, *(task for task in resting if task != first)]
    for tasks in (*alike.values(), bundled, ending, resting):
        if tasks:
            answer = explain(tasks[0])
            found.setdefault(answer.kind(), WaitingGroup(answer.cause, 0, answer)).count += len(tasks)
    return sorted(found.values(), key=lambda group: -group.count)


class DriverFacts(msgspec.Struct, frozen=True):
    """What the driver of a scheduler knows, but the scheduler does not."""

    since: Mapping[int, float] | None = None
    """By running task, the time of its start."""
    reasons: Mapping[str, str] | None = None
    """By category, a sentence about its cap."""
    order: str = ""
    stopping: str = ""
    """Why no more tasks are started; empty while tasks are started."""


class SingleNodeSource:
    """A snapshot of graph and scheduler of a run on one node."""

    horizon = MOST_ANCESTORS

    def __init__(
        self,
        graph: Graph,
        statuses: Sequence[int],
        scheduler: Scheduler,
        now: float,
        unbegun: Mapping[int, int] | None = None,
        driver: DriverFacts | None = None,
    ) -> None:
        """`unbegun`: by task, the number of attempts that were handed back before they began."""
        driver = driver or DriverFacts()
        self.now = now
        self._graph, self._statuses, self._scheduler = graph, statuses, scheduler
        self._unbegun, self._since, self._reasons = unbegun or {}, driver.since or {}, driver.reasons or {}
        self._order, self._stopping = driver.order, driver.stopping
        self._turns: dict[int, float] | None = None

    def status(self, task: int) -> TaskStatus:
        return TaskStatus(self._statuses[task])

    def needs(self, task: int) -> Iterable[int]:
        return self._graph.predecessors_of(task)

    def held(self, task: int, *, foresees: bool = True) -> Answer:
        answer = explain_held(
            self._scheduler, task, self.now, since=self._since, reasons=self._reasons, foresees=foresees
        )
        answer.attempt -= self._unbegun.get(task, 0)
        answer.order = self._order if answer.cause is WaitCause.RESOURCES else ""
        if answer.cause is WaitCause.STOPPING:
            answer.detail = self._stopping
        return answer

    def seconds(self, task: int) -> float | None:
        if self._graph.actions[task] is None:
            return 0.0
        return self._scheduler.lanes[self._scheduler.columns.lane[task]].mean_duration

    def running_since(self, task: int) -> float | None:
        return self._since.get(task, self.now) if task in self._scheduler.running else None

    def may_start(self, task: int) -> float | None:
        """From its position in the queue; the whole queue is simulated once."""
        if self._scheduler.state.get(task) not in (TaskState.QUEUED, TaskState.RESTING):
            return self.now
        if self._turns is None:
            self._turns = self._all_turns()
        return self._turns.get(task)

    def _all_turns(self) -> dict[int, float]:
        scheduler, now = self._scheduler, self.now
        order = queued_in_order(scheduler)
        if order is None:  # too many to simulate: an estimate that is too early is better than none
            found = dict.fromkeys(scheduler.queue.waiting(), now)
        else:
            found = expected_starts(scheduler, order, now, self._since)
        for when, task in scheduler.resting:
            if scheduler.state.get(task) is TaskState.RESTING:
                found[task] = max(now, min(when, found.get(task, when)))
        return found

    def share(self, task: int) -> float | None:
        """From the number of such tasks that the node can hold, even if fewer run at the moment."""
        if self._graph.actions[task] is None:
            return 0.0
        contract, lane = self._scheduler.contract, self._scheduler.columns.lane[task]
        places = contract.places(lane)
        if places >= UNLIMITED:  # a throttle has not measured its limit yet
            places = contract.whole_cores()
        if places < 1:
            return 1.0 if task in self._scheduler.running else None
        return 1 / places

    @property
    def stopping(self) -> str | None:
        return self._stopping if self._scheduler.draining else None

    def whole(self) -> RunAnswer:
        """Why the run is in its state."""
        scheduler, counts = self._scheduler, [0] * len(TaskStatus)
        for status, action in zip(self._statuses, self._graph.actions, strict=True):
            if action is not None:
                counts[status] += 1
        running = len(bundles(scheduler))  # one task of each bundle runs
        answer = RunAnswer(
            running=running,
            ready=counts[TaskStatus.READY] - running,
            waiting=counts[TaskStatus.WAITING],
            done=counts[TaskStatus.DONE],
            failed=counts[TaskStatus.FAILED],
            doomed=counts[TaskStatus.DOOMED],
            groups=groups_of(scheduler, lambda task: self.held(task, foresees=False)),
        )
        arriving = answer.ready - sum(group.count for group in answer.groups)
        if arriving > 0:
            answer.groups.append(self._arriving(arriving))
        return answer

    def _arriving(self, count: int) -> WaitingGroup:
        """Ready tasks that the scheduler has not received yet."""
        held = self._scheduler.state
        for task, status in enumerate(self._statuses):
            if status == TaskStatus.READY and task not in held:
                return WaitingGroup(WaitCause.ARRIVING, count, Answer(task, WaitCause.ARRIVING))
        raise AssertionError("a ready task is missing")

    def explain(self, task: int) -> Answer:
        return explain(self, task)
