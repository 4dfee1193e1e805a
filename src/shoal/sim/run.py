"""Simulates one workflow with one scheduler on a virtual node, and checks all invariants after every event.

A run has two phases. Until `faults.until` there are faults: attempts fail, workers die, the node shrinks, the disk is
full, the user cancels. Then the node is repaired and all remaining tasks must finish. The driver makes no scheduling
decisions, like the live one: it executes commands and reports results.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from shoal.core.dependencies import DagFlow, TaskStatus
from shoal.core.explain.answer import WaitCause
from shoal.core.invariants import check_broker
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import Resources
from shoal.core.scheduler import Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    CapsChanged,
    Command,
    DrainEnded,
    DrainRequested,
    Event,
    GiveUp,
    Kill,
    Start,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
    WakeAt,
)
from shoal.sim.node import EventHeap, SimulatedBundle, Violation, VirtualNode, trace_digest
from shoal.sim.oracle import Oracle, check_one_node
from shoal.sim.scenario import CALM, OutcomeSampler, SimulationScenario, draw_scenario

Entry = tuple[float, Event, list[Command]]


class SimulationTrace(msgspec.Struct):
    """The recorded events and results of a run. Identical runs have identical digests, also in different processes."""

    seed: int
    entries: list[Entry] = []
    makespan: float = 0.0
    """When the last attempt ended."""
    utilisation: float = 0.0
    """Fraction of the node's cores that was busy until then, including failed attempts."""
    ends: dict[str, int] = {}
    """Number of tasks by kind of end."""
    next_random: float = 0.0
    """The next number of the random generator: it shows that two runs have drawn equally often."""

    def lines(self) -> list[bytes]:
        """One line of JSON per event, in a canonical form."""
        encode = msgspec.json.Encoder().encode
        return [encode(entry) for entry in self.entries]

    def digest(self) -> str:
        return trace_digest(self.lines(), (self.makespan, self.next_random))


MOST_EVENTS_PER_TASK = 400
KILL_LATENCY = 0.01
CAPS_PER_RUN = 15.0
"""Mean number of changed limits per run with a throttle."""


class EndOfTurn(msgspec.Struct, frozen=True, eq=False):
    """The running attempt of a slot ends, unless a kill came first."""

    place: SimulatedBundle
    turn: int


class Growth(msgspec.Struct, frozen=True, eq=False):
    """A task reaches its peak of a resource, if that attempt still runs."""

    place: SimulatedBundle
    task: int
    attempt: int
    resource: str


class Strike(msgspec.Struct, frozen=True):
    """A fault of this kind occurs."""

    kind: str


class Heal(msgspec.Struct, frozen=True):
    """The end of all faults."""


Item = EndOfTurn | Growth | Strike | Heal | TasksReady | TasksEnded | DrainEnded | TimePassed


