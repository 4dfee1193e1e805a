"""The broker: `handle(now, event) -> [command]` is its whole interface.

It holds the tasks that are ready but not over, decides which starts next on its node, and what becomes of a failed
attempt. Live engine and simulator drive this same class. It reads no clock, starts nothing and remembers nothing of a
task that is over: an attempt that is not the current one of a task it holds changes nothing.

Lanes. Tasks with the same request share a lane, and the queue pops only from lanes that fit. A lane that does not fit
would starve behind a stream of narrower tasks, so each start from another lane is counted against it, and for a lane
that was passed over too often the free part of what it asks for is kept back: the others may start only on what is left
beside that. A task that waits for the one GPU so holds back one core, not all of them.

Bundles. Python calls of a few microseconds are handed over several at a time (`Start.tasks`), as many as fill
`BUNDLE_SECONDS` by the lane's mean duration. A bundle runs one after another in one place, so it takes the resources of
one task. Where the runner allows it a place gets more before it has nothing left.

Sizes. Where nobody declared how much of a resource the tasks of a lane need, an adviser (`shoal.policy.sizing`) says
how much to reckon with, learning from how attempts end. A task that turns out to use more than that holds more, and
nothing else starts until there is room again; only if the node has not got it, the task that grew last is ended, and
repeated in another lane, of those that get more. That is not charged to it. A task that exceeds what it declared itself
has failed.

Caps. A throttle may say how many run together of the lanes under a cap (`CapsChanged`). When a cap falls nothing is
ended, and nothing more of these lanes starts until fewer run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import msgspec

from shoal.core.peer_messages import ReadyTask
from shoal.core.policies.admission import Contract
from shoal.core.policies.order import DEFAULT_ORDER, ORDERS, OrderQueue, TaskColumns
from shoal.core.policies.retry import FIRST_DELAY, AttemptOutcome, retry_delay
from shoal.core.policies.sizing.adviser import NONE_TRIED, NOTHING, SIZED, Amounts, Tried
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    CapsChanged,
    Command,
    Cramped,
    DrainEnded,
    DrainRequested,
    Event,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskGrew,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
    WakeAt,
)


class TaskState(IntEnum):
    """Where a task stands in its broker."""

    ABSENT = 0
    """Not here: not yet ready, or over."""
    QUEUED = 1
    RUNNING = 2
    RESTING = 3
    """Waits for its next attempt."""
    ENDING = 4
    """Running, but no longer wanted."""


class StateChange(IntEnum):
    """What happens to a task."""

    ARRIVE = 0
    START = 1
    SUCCEED = 2
    FAIL = 3
    """The task is over without a result: its last attempt failed, or the node has become too small for it."""
    REST = 4
    """The attempt failed and another one follows later."""
    REQUEUE = 5
    """The attempt failed and another one may follow at once."""
    WAKE = 6
    CANCEL = 7
    LEAVE = 8
    """Another broker has it from now on."""


TRANSITIONS: dict[tuple[int, int], TaskState] = {
    (TaskState.ABSENT, StateChange.ARRIVE): TaskState.QUEUED,
    (TaskState.QUEUED, StateChange.START): TaskState.RUNNING,
    (TaskState.QUEUED, StateChange.CANCEL): TaskState.ABSENT,
    (TaskState.QUEUED, StateChange.FAIL): TaskState.ABSENT,
    (TaskState.QUEUED, StateChange.LEAVE): TaskState.ABSENT,
    (TaskState.RUNNING, StateChange.SUCCEED): TaskState.ABSENT,
    (TaskState.RUNNING, StateChange.FAIL): TaskState.ABSENT,
    (TaskState.RUNNING, StateChange.REST): TaskState.RESTING,
    (TaskState.RUNNING, StateChange.REQUEUE): TaskState.QUEUED,
    (TaskState.RUNNING, StateChange.CANCEL): TaskState.ENDING,
    (TaskState.RESTING, StateChange.WAKE): TaskState.QUEUED,
    (TaskState.RESTING, StateChange.CANCEL): TaskState.ABSENT,
    (TaskState.RESTING, StateChange.FAIL): TaskState.ABSENT,
    (TaskState.RESTING, StateChange.LEAVE): TaskState.ABSENT,
    (TaskState.ENDING, StateChange.SUCCEED): TaskState.ABSENT,
    (TaskState.ENDING, StateChange.FAIL): TaskState.ABSENT,
}


def moved_by(move: StateChange) -> dict[TaskState, TaskState]:
    """One column of the table, for what happens to every task."""
    return {TaskState(before): after for (before, other), after in TRANSITIONS.items() if other == move}


BUNDLE_SECONDS = 0.05
LARGEST_BUNDLE = 512
ONE_IN = 16
"""Share of the results of short tasks that an adviser is told of."""


class Adviser(Protocol):
    """Says how much of each of `SIZED` the next attempt gets, and learns from how attempts end."""

    def ask(self, tried: Tried) -> Amounts:
        """The sizes for an attempt at a task that has exhausted those in `tried`; 0 for what it does not size."""

    def hopeless(self, tried: Tried) -> bool:
        """Whether a task has exhausted all there is of a resource."""

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """An attempt that had these sizes has ended by itself, or over its size of the resource `exhausted`."""

    def resize(self, node: Resources) -> None:
        """The node has this from now on."""


class Lane(msgspec.Struct):
    """What the tasks of one lane have in common, and what was learned of them."""

    resources: Resources
    retries: int = 0
    bundled: bool = False
    refilled: bool = False
    """Whether its places take more tasks while they work."""
    mean_duration: float | None = None
    """Moving average over finished attempts, in seconds."""
    passed_over: int = 0
    adviser: Adviser | None = None
    """Who says how much its tasks get of what they did not declare themselves."""
    tried: Tried = NONE_TRIED
    """Sizes that the tasks of this lane have exhausted; only in lanes that the broker made for them."""
    sizes: Amounts = NOTHING
    """What the adviser said last."""
    origin: int = -1
    """The lane that its tasks came from, if the broker made it."""
    unheard: int = ONE_IN - 1
    """Results since the last one that the adviser was told of."""
    prefers: tuple[str, ...] = ()
    """Labels of nodes to which its tasks are pushed, if there are such nodes."""
    cap: str = ""
    """The cap under which its places are, together with those of other lanes; empty if there is none."""
    elastic: bool = False
    """How many run together is not a matter of cores: nobody declared them, and there is a throttle that finds out."""

    def is_worth_learning(self, used: Amounts) -> bool:
        """Of short tasks that stay within their size one in so many is enough; learning costs as much as they do."""
        if self.bundle_size() == 1:
            return True
        for amount, size in zip(used, self.sizes, strict=True):
            if amount > size > 0:
                return True
        self.unheard = (self.unheard + 1) % ONE_IN
        return not self.unheard

    def bundle_size(self) -> int:
        if not self.bundled or self.mean_duration is None:
            return 1
        return max(1, min(LARGEST_BUNDLE, int(BUNDLE_SECONDS / max(self.mean_duration, 1e-7))))

    def request(self) -> Resources:
        """What its tasks take: what they declared, and the sizes that were learned in place of the rest."""
        amounts = dict(self.resources.amounts)
        amounts.update((name, size) for name, size in zip(SIZED, self.sizes, strict=True) if size)
        if self.elastic:
            amounts.pop("cores", None)
        return Resources.of(amounts)


class LaneBundle(msgspec.Struct):
    """Tasks that were started together and hold one lane's resources until the last of them ends."""

    lane: int
    left: int
    taken: list[tuple[int, int]]
    """What it holds of the node."""
    place: int = 0
    low: int = 0
    """When no more than so many are left, more may be added."""
    sizes: Amounts = NOTHING
    """What is reckoned with for each of its tasks, where the broker decided that."""
    condemned: int = -1
    """The resource, by its place in `SIZED`, that its task used more of than the node has: it was told to end."""


