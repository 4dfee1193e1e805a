"""The onlooker: follows events and commands with bookkeeping of its own and knows what must never happen.

`check_broker` asks whether the broker agrees with itself; the oracle asks whether what it does is right (design §5):
inputs exist before a start, one accepted result per task, attempts rise by one, no end without a cause, nothing about
a task that is over, and in the end every task is accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.core.dependencies import TaskStatus
from shoal.core.graph import Graph, topological_order
from shoal.core.policies.retry import LONGEST_DELAY, MOST_LOSSES, AttemptOutcome
from shoal.core.policies.sizing.adviser import SIZED
from shoal.core.resources import Resources
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    Command,
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
    WakeAt,
)
from shoal.sim.node import Violation


class TaskHistory(msgspec.Struct):
    """What the onlooker has seen of one task."""

    announced: bool = False
    attempt: int = 0
    running: bool = False
    unwanted: bool = False
    """Cancelled while it ran."""
    failures: int = 0
    losses: int = 0
    sizes: dict[str, int] = {}
    """What the last attempt was given of what is learned, or has come to use."""
    exhausted: dict[str, int] = {}
    """The most that was too little, by resource."""
    not_before: float = 0.0
    end: str = ""
    """`accepted`, the outcome it was given up for, or empty while it is not over."""


class Oracle:
    """`before` and `after` every event, `cancelled_waiting` beside the broker, `finish` in the end."""

    def __init__(self, graph: Graph, capacity: Resources, learned: Sequence[tuple[str, ...]] = ()) -> None:
        """`learned`: for each profile of the graph the resources whose sizes the broker decides."""
        self.graph = graph
        self.learned = learned
        self.capacity = capacity
        self.draining = False
        self.lives = [TaskHistory() for _ in range(len(graph))]
        self.needs = direct_needs(graph)
        self.fresh: dict[int, TaskResult] = {}
        """Results of this event that are the first word about a current attempt."""
        self.to_kill: dict[int, int] = {}
        self.grown: dict[int, tuple[int, str]] = {}
        """Tasks that use more than was expected of them: in which attempt, and of what."""
        self.doomed_by: dict[int, str] = {}
        """The resource that a task used too much of when it was last told to end for that."""
        self.asked: set[int] = set()
        self._watch: dict[type, Callable[..., None]] = {
            Start: self._on_start,
            Accept: self._on_accept,
            Retry: self._on_retry,
            GiveUp: self._on_give_up,
            Kill: self._on_kill,
        }

    def before(self, event: Event) -> None:
        self.fresh, self.to_kill = {}, {}
        match event:
            case TasksReady(tasks):
                for task in tasks:
                    self.lives[task].announced = True
            case TasksEnded(results):
                for result in results:
                    life = self.lives[result.task]
                    if life.running and life.attempt == result.attempt:
                        life.running = False
                        self.fresh[result.task] = result
            case TaskGrew(task, attempt, amount, resource=name):
                life = self.lives[task]
                if life.running and life.attempt == attempt:
                    life.sizes[name] = amount
                    self.grown[task] = (attempt, name)
            case CancelRequested(tasks):
                self._note_cancels(tasks)
            case CapacityChanged(node):
                self.capacity = node
            case DrainRequested():
                self.draining = True
            case DrainEnded():
                self.draining = False

    def _note_cancels(self, tasks: list[int]) -> None:
        for task in tasks:
            life = self.lives[task]
            self.asked.add(task)
            if life.running and not life.unwanted:
                life.unwanted = True
                self.to_kill[task] = life.attempt

    def after(self, now: float, commands: list[Command]) -> None:
        for command in commands:
            if not isinstance(command, WakeAt):
                self._watch[type(command)](now, command)
        if self.fresh:
            raise Violation(f"results that nothing came of: {self.fresh}")
        if self.to_kill:
            raise Violation(f"cancelled tasks that run on: {self.to_kill}")

    def _on_start(self, now: float, command: Start) -> None:
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            life = self.lives[task]
            self._expect_open(task, "started")
            if self.draining or not life.announced or life.running:
                raise Violation(f"task {task} starts while draining, before it is ready, or twice at once")
            if attempt != life.attempt + 1:
                raise Violation(f"task {task}: attempt {attempt} follows attempt {life.attempt}")
            if now < life.not_before:
                raise Violation(f"task {task} starts at {now}, before its rest is over at {life.not_before}")
            missing = [other for other in self.needs[task] if self.lives[other].end != "accepted"]
            if missing:
                raise Violation(f"task {task} starts before {missing} are made")
            life.attempt, life.running = attempt, True
            life.sizes = dict(zip(SIZED, command.sizes, strict=True))

    def _on_accept(self, now: float, command: Accept) -> None:
        self._expect_open(command.task, "accepted")
        result = self.fresh.pop(command.task, None)
        if result is None or result.attempt != command.attempt or result.outcome is not AttemptOutcome.OK:
            raise Violation(f"{command} without a success of the current attempt: {result}")
        self.lives[command.task].end = "accepted"

    def _on_retry(self, now: float, command: Retry) -> None:
        task, life = command.task, self.lives[command.task]
        self._expect_open(task, "retried")
        if life.unwanted or self._is_charged_off(task, command.attempt, command.outcome):
            raise Violation(f"{command} although the task is cancelled, out of attempts, or too large: {life}")
        if not 0 <= command.delay <= LONGEST_DELAY:
            raise Violation(f"{command} waits too long")
        life.not_before = now + command.delay

    def _on_give_up(self, now: float, command: GiveUp) -> None:
        task, life = command.task, self.lives[command.task]
        self._expect_open(task, "given up")
        if life.running or command.attempt != life.attempt:
            raise Violation(f"{command} while attempt {life.attempt} is current, running: {life.running}")
        if command.outcome is AttemptOutcome.CANCELLED:
            if task not in self.asked:
                raise Violation(f"{command} although nobody cancelled it")
            self.fresh.pop(task, None)
        elif task in self.fresh:
            if not self._is_charged_off(task, command.attempt, command.outcome):
                raise Violation(f"{command} with attempts left: {life}")
        elif not self._too_large(task):
            raise Violation(f"{command} without a cause: {life}")
        life.end = command.outcome.value

    def _on_kill(self, now: float, command: Kill) -> None:
        if command.outcome is AttemptOutcome.EXHAUSTED:
            attempt, name = self.grown.get(command.task, (0, ""))
            if attempt != command.attempt:
                raise Violation(f"{command} of a task that did not grow")
            self.doomed_by[command.task] = name
        elif self.to_kill.pop(command.task, None) != command.attempt:
            raise Violation(f"{command} that nobody asked for")

    def _is_charged_off(self, task: int, attempt: int, outcome: AttemptOutcome) -> bool:
        """Takes the fresh result of the task into account; says whether that was its last attempt."""
        life, result = self.lives[task], self.fresh.pop(task, None)
        if result is None or result.outcome is not outcome or result.attempt != attempt or outcome is AttemptOutcome.OK:
            raise Violation(f"task {task}: {outcome} of attempt {attempt} is not what was reported: {result}")
        if outcome is AttemptOutcome.UNBEGUN:
            spent = False
        elif outcome is AttemptOutcome.EXHAUSTED:
            # The size was the broker's own choice: only who had all the node has of something has had enough.
            name = self.doomed_by[task]
            life.exhausted[name] = max(life.exhausted.get(name, 0), life.sizes[name])
            spent = any(size >= self.capacity.get(name) for name, size in life.exhausted.items())
        elif outcome is AttemptOutcome.LOST:
            life.losses += 1
            spent = life.losses > MOST_LOSSES
        else:
            life.failures += 1
            spent = life.failures > self.graph.profile_of(task).retries
        return spent or self._too_large(task)

    def _too_large(self, task: int) -> bool:
        """What is learned needs a node that has any of it."""
        profile = self.graph.profile[task]
        learned = self.learned[profile] if self.learned else ()
        lacking = self.graph.profiles[profile].resources.lacking_in(self.capacity)
        return bool(lacking) or any(not self.capacity.get(name) for name in learned)

    def _expect_open(self, task: int, verb: str) -> None:
        if self.lives[task].end:
            raise Violation(f"task {task} is {verb} although it is over: {self.lives[task].end}")

    def cancelled_waiting(self, task: int) -> None:
        """The user cancelled a task that had not become ready."""
        self._expect_open(task, "cancelled")
        if self.lives[task].announced:
            raise Violation(f"task {task} is cancelled in the flow although the broker has it")
        self.asked.add(task)
        self.lives[task].end = AttemptOutcome.CANCELLED.value

    def finish(self, status: bytearray) -> dict[str, int]:
        """Every task must be accounted for, by the oracle and by the flow alike; returns how many ended how."""
        ends: dict[str, int] = {}
        for task in topological_order(self.graph):
            life = self.lives[task]
            if self.graph.actions[task] is None:
                continue
            if not life.end and any(
                self.lives[other].end not in ("", "accepted", "queued") for other in self.needs[task]
            ):
                life.end = "doomed"
            if not life.end:
                if not self.draining:
                    raise Violation(f"task {task} never ended: {life}")
                life.end = "queued"
            expected = {
                "accepted": (TaskStatus.DONE,),
                "doomed": (TaskStatus.DOOMED,),
                "queued": (TaskStatus.READY, TaskStatus.WAITING),
            }
            if status[task] not in expected.get(life.end, (TaskStatus.FAILED,)):
                raise Violation(f"task {task} is {life.end} but {TaskStatus(status[task]).name} in the flow")
            if life.running or (life.end == "doomed" and life.attempt):
                raise Violation(f"task {task} is {life.end} but ran or still runs: {life}")
            ends[life.end] = ends.get(life.end, 0) + 1
        return dict(sorted(ends.items()))


def direct_needs(graph: Graph) -> list[list[int]]:
    """For each task the tasks that run something and must be done first, seen through groups."""
    needs: list[list[int]] = [[] for _ in range(len(graph))]
    for task in topological_order(graph):
        found: dict[int, None] = {}
        for other in graph.predecessors_of(task):
            found.update(dict.fromkeys([other] if graph.actions[other] is not None else needs[other]))
        needs[task] = list(found)
    return needs