class SimulatedRun:
    """One simulated run; `execute` may be called once. If a check fails, `trace` is complete up to that event."""

    def __init__(self, scenario: SimulationScenario, explain_interval: int = 0) -> None:
        """`explain_interval`: interval, in events, of checks of `why` for all unfinished tasks; 0: no checks."""
        self.scenario = scenario
        self.explain_interval = explain_interval
        self.answers: Counter[WaitCause] = Counter()
        """Number of answers by cause."""
        self.faults = scenario.faults
        self.random = Random(2 * scenario.seed + 1)
        self.throttle_random = Random(-1 - scenario.seed)
        """Random numbers of the throttle; separate, so that they do not change the rest of the scenario."""
        self.flow = DagFlow(scenario.graph)
        self.scheduler = Scheduler(
            scenario.node,
            scenario.columns(),
            scenario.lanes(),
            order=scenario.order,
            seed=scenario.seed,
            patience=scenario.patience,
        )
        self.outcomes = OutcomeSampler(self.random, self.faults, len(scenario.graph))
        self.node = VirtualNode(scenario.graph, scenario.node, scenario.durations, self.outcomes, scenario.peaks)
        self.oracle = Oracle(scenario.graph, scenario.node, scenario.learned())
        self.agenda: EventHeap[Item] = EventHeap()
        self.trace = SimulationTrace(scenario.seed)
        self.drained_for_good = False
        self._wake: float | None = None

    def execute(self) -> SimulationTrace:
        self._plan_faults()
        self._handle(TasksReady(self.flow.ready()))
        taken = 0
        while self.agenda:
            self._take(self.agenda.next())
            taken += 1
            if self.explain_interval and taken % self.explain_interval == 0:
                self._ask_why()
            if len(self.trace.entries) > MOST_EVENTS_PER_TASK * len(self.scenario.graph):
                raise Violation("the run does not end")
        if not self.scheduler.idle() and not self.drained_for_good:
            raise Violation(f"no event is pending, but the scheduler still has {sorted(self.scheduler.state)}")
        trace = self.trace
        trace.ends = self.oracle.finish(self.flow.status)
        if trace.makespan:
            trace.utilisation = self.node.busy / (self.scenario.node.get("cores") * trace.makespan)
        trace.next_random = self.random.random()
        return trace

    def _ask_why(self) -> None:
        """Checks the answers of `why`. Ready tasks on their way to the scheduler are among the pending events."""
        coming = {task for item in self.agenda.items() if isinstance(item, TasksReady) for task in item.tasks}
        since = {place.tasks[0][0]: place.started for place in self.node.places.values()}
        state = self.scenario.graph, self.flow.status, self.scheduler
        self.answers += check_one_node(*state, self.agenda.now, coming, since)

    def _handle(self, event: Event) -> None:
        now = self.agenda.now
        self.oracle.before(event)
        commands = self.scheduler.handle(now, event)
        self.trace.entries.append((now, event, commands))
        check_broker(self.scheduler)
        self.oracle.after(now, commands)
        self._perform(commands)

    def _perform(self, commands: list[Command]) -> None:
        now = self.agenda.now
        accepted: list[int] = []
        for command in commands:
            match command:
                case Start():
                    self._schedule(self.node.start(now, command))
                case Accept(task):
                    accepted.append(task)
                case GiveUp(task):
                    self.flow.fail([task])
                case Kill(task, attempt, outcome):
                    self._kill(task, attempt, outcome)
                case WakeAt(when):
                    if self._wake is None or when < self._wake:
                        self._wake = when
                        self.agenda.at(when, TimePassed())
        if accepted:
            ready = TasksReady(self.flow.complete(accepted))
            if self.scenario.announces:
                self._handle(ready)
            elif ready.tasks:
                self.agenda.after(self.random.choice((0.0, 0.005)), ready)

    def _schedule(self, place: SimulatedBundle) -> None:
        for at, name in enumerate(self.node.growing(place), 2):
            when = place.started + place.planned.seconds * at / 4
            self.agenda.at(when, Growth(place, *place.tasks[0], name))
        self._schedule_end(place)

    def _schedule_end(self, place: SimulatedBundle) -> None:
        self.agenda.at(place.started + place.planned.seconds, EndOfTurn(place, place.turn))

    def _kill(self, task: int, attempt: int, outcome: AttemptOutcome) -> None:
        if self.random.random() < self.faults.slow_kills:
            latency = 10.0 * self.scenario.durations[task]
        else:
            latency = KILL_LATENCY
        waited = self.node.place_of.get(task)
        place = self.node.kill(self.agenda.now, task, attempt, latency, outcome)
        if place is not None:
            self._schedule_end(place)
        elif waited is not None:
            self.agenda.after(latency, TasksEnded([TaskResult(task, attempt, outcome)], self._announces()))

    def _take(self, item: Item) -> None:
        match item:
            case EndOfTurn():
                self._report(self._ends_falling_together(item))
            case Growth(place, task, attempt, name):
                if place.number in self.node.places and place.tasks[0] == (task, attempt):
                    self._handle(self.node.grow(place, name))
            case Strike(kind):
                self._strike(kind)
            case Heal():
                self._heal()
            case TimePassed():
                if self._wake is not None and self.agenda.now >= self._wake:
                    self._wake = None
                self._handle(item)
            case _:
                self._handle(item)

    def _ends_falling_together(self, first: EndOfTurn) -> list[TaskResult]:
        """Ends at the same time form one batch, as in one iteration of the live engine."""
        results: list[TaskResult] = []
        item: Item | None = first
        while isinstance(item, EndOfTurn):
            if item is not first:
                self.agenda.next()
            place = item.place
            if place.number in self.node.places and place.turn == item.turn:
                results += self.node.end_turn(self.agenda.now, place)
                if place.tasks:
                    self._schedule(place)
            item = self.agenda.due_now()
        return results

    def _report(self, results: list[TaskResult]) -> None:
        if not results:
            return
        self.trace.makespan = self.agenda.now
        random, faults = self.random, self.faults
        batch: list[TaskResult] = []
        for result in results:
            batch.append(result)
            if faults is CALM:
                continue
            if random.random() < faults.duplicates:
                if random.random() < 0.3:
                    batch.append(result)
                else:
                    self._report_later(result)
            if result.outcome is not AttemptOutcome.OK and random.random() < faults.echoes:
                self._report_later(
                    TaskResult(result.task, result.attempt, AttemptOutcome.OK, result.duration, result.used)
                )
        self._handle(TasksEnded(batch, self._announces()))

    def _report_later(self, result: TaskResult) -> None:
        delay = self.random.expovariate(1.0) * 2.0 * self.scenario.durations[result.task]
        self.agenda.after(delay, TasksEnded([result], self._announces()))

    def _announces(self) -> bool:
        return self.scenario.announces

    def _plan_faults(self) -> None:
        if self.faults is CALM:
            return
        for kind in ("worker_losses", "capacity_changes", "cancels", "drains"):
            self._plan_strike(kind)
        self._plan_caps()
        self.agenda.at(self.faults.until, Heal())

    def _plan_caps(self) -> None:
        when = (
            self.agenda.now + self.throttle_random.expovariate(CAPS_PER_RUN / self.faults.until)
            if self.faults.until
            else 0.0
        )
        if self.scenario.throttled and when < self.faults.until:
            self.agenda.at(when, Strike("caps"))

    def _change_caps(self) -> None:
        names = sorted({profile.category for profile in self.scenario.graph.profiles})
        self._handle(CapsChanged({self.throttle_random.choice(names): self.throttle_random.choice((0, 1, 2, 3, None))}))
        self._plan_caps()

    def _plan_strike(self, kind: str) -> None:
        rate: float = getattr(self.faults, kind)
        if not rate:
            return
        when = self.agenda.now + self.random.expovariate(rate)
        if when < self.faults.until:
            self.agenda.at(when, Strike(kind))

    def _strike(self, kind: str) -> None:
        match kind:
            case "worker_losses":
                self._lose_worker()
            case "capacity_changes":
                self._change_capacity(self._other_size())
            case "cancels":
                self._cancel()
            case "drains":
                self._drain()
            case "caps":
                self._change_caps()
                return
        self._plan_strike(kind)

    def _lose_worker(self) -> None:
        if self.node.places:
            place = self.random.choice(list(self.node.places.values()))
            self._report(self.node.lose_worker(self.agenda.now, place))

    def _other_size(self) -> Resources:
        """The original size in half of the cases; otherwise less of some resources, more of others, or none at all."""
        node, random = self.scenario.node, self.random
        if random.random() < 0.5:
            return node
        return Resources.of(
            {
                name: int(amount * random.choice((0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 1.5)))
                for name, amount in node.amounts
            }
        )

    def _change_capacity(self, capacity: Resources) -> None:
        self.node.capacity = capacity
        self._handle(CapacityChanged(capacity))

    def _cancel(self) -> None:
        """The user cancels a few tasks, rarely all of them. Waiting tasks belong to the dependency tracker, ready ones
        to the scheduler."""
        tasks = [task for task, action in enumerate(self.scenario.graph.actions) if action is not None]
        if self.random.random() > 0.05:
            tasks = self.random.sample(tasks, min(len(tasks), self.random.randint(1, 3)))
        for task in tasks:
            if self.flow.status[task] == TaskStatus.WAITING:
                self.oracle.cancelled_waiting(task)
                self.flow.fail([task])
        self._handle(CancelRequested(tasks))

    def _drain(self) -> None:
        if self.scheduler.draining:
            return
        self._handle(DrainRequested())
        if self.random.random() < self.faults.final_drain:
            self.drained_for_good = True
        else:
            self.agenda.after(self.random.expovariate(self.faults.drains) / 4, DrainEnded())

    def _heal(self) -> None:
        self.faults = self.outcomes.mix = CALM
        self._change_capacity(self.scenario.node)
        if self.scenario.throttled:
            self._handle(CapsChanged({profile.category: None for profile in self.scenario.graph.profiles}))
        if self.scheduler.draining and not self.drained_for_good:
            self._handle(DrainEnded())


class SeedFailedError(AssertionError):
    """A simulated run failed a check. The message has the command that reproduces it; `trace` has the events so far."""

    def __init__(self, trace: SimulationTrace, problem: Exception) -> None:
        super().__init__(
            f"seed {trace.seed}: {type(problem).__name__}: {problem}\n"
            f"  reproduce with: python -m shoal.sim --seed {trace.seed} --trace"
        )
        self.trace = trace


def run_seed(seed: int, explain_interval: int = 0) -> SimulationTrace:
    """Simulates the scenario of a seed; raises `SeedFailedError` if a check fails."""
    run = SimulatedRun(draw_scenario(seed), explain_interval)
    try:
        return run.execute()
    except (AssertionError, LookupError) as problem:  # a missing transition or an empty queue is a bug, too
        raise SeedFailedError(run.trace, problem) from problem


def simulate(scenario: SimulationScenario) -> SimulationTrace:
    """Simulates a given scenario."""
    return SimulatedRun(scenario).execute()