def with_size(tried: Tried, at: int, size: int) -> Tried:
    """What a task has tried after it exhausted another size of one resource."""
    return (*tried[:at], (*tried[at], size), *tried[at + 1 :])


def larger_of(one: Tried, other: Tried) -> Tried:
    """For each resource the sizes that reach further."""
    return tuple(
        mine if max(mine, default=0) >= max(theirs, default=0) else theirs
        for mine, theirs in zip(one, other, strict=True)
    )


__all__ = ["PASSED_OVER_LIMIT", "Adviser", "Lane", "Scheduler"]

PASSED_OVER_LIMIT = 64
ARRIVED, STARTED, SUCCEEDED = (moved_by(move) for move in (StateChange.ARRIVE, StateChange.START, StateChange.SUCCEED))


def whole_cores(node: Resources) -> int:
    """N_c of the orders that look at it."""
    return max(1, node.get("cores") // FRACTION)


def _accepts_any(commands: list[Command]) -> bool:
    for command in commands:
        if type(command) is Accept:
            return True
    return False


class Scheduler:
    """The scheduler of one node."""

    def __init__(
        self,
        node: Resources,
        columns: TaskColumns,
        lanes: Sequence[Lane],
        *,
        order: str = DEFAULT_ORDER,
        seed: int = 0,
        patience: int = PASSED_OVER_LIMIT,
        retry_pause: float = FIRST_DELAY,
        queue: OrderQueue | None = None,
    ) -> None:
        """`queue`, if there is one, takes the place of the one that `order` names."""
        self.retry_pause = retry_pause
        self.columns = columns
        self.lanes = list(lanes)
        self.contract = Contract(node, [lane.resources for lane in lanes], [lane.cap for lane in lanes])
        self.queue = queue if queue is not None else ORDERS[order](columns, whole_cores(node), Random(seed))
        self.state: dict[int, TaskState] = {}
        self.attempt: dict[int, int] = {}
        """Number of the current or last attempt, for tasks that were started at least once and are not over."""
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.cramped: dict[int, Cramped] = {}
        """Of tasks for which some nodes had no room."""
        self.exhausted: dict[int, Tried] = {}
        """Sizes that tasks have exhausted."""
        self._larger: dict[tuple[int, ...], int] = {}
        """Lanes made for tasks of a lane that have exhausted so many sizes of each resource."""
        self.running: dict[int, LaneBundle] = {}
        self.resting: list[tuple[float, int]] = []
        """Heap of (when, task); an entry whose task is no longer resting is dead."""
        self.patience = patience
        """How often a lane may be passed over before room is kept for it."""
        self.draining = False
        self.has_peers = False
        """Others may have room for what this node has become too small for: it is not given up for that."""
        self.places = 0
        """Number of the last place."""
        self._nearly_empty: list[LaneBundle] = []
        self.awaiting_ready = False
        """A `TasksReady` was announced: starts wait for it."""
        self._handlers: dict[type, Callable[..., None]] = {
            TasksReady: self._on_ready,
            TasksEnded: self._on_ended,
            TaskGrew: self._on_grown,
            CancelRequested: self._on_cancel,
            CapacityChanged: self._on_capacity,
            CapsChanged: self._on_caps,
            DrainRequested: self._on_drain,
            DrainEnded: self._on_drain_ended,
            TimePassed: self._on_time,
        }
        for number, lane in enumerate(self.lanes):
            if lane.adviser is not None:
                self._size(number, lane)

    def add_lane(self, lane: Lane) -> int:
        """For runs whose tasks are not known beforehand."""
        self.lanes.append(lane)
        number = self.contract.add_lane(lane.resources, lane.cap)
        if lane.adviser is not None:
            self._size(number, lane)
        return number

    def _size(self, number: int, lane: Lane) -> None:
        """Asks how much tasks of this lane get from now on of what they did not declare."""
        assert lane.adviser is not None
        sizes = lane.adviser.ask(lane.tried)
        if sizes != lane.sizes:
            lane.sizes = sizes
            self.contract.change_lane(number, lane.request())

    def handle(self, now: float, event: Event) -> list[Command]:
        """Takes what happened, answers with what to do, in the order in which it must be done."""
        commands: list[Command] = []
        self.take_in(now, event, commands)
        return commands

    def take_in(self, now: float, event: Event, commands: list[Command]) -> None:
        """As `handle`, for whoever has a list of commands already."""
        self._handlers[type(event)](now, event, commands)
        self.awaiting_ready = type(event) is TasksEnded and event.ready_follows and _accepts_any(commands)
        self.advance(commands)

    def advance(self, commands: list[Command]) -> None:
        """Starts what can be started, and asks to be woken if something rests."""
        if self.queue and not self.draining and not self.awaiting_ready:
            if self._nearly_empty:
                self._refill(commands)
            self._start_what_fits(commands)
        while self.resting and self.state.get(self.resting[0][1]) is not TaskState.RESTING:
            heappop(self.resting)
        if self.resting:
            commands.append(WakeAt(self.resting[0][0]))

    def idle(self) -> bool:
        """Nothing queued, running or waiting for its next attempt."""
        return not self.state

    def _move(self, task: int, move: StateChange) -> None:
        after = TRANSITIONS[self.state.get(task, TaskState.ABSENT), move]
        if after is TaskState.ABSENT:
            self._forget(task)
        else:
            self.state[task] = after

    def _forget(self, task: int) -> None:
        del self.state[task]
        self.attempt.pop(task, None)
        if self.failures:
            self.failures.pop(task, None)
        if self.losses:
            self.losses.pop(task, None)
        if self.exhausted:
            self.exhausted.pop(task, None)
        if self.cramped:
            self.cramped.pop(task, None)

    def _on_ready(self, now: float, event: TasksReady, commands: list[Command]) -> None:
        tasks = reversed(event.tasks) if self.queue.newest_first else event.tasks
        unable: list[int] = []
        hopeless, lane_of, push = self.contract.hopeless, self.columns.lane, self.queue.push
        for task in tasks:
            self._move(task, StateChange.ARRIVE)
            if hopeless and lane_of[task] in hopeless:
                unable.append(task)
            else:
                push(task)
        for task in unable:
            self._move(task, StateChange.FAIL)
            commands.append(GiveUp(task, 0, AttemptOutcome.FAILED))

    def receive(self, tickets: Sequence[ReadyTask]) -> None:
        """Takes over ready tasks with what another broker knew of them; `advance` starts them."""
        self.awaiting_ready = False
        push, state = self.queue.push, self.state
        for ticket in reversed(tickets) if self.queue.newest_first else tickets:
            task = ticket.task
            state[task] = ARRIVED[state.get(task, TaskState.ABSENT)]
            if ticket.attempt:
                self.attempt[task] = ticket.attempt
            if ticket.failures:
                self.failures[task] = ticket.failures
            if ticket.losses:
                self.losses[task] = ticket.losses
            if ticket.cramped is not None:
                self.cramped[task] = ticket.cramped
            push(task)

    def give_away(self, tasks: Sequence[int]) -> list[ReadyTask]:
        """Lets go of tasks that do not run; another broker has them from now on."""
        tickets = []
        for task in tasks:
            failures, losses = self.failures.get(task, 0), self.losses.get(task, 0)
            tickets.append(ReadyTask(task, self.attempt.get(task, 0), failures, losses, self.cramped.get(task)))
            if self.state[task] is TaskState.QUEUED:
                self.queue.remove(task)
            self._move(task, StateChange.LEAVE)
        return tickets

    def _on_ended(self, now: float, event: TasksEnded, commands: list[Command]) -> None:
        for result in event.results:
            task = result.task
            bundle = self.running.get(task)
            if bundle is None or self.attempt[task] != result.attempt:
                continue  # fenced: a late word about an attempt that is over
            del self.running[task]
            bundle.left -= 1
            if not bundle.left:
                self.contract.give_back(bundle.taken)
            elif bundle.left == bundle.low:
                self._nearly_empty.append(bundle)
            if result.outcome is AttemptOutcome.OK:
                lane = self.lanes[bundle.lane]
                mean, duration = lane.mean_duration, result.duration
                lane.mean_duration = duration if mean is None else mean + 0.1 * (duration - mean)
                if self.queue.learns:
                    self.queue.learn(task, result.duration)
                if lane.adviser is not None and result.used != NOTHING and lane.is_worth_learning(result.used):
                    tried = self.exhausted.get(task, NONE_TRIED)
                    lane.adviser.observe(result.used, result.duration, tried, bundle.sizes)
                    self._size(bundle.lane, lane)
                assert self.state[task] in SUCCEEDED
                self._forget(task)
                commands.append(Accept(task, result.attempt))
            elif result.outcome is AttemptOutcome.EXHAUSTED and bundle.condemned >= 0:
                self._on_exhausted(result, bundle, commands)
            else:
                self._on_unsuccessful(now, result, commands)

    def _on_grown(self, now: float, event: TaskGrew, commands: list[Command]) -> None:
        """Reckons with what the task really uses. If the node has not got so much, the task must go."""
        bundle = self.running.get(event.task)
        if bundle is None or self.attempt[event.task] != event.attempt:
            return
        name, at = event.resource, SIZED.index(event.resource)
        if not 0 < bundle.sizes[at] < event.amount:
            return
        bundle.taken = self.contract.raise_to(bundle.taken, name, event.amount)
        bundle.sizes = (*bundle.sizes[:at], event.amount, *bundle.sizes[at + 1 :])
        # Others may use less than was expected of them: what counts is what is really in use, if that is known.
        room = self.contract.capacity(name)
        too_much = event.total > room if event.total else self.contract.is_overcommitted(name)
        if too_much and bundle.condemned < 0:
            bundle.condemned = at
            if self.state[event.task] is TaskState.RUNNING:
                commands.append(Kill(event.task, event.attempt, AttemptOutcome.EXHAUSTED))

    def _on_exhausted(self, result: TaskResult, bundle: LaneBundle, commands: list[Command]) -> None:
        """The size was ours and it was too small: the task tries a larger one, as long as there is one."""
        task, lane, at = result.task, self.lanes[bundle.lane], bundle.condemned
        assert lane.adviser is not None
        if self.state[task] is TaskState.ENDING:
            self._move(task, StateChange.FAIL)
            commands.append(GiveUp(task, result.attempt, AttemptOutcome.CANCELLED))
            return
        tried = self.exhausted.get(task, NONE_TRIED)
        lane.adviser.observe(result.used, result.duration, tried, bundle.sizes, at)
        self._size(bundle.lane, lane)
        tried = self.exhausted[task] = with_size(tried, at, bundle.sizes[at])
        if not lane.adviser.hopeless(tried):
            number = self._lane_for_larger(bundle.lane, lane, tried)
            if self.contract.could_fit(number):
                self.columns.lane[task] = number
                commands.append(Retry(task, result.attempt, AttemptOutcome.EXHAUSTED, 0.0))
                self._move(task, StateChange.REQUEUE)
                self.queue.push(task)
                return
        self._move(task, StateChange.FAIL)
        commands.append(GiveUp(task, result.attempt, AttemptOutcome.EXHAUSTED))

    def origin(self, lane: int) -> int:
        """The lane whose tasks a lane was made for; a lane that was there from the beginning is its own."""
        return self.lanes[lane].origin if self.lanes[lane].origin >= 0 else lane

    def _lane_for_larger(self, number: int, lane: Lane, tried: Tried) -> int:
        """The lane of tasks that have exhausted as many sizes; it gets what the largest of these asks for."""
        origin = self.origin(number)
        key = (origin, *map(len, tried))
        found = self._larger.get(key)
        if found is None:
            larger = Lane(lane.resources, lane.retries, adviser=lane.adviser, tried=tried, origin=origin)
            larger.cap, larger.elastic = lane.cap, lane.elastic
            found = self._larger[key] = self.add_lane(larger)
        else:
            larger = self.lanes[found]
            larger.tried = larger_of(larger.tried, tried)
            self._size(found, larger)
        return found

    def _on_unsuccessful(self, now: float, result: TaskResult, commands: list[Command]) -> None:
        task, outcome = result.task, result.outcome
        if self.state[task] is TaskState.ENDING:
            self._move(task, StateChange.FAIL)
            commands.append(GiveUp(task, result.attempt, AttemptOutcome.CANCELLED))
            return
        if outcome not in (AttemptOutcome.UNBEGUN, AttemptOutcome.NO_ROOM):
            counter = self.losses if outcome is AttemptOutcome.LOST else self.failures
            counter[task] = counter.get(task, 0) + 1
        elif outcome is AttemptOutcome.NO_ROOM and task not in self.cramped:
            self.cramped[task] = Cramped(result.need)
        delay = None
        lane = self.columns.lane[task]
        if outcome is not AttemptOutcome.CANCELLED and (self.has_peers or self.contract.could_fit(lane)):
            retries = self.lanes[lane].retries
            delay = retry_delay(
                outcome, self.failures.get(task, 0), self.losses.get(task, 0), retries, self.retry_pause
            )
        if delay is None:
            self._move(task, StateChange.FAIL)
            commands.append(GiveUp(task, result.attempt, outcome))
            return
        commands.append(Retry(task, result.attempt, outcome, delay))
        if delay:
            self._move(task, StateChange.REST)
            heappush(self.resting, (now + delay, task))
        else:
            self._move(task, StateChange.REQUEUE)
            self.queue.push(task)

    def _on_cancel(self, now: float, event: CancelRequested, commands: list[Command]) -> None:
        for task in event.tasks:
            state = self.state.get(task, TaskState.ABSENT)
            if state in (TaskState.ABSENT, TaskState.ENDING):
                continue
            attempt = self.attempt.get(task, 0)
            self._move(task, StateChange.CANCEL)
            if state is TaskState.RUNNING:
                commands.append(Kill(task, attempt))
                continue
            if state is TaskState.QUEUED:
                self.queue.remove(task)
            commands.append(GiveUp(task, attempt, AttemptOutcome.CANCELLED))

    def _on_capacity(self, now: float, event: CapacityChanged, commands: list[Command]) -> None:
        """Nothing may wait for a node that has become too small: neither in the queue nor for its next attempt."""
        self.contract.resize(event.node)
        self.queue.serve(whole_cores(event.node))
        for number, lane in enumerate(self.lanes):
            if lane.adviser is not None:
                lane.adviser.resize(event.node)
                self._size(number, lane)
        hopeless = [lane for lane in range(len(self.lanes)) if not self.contract.could_fit(lane)]
        if not hopeless:
            return
        for task in [*self.queue.waiting(), *(task for _, task in sorted(self.resting))]:
            state = self.state.get(task)
            if self.columns.lane[task] not in hopeless or state not in (TaskState.QUEUED, TaskState.RESTING):
                continue
            attempt = self.attempt.get(task, 0)
            if state is TaskState.QUEUED:
                self.queue.remove(task)
            self._move(task, StateChange.FAIL)
            commands.append(GiveUp(task, attempt, AttemptOutcome.FAILED))

    def _on_caps(self, now: float, event: CapsChanged, commands: list[Command]) -> None:
        for name, count in event.caps.items():
            self.contract.set_cap(name, count)

    def _on_drain(self, now: float, event: DrainRequested, commands: list[Command]) -> None:
        self.draining = True

    def _on_drain_ended(self, now: float, event: DrainEnded, commands: list[Command]) -> None:
        self.draining = False

    def _on_time(self, now: float, event: TimePassed, commands: list[Command]) -> None:
        while self.resting and self.resting[0][0] <= now:
            _, task = heappop(self.resting)
            if self.state.get(task) is TaskState.RESTING:
                self._move(task, StateChange.WAKE)
                self.queue.push(task)

    def _start_what_fits(self, commands: list[Command]) -> None:
        queue, contract = self.queue, self.contract
        while queue:
            fitting = list(queue.lanes())
            if len(fitting) == 1:  # nearly always, and this is run for every task
                lane_number = fitting[0]
                taken = contract.take_if_it_fits(lane_number)
                if taken is None:
                    return
                task = queue.pop(fitting)
                lane = self.lanes[lane_number]
            else:
                fitting = self._lanes_whose_turn_it_is(fitting)
                if not fitting:
                    return
                task = queue.pop(fitting)
                lane_number = self.columns.lane[task]
                lane = self.lanes[lane_number]
                taken = contract.take(lane_number)
            lane.passed_over = 0
            tasks = [task]
            if lane.bundled:
                for _ in range(self._bundle_share(lane_number, lane) - 1):
                    tasks.append(queue.pop([lane_number]))
            self.places += 1
            low = len(tasks) // 4 if lane.refilled else 0
            bundle = LaneBundle(lane_number, len(tasks), taken, self.places, low, lane.sizes)
            commands.append(self._start(tasks, bundle))

    def _lanes_whose_turn_it_is(self, queued: list[int]) -> list[int]:
        """Those that fit and are not in the way of one that has waited for long; if there are any, the others wait."""
        lanes, fits = self.lanes, self.contract.fits
        if self.contract.caps:  # whom the throttle holds back is not passed over, and nobody keeps room for it
            held_back = self.contract.is_held_back
            queued = [number for number in queued if not held_back(number)]
        waiting = [number for number in queued if not fits(number)]
        urgent = [number for number in queued if lanes[number].passed_over >= self.patience]
        fitting = [number for number in queued if number not in waiting] if waiting else queued
        if urgent:
            fitting = self._not_in_the_way(fitting, urgent)
        for other in waiting if fitting else ():
            if lanes[other].passed_over < self.patience:
                lanes[other].passed_over += 1
        return fitting

    def _refill(self, commands: list[Command]) -> None:
        """Adds to places that have little left, so that they need not wait; only while no other lane wants its turn."""
        nearly_empty, self._nearly_empty = self._nearly_empty, []
        for bundle in nearly_empty:
            if not bundle.left or list(self.queue.lanes()) != [bundle.lane] or self.contract.is_over_cap(bundle.lane):
                continue
            share = self._bundle_share(bundle.lane, self.lanes[bundle.lane])
            tasks = [self.queue.pop([bundle.lane]) for _ in range(share)]
            bundle.left += share
            bundle.low = share // 4
            commands.append(self._start(tasks, bundle))

    def _not_in_the_way(self, fitting: list[int], urgent: list[int]) -> list[int]:
        """Of the lanes that fit: the urgent ones if there are any, else those that leave the urgent ones their part."""
        first = [number for number in fitting if number in urgent]
        if first:
            return first
        leaves_room = self.contract.leaves_room
        return [number for number in fitting if all(leaves_room(number, other) for other in urgent)]

    def _bundle_share(self, lane_number: int, lane: Lane) -> int:
        """Tasks to hand over at once: never more than an even share of the lane, so that no place idles at the end."""
        size = lane.bundle_size()
        if size == 1:
            return 1
        left = self.queue.queued_in(lane_number)
        places = max(1, self.contract.places(lane_number))
        return max(1, min(size, 1 + left // (2 * places)))

    def _start(self, tasks: list[int], bundle: LaneBundle) -> Start:
        attempts = []
        state, known, running = self.state, self.attempt, self.running
        for task in tasks:
            state[task] = STARTED[state[task]]
            attempt = known.get(task, 0) + 1
            known[task] = attempt
            running[task] = bundle
            attempts.append(attempt)
        # Short tasks are over before anybody could look at what they use: a limit would only cost.
        sizes = bundle.sizes
        if sizes is not NOTHING and self.lanes[bundle.lane].bundle_size() > 1:
            sizes = NOTHING
        return Start(tuple(tasks), tuple(attempts), bundle.place, sizes)
