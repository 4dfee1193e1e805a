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

Sizes. Where nobody declared how much memory the tasks of a lane need, an adviser (`shoal.policy.sizing`) says how much
to reckon with, learning from how attempts end. A task that turns out to use more than that holds more, and nothing else
starts until there is room again; only if the node has not got it, the task that grew last is ended, and repeated in
another lane, of those that get more. That is not charged to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import msgspec

from shoal.broker.messages import (
    Accept,
    CancelAsked,
    CapacityChanged,
    Command,
    DrainAsked,
    DrainEnded,
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
from shoal.broker.states import TRANSITIONS, Move, State
from shoal.model.resources import FRACTION, Resources
from shoal.policy.contract import Contract
from shoal.policy.order import DEFAULT_ORDER, ORDERS, TaskColumns
from shoal.policy.retry import FIRST_DELAY, Outcome, retry_delay

BUNDLE_SECONDS = 0.05
LARGEST_BUNDLE = 512
PASSED_OVER_LIMIT = 64
ONE_IN = 16
"""Share of the results of short tasks that an adviser is told of."""


class Adviser(Protocol):
    """Says how much memory the next attempt gets, and learns from how attempts end."""

    def ask(self, tried: Sequence[float] = ()) -> float:
        """The size for an attempt at a task that has exhausted the sizes in `tried`."""

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Whether a task has exhausted all there is."""

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """An attempt has ended by itself with this peak, or over its limit `exhausted_at`."""


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
    """Who says how much memory its tasks get, if they did not say it themselves."""
    tried: tuple[int, ...] = ()
    """Sizes that the tasks of this lane have exhausted; only in lanes that the broker made for them."""
    size: int = 0
    """What the adviser said last."""
    origin: int = -1
    """The lane that its tasks came from, if the broker made it."""
    unheard: int = 0
    """Results since the last one that the adviser was told of."""

    def learn(self, duration: float) -> None:
        mean = self.mean_duration
        self.mean_duration = duration if mean is None else mean + 0.1 * (duration - mean)

    def is_worth_learning(self, peak: int) -> bool:
        """Of short tasks that stay within their size one in so many is enough; learning costs as much as they do."""
        if self.bundle_size() == 1 or peak > self.size:
            return True
        self.unheard = (self.unheard + 1) % ONE_IN
        return not self.unheard

    def bundle_size(self) -> int:
        if not self.bundled or self.mean_duration is None:
            return 1
        return max(1, min(LARGEST_BUNDLE, int(BUNDLE_SECONDS / max(self.mean_duration, 1e-7))))


class Bundle(msgspec.Struct):
    """Tasks that were started together and hold one lane's resources until the last of them ends."""

    lane: int
    left: int
    taken: list[tuple[int, int]]
    """What it holds of the node."""
    place: int = 0
    low: int = 0
    """When no more than so many are left, more may be added."""
    size: int = 0
    """The memory that is reckoned with for each of its tasks, if the broker decided that."""
    condemned: bool = False
    """Its task was told to end because it used more than the node has."""


def whole_cores(node: Resources) -> int:
    """N_c of the orders that look at it."""
    return max(1, node.get("cores") // FRACTION)


def _accepts_any(commands: list[Command]) -> bool:
    for command in commands:
        if type(command) is Accept:
            return True
    return False


class Broker:
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
    ) -> None:
        self.retry_pause = retry_pause
        self.columns = columns
        self.lanes = list(lanes)
        self.contract = Contract(node, [lane.resources for lane in lanes])
        self.queue = ORDERS[order](columns, whole_cores(node), Random(seed))
        self.state: dict[int, State] = {}
        self.attempt: dict[int, int] = {}
        """Number of the current or last attempt, for tasks that were started at least once and are not over."""
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.exhausted: dict[int, tuple[int, ...]] = {}
        """Sizes that tasks have exhausted."""
        self._larger: dict[tuple[int, int], int] = {}
        """Lanes made for tasks of a lane that have exhausted so many sizes."""
        self.running: dict[int, Bundle] = {}
        self.resting: list[tuple[float, int]] = []
        """Heap of (when, task); an entry whose task is no longer resting is dead."""
        self.patience = patience
        """How often a lane may be passed over before room is kept for it."""
        self.draining = False
        self.places = 0
        """Number of the last place."""
        self._nearly_empty: list[Bundle] = []
        self.awaiting_ready = False
        """A `TasksReady` was announced: starts wait for it."""
        self._handlers: dict[type, Callable[..., None]] = {
            TasksReady: self._on_ready,
            TasksEnded: self._on_ended,
            TaskGrew: self._on_grown,
            CancelAsked: self._on_cancel,
            CapacityChanged: self._on_capacity,
            DrainAsked: self._on_drain,
            DrainEnded: self._on_drain_ended,
            TimePassed: self._on_time,
        }
        for number, lane in enumerate(self.lanes):
            if lane.adviser is not None:
                self._size(number, lane)

    def add_lane(self, lane: Lane) -> int:
        """For runs whose tasks are not known beforehand."""
        self.lanes.append(lane)
        number = self.contract.add_lane(lane.resources)
        if lane.adviser is not None:
            self._size(number, lane)
        return number

    def _size(self, number: int, lane: Lane) -> None:
        """Asks how much memory tasks of this lane get from now on."""
        assert lane.adviser is not None
        size = round(lane.adviser.ask(lane.tried))
        if size != lane.size:
            lane.size = size
            self.contract.change_lane(number, Resources.of({**dict(lane.resources.amounts), "memory": size}))

    def handle(self, now: float, event: Event) -> list[Command]:
        """Takes what happened, answers with what to do, in the order in which it must be done."""
        commands: list[Command] = []
        self._handlers[type(event)](now, event, commands)
        self.awaiting_ready = type(event) is TasksEnded and event.ready_follows and _accepts_any(commands)
        if self.queue and not self.draining and not self.awaiting_ready:
            if self._nearly_empty:
                self._refill(commands)
            self._start_what_fits(commands)
        while self.resting and self.state.get(self.resting[0][1]) is not State.RESTING:
            heappop(self.resting)
        if self.resting:
            commands.append(WakeAt(self.resting[0][0]))
        return commands

    def idle(self) -> bool:
        """Nothing queued, running or waiting for its next attempt."""
        return not self.state

    def _move(self, task: int, move: Move) -> None:
        after = TRANSITIONS[self.state.get(task, State.ABSENT), move]
        if after is State.ABSENT:
            del self.state[task]
            self.attempt.pop(task, None)
            if self.failures:
                self.failures.pop(task, None)
            if self.losses:
                self.losses.pop(task, None)
            if self.exhausted:
                self.exhausted.pop(task, None)
        else:
            self.state[task] = after

    def _on_ready(self, now: float, event: TasksReady, commands: list[Command]) -> None:
        tasks = reversed(event.tasks) if self.queue.newest_first else event.tasks
        unable: list[int] = []
        hopeless, lane_of, push = self.contract.hopeless, self.columns.lane, self.queue.push
        for task in tasks:
            self._move(task, Move.ARRIVE)
            if hopeless and lane_of[task] in hopeless:
                unable.append(task)
            else:
                push(task)
        for task in unable:
            self._move(task, Move.FAIL)
            commands.append(GiveUp(task, 0, Outcome.FAILED))

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
            if result.outcome is Outcome.OK:
                lane = self.lanes[bundle.lane]
                lane.learn(result.duration)
                self.queue.learn(task, result.duration)
                if lane.adviser is not None and result.peak and lane.is_worth_learning(result.peak):
                    tried = self.exhausted.get(task, ())
                    lane.adviser.observe(result.peak, result.duration, None, tried, bundle.size)
                    self._size(bundle.lane, lane)
                self._move(task, Move.SUCCEED)
                commands.append(Accept(task, result.attempt))
            elif result.outcome is Outcome.EXHAUSTED and self.lanes[bundle.lane].adviser is not None:
                self._on_exhausted(result, bundle, commands)
            else:
                self._on_unsuccessful(now, result, commands)

    def _on_grown(self, now: float, event: TaskGrew, commands: list[Command]) -> None:
        """Reckons with what the task really uses. If the node has not got so much, the task must go."""
        bundle = self.running.get(event.task)
        if bundle is None or self.attempt[event.task] != event.attempt or event.memory <= bundle.size:
            return
        bundle.taken = self.contract.raise_to(bundle.taken, "memory", event.memory)
        bundle.size = event.memory
        # Others may use less than was expected of them: what counts is what is really in use, if that is known.
        room = self.contract.capacity("memory")
        too_much = event.total > room if event.total else self.contract.is_overcommitted("memory")
        if too_much and not bundle.condemned:
            bundle.condemned = True
            if self.state[event.task] is State.RUNNING:
                commands.append(Kill(event.task, event.attempt, Outcome.EXHAUSTED))

    def _on_exhausted(self, result: TaskResult, bundle: Bundle, commands: list[Command]) -> None:
        """The size was ours and it was too small: the task tries a larger one, as long as there is one."""
        task, lane = result.task, self.lanes[bundle.lane]
        assert lane.adviser is not None
        if self.state[task] is State.ENDING:
            self._move(task, Move.FAIL)
            commands.append(GiveUp(task, result.attempt, Outcome.CANCELLED))
            return
        tried = self.exhausted.get(task, ())
        lane.adviser.observe(max(result.peak, bundle.size), result.duration, bundle.size, tried)
        self._size(bundle.lane, lane)
        tried = self.exhausted[task] = (*tried, bundle.size)
        if not lane.adviser.hopeless(tried):
            number = self._lane_for_larger(bundle.lane, lane, tried)
            if self.contract.could_fit(number):
                self.columns.lane[task] = number
                commands.append(Retry(task, result.attempt, Outcome.EXHAUSTED, 0.0))
                self._move(task, Move.REQUEUE)
                self.queue.push(task)
                return
        self._move(task, Move.FAIL)
        commands.append(GiveUp(task, result.attempt, Outcome.EXHAUSTED))

    def origin(self, lane: int) -> int:
        """The lane whose tasks a lane was made for; a lane that was there from the beginning is its own."""
        return self.lanes[lane].origin if self.lanes[lane].origin >= 0 else lane

    def _lane_for_larger(self, number: int, lane: Lane, tried: tuple[int, ...]) -> int:
        """The lane of tasks that have exhausted as many sizes; it gets what the largest of these asks for."""
        found = self._larger.get((number, len(tried)))
        if found is None:
            larger = Lane(lane.resources, lane.retries, adviser=lane.adviser, tried=tried, origin=self.origin(number))
            found = self._larger[number, len(tried)] = self.add_lane(larger)
        else:
            larger = self.lanes[found]
            if max(tried) > max(larger.tried):
                larger.tried = tried
            self._size(found, larger)
        return found

    def _on_unsuccessful(self, now: float, result: TaskResult, commands: list[Command]) -> None:
        task, outcome = result.task, result.outcome
        if self.state[task] is State.ENDING:
            self._move(task, Move.FAIL)
            commands.append(GiveUp(task, result.attempt, Outcome.CANCELLED))
            return
        if outcome is not Outcome.UNBEGUN:
            counter = self.losses if outcome is Outcome.LOST else self.failures
            counter[task] = counter.get(task, 0) + 1
        delay = None
        lane = self.columns.lane[task]
        if outcome is not Outcome.CANCELLED and self.contract.could_fit(lane):
            retries = self.lanes[lane].retries
            delay = retry_delay(
                outcome, self.failures.get(task, 0), self.losses.get(task, 0), retries, self.retry_pause
            )
        if delay is None:
            self._move(task, Move.FAIL)
            commands.append(GiveUp(task, result.attempt, outcome))
            return
        commands.append(Retry(task, result.attempt, outcome, delay))
        if delay:
            self._move(task, Move.REST)
            heappush(self.resting, (now + delay, task))
        else:
            self._move(task, Move.REQUEUE)
            self.queue.push(task)

    def _on_cancel(self, now: float, event: CancelAsked, commands: list[Command]) -> None:
        for task in event.tasks:
            state = self.state.get(task, State.ABSENT)
            if state in (State.ABSENT, State.ENDING):
                continue
            attempt = self.attempt.get(task, 0)
            self._move(task, Move.CANCEL)
            if state is State.RUNNING:
                commands.append(Kill(task, attempt))
                continue
            if state is State.QUEUED:
                self.queue.remove(task)
            commands.append(GiveUp(task, attempt, Outcome.CANCELLED))

    def _on_capacity(self, now: float, event: CapacityChanged, commands: list[Command]) -> None:
        """Nothing may wait for a node that has become too small: neither in the queue nor for its next attempt."""
        self.contract.resize(event.node)
        self.queue.serve(whole_cores(event.node))
        hopeless = [lane for lane in range(len(self.lanes)) if not self.contract.could_fit(lane)]
        if not hopeless:
            return
        for task in [*self.queue.waiting(), *(task for _, task in sorted(self.resting))]:
            state = self.state.get(task)
            if self.columns.lane[task] not in hopeless or state not in (State.QUEUED, State.RESTING):
                continue
            attempt = self.attempt.get(task, 0)
            if state is State.QUEUED:
                self.queue.remove(task)
            self._move(task, Move.FAIL)
            commands.append(GiveUp(task, attempt, Outcome.FAILED))

    def _on_drain(self, now: float, event: DrainAsked, commands: list[Command]) -> None:
        self.draining = True

    def _on_drain_ended(self, now: float, event: DrainEnded, commands: list[Command]) -> None:
        self.draining = False

    def _on_time(self, now: float, event: TimePassed, commands: list[Command]) -> None:
        while self.resting and self.resting[0][0] <= now:
            _, task = heappop(self.resting)
            if self.state.get(task) is State.RESTING:
                self._move(task, Move.WAKE)
                self.queue.push(task)

    def _start_what_fits(self, commands: list[Command]) -> None:
        queue, contract = self.queue, self.contract
        while queue:
            fitting, waiting, urgent = [], [], []
            for number in queue.lanes():
                if contract.fits(number):
                    fitting.append(number)
                else:
                    waiting.append(number)
                if self.lanes[number].passed_over >= self.patience:
                    urgent.append(number)
            if urgent:
                fitting = self._not_in_the_way(fitting, urgent)
            if not fitting:
                return
            task = queue.pop(fitting)
            lane_number = self.columns.lane[task]
            lane = self.lanes[lane_number]
            lane.passed_over = 0
            for other in waiting:
                if self.lanes[other].passed_over < self.patience:
                    self.lanes[other].passed_over += 1
            taken = contract.take(lane_number)
            tasks = [task]
            for _ in range(self._bundle_share(lane_number, lane) - 1):
                tasks.append(queue.pop([lane_number]))
            self.places += 1
            low = len(tasks) // 4 if lane.refilled else 0
            bundle = Bundle(lane_number, len(tasks), taken, self.places, low, lane.size)
            commands.append(self._start(tasks, bundle))

    def _refill(self, commands: list[Command]) -> None:
        """Adds to places that have little left, so that they need not wait; only while no other lane wants its turn."""
        nearly_empty, self._nearly_empty = self._nearly_empty, []
        for bundle in nearly_empty:
            if not bundle.left or list(self.queue.lanes()) != [bundle.lane]:
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

    def _start(self, tasks: list[int], bundle: Bundle) -> Start:
        attempts = []
        for task in tasks:
            self._move(task, Move.START)
            attempt = self.attempt.get(task, 0) + 1
            self.attempt[task] = attempt
            self.running[task] = bundle
            attempts.append(attempt)
        # Short tasks are over before anybody could look at what they use: a limit would only cost.
        limit = bundle.size if bundle.size and self.lanes[bundle.lane].bundle_size() == 1 else 0
        return Start(tuple(tasks), tuple(attempts), bundle.place, limit)
