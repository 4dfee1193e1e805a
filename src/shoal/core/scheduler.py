"""The scheduler of one node: `handle(now, event) -> [command]` is its whole interface.

The scheduler keeps the tasks that are ready, running or waiting for a retry. It decides which task starts next and what
happens after a failed attempt. Runtime and simulator drive this same class. It reads no clock, starts no process and
forgets a task once the task is over.

Fencing. Every attempt has a number. A report about an attempt that is not the current one is ignored, so a late message
about a lost or repeated attempt cannot change the state of the task.

Lanes. Tasks with the same resource request share a lane. Only lanes that fit into the free resources may start tasks.
A wide lane would starve behind a stream of narrow tasks. Therefore each start from another lane is counted against a
lane that does not fit. A lane that was passed over too often gets a reservation: the free part of its request is kept
back, and other lanes start only on the rest. A task that waits for the only GPU thus blocks one core, not all cores.

Bundles. Python calls of a few microseconds are started several at a time (`Start.tasks`): as many as fill
`BUNDLE_SECONDS` by the mean duration of the lane. The tasks of a bundle run one after another in one place (a worker),
so a bundle takes the resources of one task. If the runner allows it, a place is refilled before it runs empty.

Sizes. For resources that the user did not declare, an adviser (`shoal.core.policies.sizing`) learns from finished
attempts how much to reserve. A task that uses more than its reserved size keeps running with a larger reservation, and
nothing else starts until the resources suffice again. If the node does not have enough, the task that grew last is
killed and repeated in a lane with larger sizes; this does not count as a failure of the task. A task that exceeds
what the user declared fails.

Caps. A throttle may limit how many places the lanes under one cap use at a time (`CapsChanged`). When a cap is lowered,
running tasks continue, and no task of these lanes starts until enough of them have ended.
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
    """State of a task in its scheduler."""

    ABSENT = 0
    """Unknown to the scheduler: not yet ready, or over."""
    QUEUED = 1
    RUNNING = 2
    RESTING = 3
    """Waits for its next attempt; the retry delay has not passed yet."""
    ENDING = 4
    """Running; a kill has been requested."""


class StateChange(IntEnum):
    """Events in the life of a task; each allows certain state transitions."""

    ARRIVE = 0
    START = 1
    SUCCEED = 2
    FAIL = 3
    """The task is over without a result: its last attempt failed, or the node has become too small for it."""
    REST = 4
    """The attempt failed; the next one follows after a delay."""
    REQUEUE = 5
    """The attempt failed; the next one may start immediately."""
    WAKE = 6
    CANCEL = 7
    LEAVE = 8
    """The task moves to another scheduler."""


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
    """The transitions of one state change: new state by old state."""
    return {TaskState(before): after for (before, other), after in TRANSITIONS.items() if other == move}


BUNDLE_SECONDS = 0.05
LARGEST_BUNDLE = 512
ONE_IN = 16
"""For short tasks the adviser observes one result in N."""


class Adviser(Protocol):
    """Decides how much of each resource in `SIZED` the next attempt gets; learns from finished attempts."""

    def ask(self, tried: Tried) -> Amounts:
        """Sizes for an attempt of a task that has exhausted the sizes in `tried`; 0 for a resource without a size."""

    def hopeless(self, tried: Tried) -> bool:
        """Whether the task has exhausted everything that the node has of a resource."""

    def observe(self, used: Amounts, duration: float, tried: Tried, sizes: Amounts, exhausted: int = -1) -> None:
        """Learns from an attempt with these sizes. `exhausted` is the resource whose size it exceeded, or -1."""

    def resize(self, node: Resources) -> None:
        """Sets new total resources of the node."""


class Lane(msgspec.Struct):
    """What the tasks of one lane have in common, and what was learned about them."""

    resources: Resources
    retries: int = 0
    bundled: bool = False
    refilled: bool = False
    """Whether a running bundle of this lane accepts more tasks."""
    mean_duration: float | None = None
    """Moving average over finished attempts, in seconds."""
    passed_over: int = 0
    adviser: Adviser | None = None
    """Sizes the resources that the tasks do not declare."""
    tried: Tried = NONE_TRIED
    """Sizes that the tasks of this lane have exhausted; only in lanes that the scheduler created for them."""
    sizes: Amounts = NOTHING
    """Latest sizes from the adviser."""
    origin: int = -1
    """The lane from which this lane was derived; -1 for lanes of the workflow."""
    unheard: int = ONE_IN - 1
    """Results since the adviser last observed one."""
    prefers: tuple[str, ...] = ()
    """Labels of preferred nodes. Tasks are pushed to such nodes if there are any."""
    cap: str = ""
    """Name of the cap that limits the places of this lane together with other lanes; empty: no cap."""
    elastic: bool = False
    """The user declared no cores and a throttle limits concurrency, so cores do not limit how many tasks run."""

    def is_worth_learning(self, used: Amounts) -> bool:
        """Whether the adviser should observe this result.

        Of short tasks within their size only 1 in `ONE_IN` is observed, because learning costs as much as such a task.
        """
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
        """The resources that one task takes: declared amounts, and learned sizes for the rest."""
        amounts = dict(self.resources.amounts)
        amounts.update((name, size) for name, size in zip(SIZED, self.sizes, strict=True) if size)
        if self.elastic:
            amounts.pop("cores", None)
        return Resources.of(amounts)


class LaneBundle(msgspec.Struct):
    """Tasks that were started together. They hold the resources of one task until the last of them ends."""

    lane: int
    left: int
    taken: list[tuple[int, int]]
    """Resources that the bundle holds, as pairs of index and amount."""
    place: int = 0
    low: int = 0
    """The bundle may be refilled when at most this many tasks are left."""
    sizes: Amounts = NOTHING
    """Sizes that the scheduler reserved for each task."""
    condemned: int = -1
    """Index in `SIZED` of the resource for which the task is being killed, because the node has too little; or -1."""


def with_size(tried: Tried, at: int, size: int) -> Tried:
    """`tried` after the task has exhausted this size of one resource."""
    return (*tried[:at], (*tried[at], size), *tried[at + 1 :])


def larger_of(one: Tried, other: Tried) -> Tried:
    """For each resource the larger list of exhausted sizes."""
    return tuple(
        mine if max(mine, default=0) >= max(theirs, default=0) else theirs
        for mine, theirs in zip(one, other, strict=True)
    )


__all__ = ["PASSED_OVER_LIMIT", "Adviser", "Lane", "Scheduler"]

PASSED_OVER_LIMIT = 64
ARRIVED, STARTED, SUCCEEDED = (moved_by(move) for move in (StateChange.ARRIVE, StateChange.START, StateChange.SUCCEED))


def whole_cores(node: Resources) -> int:
    """Whole cores of the node: N_c of the orders that depend on it."""
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
        """`queue` replaces the queue that `order` would create."""
        self.retry_pause = retry_pause
        self.columns = columns
        self.lanes = list(lanes)
        self.contract = Contract(node, [lane.resources for lane in lanes], [lane.cap for lane in lanes])
        self.queue = queue if queue is not None else ORDERS[order](columns, whole_cores(node), Random(seed))
        self.state: dict[int, TaskState] = {}
        self.attempt: dict[int, int] = {}
        """Number of the current or last attempt, for tasks that have started at least once and are not over."""
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.cramped: dict[int, Cramped] = {}
        """By task: the nodes that had no room for its inputs."""
        self.exhausted: dict[int, Tried] = {}
        """By task: the sizes that it has exhausted."""
        self._larger: dict[tuple[int, ...], int] = {}
        """Derived lanes, by original lane and number of exhausted sizes of each resource."""
        self.running: dict[int, LaneBundle] = {}
        self.resting: list[tuple[float, int]] = []
        """Heap of (time, task). Entries of tasks that are no longer resting are stale and skipped."""
        self.patience = patience
        """How often a lane may be passed over before resources are kept back for it."""
        self.draining = False
        self.has_peers = False
        """Other nodes may run what does not fit here, so tasks do not fail because this node has become too small."""
        self.places = 0
        """Number of the last place (worker) that was assigned."""
        self._nearly_empty: list[LaneBundle] = []
        self.awaiting_ready = False
        """A `TasksReady` event was announced; nothing starts before it arrives."""
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
        """Adds a lane during the run, for workflows whose tasks are not known in advance."""
        self.lanes.append(lane)
        number = self.contract.add_lane(lane.resources, lane.cap)
        if lane.adviser is not None:
            self._size(number, lane)
        return number

    def _size(self, number: int, lane: Lane) -> None:
        """Asks the adviser for the current sizes of the lane."""
        assert lane.adviser is not None
        sizes = lane.adviser.ask(lane.tried)
        if sizes != lane.sizes:
            lane.sizes = sizes
            self.contract.change_lane(number, lane.request())

    def handle(self, now: float, event: Event) -> list[Command]:
        """Processes one event. Returns commands in the order in which they must be executed."""
        commands: list[Command] = []
        self.take_in(now, event, commands)
        return commands

    def take_in(self, now: float, event: Event, commands: list[Command]) -> None:
        """As `handle`, but appends to an existing list and does not start tasks."""
        self._handlers[type(event)](now, event, commands)
        self.awaiting_ready = type(event) is TasksEnded and event.ready_follows and _accepts_any(commands)
        self.advance(commands)

    def advance(self, commands: list[Command]) -> None:
        """Starts what can start, and requests a wake-up if a task is resting."""
        if self.queue and not self.draining and not self.awaiting_ready:
            if self._nearly_empty:
                self._refill(commands)
            self._start_what_fits(commands)
        while self.resting and self.state.get(self.resting[0][1]) is not TaskState.RESTING:
            heappop(self.resting)
        if self.resting:
            commands.append(WakeAt(self.resting[0][0]))

    def idle(self) -> bool:
        """Whether no task is queued, running or resting."""
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
        """Takes over ready tasks from another scheduler, with their attempts and failures; `advance` starts them."""
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
        """Gives up queued or resting tasks and returns them for another scheduler."""
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
                continue  # fenced: a late report about an attempt that is over
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
        """Reserves what the task really uses. If the node does not have enough, the task is killed and repeated."""
        bundle = self.running.get(event.task)
        if bundle is None or self.attempt[event.task] != event.attempt:
            return
        name, at = event.resource, SIZED.index(event.resource)
        if not 0 < bundle.sizes[at] < event.amount:
            return
        bundle.taken = self.contract.raise_to(bundle.taken, name, event.amount)
        bundle.sizes = (*bundle.sizes[:at], event.amount, *bundle.sizes[at + 1 :])
        # Other tasks may use less than was reserved for them: the measured total counts, if it is known.
        room = self.contract.capacity(name)
        too_much = event.total > room if event.total else self.contract.is_overcommitted(name)
        if too_much and bundle.condemned < 0:
            bundle.condemned = at
            if self.state[event.task] is TaskState.RUNNING:
                commands.append(Kill(event.task, event.attempt, AttemptOutcome.EXHAUSTED))

    def _on_exhausted(self, result: TaskResult, bundle: LaneBundle, commands: list[Command]) -> None:
        """The learned size was too small: the task is repeated with a larger one, as long as the node has more."""
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
        """The lane from which this lane was derived; a lane of the workflow is its own origin."""
        return self.lanes[lane].origin if self.lanes[lane].origin >= 0 else lane

    def _lane_for_larger(self, number: int, lane: Lane, tried: Tried) -> int:
        """The derived lane of tasks that have exhausted as many sizes; its size covers the largest of them."""
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
        """Gives up tasks that no longer fit on the node, both queued and resting ones: they would wait forever."""
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
            if len(fitting) == 1:  # the common case; this code runs for every task
                lane_number = fitting[0]
                taken = contract.take_if_it_fits(lane_number)
                if taken is None:
                    return
                task = queue.pop(fitting)
                lane = self.lanes[lane_number]
            else:
                fitting = self._eligible_lanes(fitting)
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

    def _eligible_lanes(self, queued: list[int]) -> list[int]:
        """Lanes that fit and do not use resources kept back for a lane that was passed over too often."""
        lanes, fits = self.lanes, self.contract.fits
        if self.contract.caps:  # a lane at its cap is held back by the throttle, not passed over: keep nothing for it
            held_back = self.contract.is_held_back
            queued = [number for number in queued if not held_back(number)]
        waiting = [number for number in queued if not fits(number)]
        urgent = [number for number in queued if lanes[number].passed_over >= self.patience]
        fitting = [number for number in queued if number not in waiting] if waiting else queued
        if urgent:
            fitting = self._respecting_reservations(fitting, urgent)
        for other in waiting if fitting else ():
            if lanes[other].passed_over < self.patience:
                lanes[other].passed_over += 1
        return fitting

    def _refill(self, commands: list[Command]) -> None:
        """Adds tasks to bundles that run low, so that their places need not wait; only while no lane is urgent."""
        nearly_empty, self._nearly_empty = self._nearly_empty, []
        for bundle in nearly_empty:
            if not bundle.left or list(self.queue.lanes()) != [bundle.lane] or self.contract.is_over_cap(bundle.lane):
                continue
            share = self._bundle_share(bundle.lane, self.lanes[bundle.lane])
            tasks = [self.queue.pop([bundle.lane]) for _ in range(share)]
            bundle.left += share
            bundle.low = share // 4
            commands.append(self._start(tasks, bundle))

    def _respecting_reservations(self, fitting: list[int], urgent: list[int]) -> list[int]:
        """Of the lanes that fit: the urgent ones if any, else those that leave the reserved resources free."""
        first = [number for number in fitting if number in urgent]
        if first:
            return first
        leaves_room = self.contract.leaves_room
        return [number for number in fitting if all(leaves_room(number, other) for other in urgent)]

    def _bundle_share(self, lane_number: int, lane: Lane) -> int:
        """Tasks of one bundle: at most an even share of the lane, so that no place is idle at the end of the run."""
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
        # Short tasks end before their use can be measured: a limit would only cost time.
        sizes = bundle.sizes
        if sizes is not NOTHING and self.lanes[bundle.lane].bundle_size() > 1:
            sizes = NOTHING
        return Start(tuple(tasks), tuple(attempts), bundle.place, sizes)
