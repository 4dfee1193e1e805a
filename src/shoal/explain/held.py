"""Why a task that a scheduler has is not running: reads the scheduler's state in the order in which it decides.

A scheduler starts all that it can whenever it decides, so a queued task always has a reason: the node starts nothing
more, the throttle holds its category back, too little of a resource is free, or room is reserved for larger tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from shoal.broker.broker import Broker
from shoal.broker.member import Member
from shoal.broker.states import State
from shoal.explain.answer import Answer, Cap, Cause, Group, Holder, Kind, Shortage
from shoal.explain.outlook import before_in_bundle, bundles, expected_end, expected_starts, is_overdue, queued_in_order
from shoal.model.quantities import show_bytes
from shoal.model.resources import is_label
from shoal.policy.sizing.panel import SIZED

MOST_HOLDERS = 10
_NO_TIMES: Mapping[int, float] = {}
_NO_REASONS: Mapping[str, str] = {}


def explain_held(
    broker: Broker,
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
    state = broker.state.get(task, State.ABSENT)
    answer = Answer(task, Cause.TURN, broker.attempt.get(task, 0))
    match state:
        case State.ABSENT:
            answer.cause = Cause.ARRIVING
        case State.RUNNING | State.ENDING:
            _explain_running(broker, answer, now, since)
        case State.RESTING if broker.draining:
            answer.cause = Cause.STOPPING
        case State.RESTING:
            answer.cause = Cause.RETRY
            if task in broker.cramped:
                answer.detail = f"its input files, {show_bytes(broker.cramped[task].need)}, do not fit on the node now"
            answer.until = min(when for when, other in broker.resting if other == task)
            answer.starts = max(now, answer.until)
        case State.QUEUED:
            _explain_queued(broker, answer, now, since, reasons)
            if foresees and answer.cause is not Cause.STOPPING:
                order = queued_in_order(broker, task)
                if order and order[-1] == task:
                    answer.ahead = len(order) - 1
                    answer.starts = expected_starts(broker, order, now, since).get(task)
    return answer


def _explain_running(broker: Broker, answer: Answer, now: float, since: Mapping[int, float]) -> None:
    """Of a bundle the first task runs."""
    task, bundle = answer.task, broker.running[answer.task]
    before = before_in_bundle(broker, task)
    begun = since.get(before[0] if before else task)
    end = expected_end(broker, bundle, now, begun, len(before) or 1)
    if broker.state[task] is State.ENDING:
        answer.cause, answer.since = Cause.ENDING, begun
    elif before:
        answer.cause = Cause.BUNDLED
        answer.starts = max(now, end) if end is not None and not is_overdue(end, now) else None
    else:
        answer.cause, answer.since, answer.until = Cause.RUNNING, begun, end
        answer.overdue = is_overdue(end, now)


def _explain_queued(
    broker: Broker, answer: Answer, now: float, since: Mapping[int, float], reasons: Mapping[str, str]
) -> None:
    answer.queued = len(broker.queue)
    contract, lane = broker.contract, broker.columns.lane[answer.task]
    cap = contract.cap_of(lane)
    if broker.draining:
        answer.cause = Cause.STOPPING
    elif broker.awaiting_ready:
        answer.cause = Cause.TURN
    elif cap is not None and contract.is_held_back(lane):
        name = broker.lanes[lane].cap
        answer.cause = Cause.THROTTLE
        answer.cap = Cap(name, cap[0], cap[0] - cap[1], reasons.get(name, ""))
    elif not contract.fits(lane):
        answer.shortage = _shortage(broker, lane, now, since)
        answer.cause = Cause.LABEL if is_label(answer.shortage.resource) else Cause.RESOURCES
    else:
        larger = _larger(broker, lane)
        if larger is not None:
            answer.cause = Cause.LARGER_FIRST
            answer.larger = str(broker.lanes[larger].request())
            lane_of = broker.columns.lane
            answer.first = next((each for each in broker.queue.waiting() if lane_of[each] == larger), None)


def _shortage(broker: Broker, lane: int, now: float, since: Mapping[int, float]) -> Shortage:
    """The resource that is shortest, relative to what is asked for, and the tasks that hold it."""
    contract = broker.contract
    lacking = [(at, amount) for at, amount in contract.needs[lane] if contract.free[at] < amount]
    at, asked = max(lacking, key=lambda pair: (pair[1] - contract.free[pair[0]]) / pair[1])
    holders = []
    for task, bundle in bundles(broker).items():
        amount = dict(bundle.taken).get(at, 0)
        if amount:
            begun = since.get(task)
            end = expected_end(broker, bundle, now, begun)
            holders.append(Holder(task, amount, begun, end, overdue=is_overdue(end, now)))
    holders.sort(key=lambda each: (each.until is None, each.overdue, each.until or 0.0, -each.amount, each.task))
    name, free = contract.names[at], max(0, contract.free[at])
    reckoned = name in SIZED and bool(broker.lanes[lane].sizes[SIZED.index(name)])
    return Shortage(name, asked, free, contract.total[at], holders[:MOST_HOLDERS], len(holders), reckoned)


def _larger(broker: Broker, lane: int) -> int | None:
    """The lane for which the free room is reserved; None if it is not reserved."""
    if broker.lanes[lane].passed_over >= broker.patience:
        return None
    for other in broker.queue.lanes():
        if broker.lanes[other].passed_over >= broker.patience and not broker.contract.leaves_room(lane, other):
            return other
    return None


def among_others(member: Member, answer: Answer) -> Answer:
    """The same for one of several schedulers: a task may wait for room here because its input files are here."""
    if answer.task in member.tiers.local and answer.cause in (Cause.RESOURCES, Cause.LARGER_FIRST):
        answer.cause = Cause.LOCALITY
    return answer


def groups_of(
    broker: Broker, explain: Callable[[int], Answer], apart: Callable[[int], Hashable] = lambda task: None
) -> list[Group]:
    """The tasks that a scheduler has and does not run, grouped by what they wait for, the largest group first.

    One queued task represents its lane, or the tasks of its lane with the same value of `apart`.
    """
    lane_of = broker.columns.lane
    alike: dict[tuple[int, Hashable], list[int]] = {}
    for task in broker.queue.waiting():
        alike.setdefault((lane_of[task], apart(task)), []).append(task)
    found: dict[Kind, Group] = {}
    under_way = bundles(broker)
    later = [task for task in broker.running if task not in under_way]
    bundled = [task for task in later if broker.state[task] is State.RUNNING]
    ending = [task for task in later if broker.state[task] is not State.RUNNING]
    resting = [task for task, state in broker.state.items() if state is State.RESTING]
    if resting:
        still = set(resting)
        _, first = min(entry for entry in broker.resting if entry[1] in still)
        resting = [first, *(task for task in resting if task != first)]
    for tasks in (*alike.values(), bundled, ending, resting):
        if tasks:
            answer = explain(tasks[0])
            found.setdefault(answer.kind(), Group(answer.cause, 0, answer)).count += len(tasks)
    return sorted(found.values(), key=lambda group: -group.count)
