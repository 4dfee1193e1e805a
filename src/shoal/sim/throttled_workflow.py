"""A whole workflow on one simulated node under a throttle: the real dependency tracker, scheduler and throttle
controller, in virtual time.

The node is the fluid model of `shoal.sim.throttled_node`. Tasks of a category use processors, disk, network and
possibly a resource outside the node that serves a limited number of them, and slow down under contention. This allows a
comparison of throttles before any task runs. Resource use is an input, because it is learned elsewhere; undeclared
memory is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from shoal.core.dependencies import DagFlow
from shoal.core.graph import Graph, ranks, upward_lengths
from shoal.core.policies.order import DEFAULT_ORDER, TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.throttle.readings import COMPRESSIBLE, CPU, SAMPLE_SECONDS, NodeSample
from shoal.core.policies.throttle.registry import Regime
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler, whole_cores
from shoal.core.scheduler_messages import Accept, Command, Start, TaskResult, TasksEnded, TasksReady
from shoal.core.throttle_controller import ThrottleController
from shoal.sim.throttled_node import FluidNode, Supply, TaskKind, TaskPhase

_OUTSIDE = "outside "
_LEAST_CORES = FRACTION // 100
NEVER = float("inf")


class TaskDemand(msgspec.Struct, frozen=True):
    """Resource use of one task of a category at full speed."""

    use: Mapping[str, float]
    """For each resource in `COMPRESSIBLE`, the fraction of the node's capacity."""
    bears: int = 0
    """Number of tasks that saturate a resource outside the node; 0 if unknown."""
    speed: float = 1.0
    """Duration at full speed relative to the given durations."""


class ThrottledSimulation(msgspec.Struct, frozen=True):
    """A run under one throttle."""

    throttle: str
    makespan: float
    processors: float
    """Fraction of CPU time that tasks used."""
    together: dict[str, float]
    """By category, the mean number of concurrent tasks while any were running."""
    most: int
    """Maximum number of concurrent tasks."""


class ThrottledRun:
    """One simulated run; `execute` may be called once."""

    def __init__(
        self,
        graph: Graph,
        durations: Sequence[float],
        node: Resources,
        regime: Regime,
        demands: Mapping[str, TaskDemand],
        *,
        wanted: bytearray | None = None,
        order: str = DEFAULT_ORDER,
    ) -> None:
        """Groups take no time, whatever `durations` has. Every task must fit on the node."""
        self.regime = regime
        self.flow = DagFlow(graph, wanted)
        counted = [action is not None and (wanted is None or wanted[task]) for task, action in enumerate(graph.actions)]
        seconds = [length if counts else 0.0 for length, counts in zip(durations, counted, strict=True)]
        columns = TaskColumns(graph.profile, ranks(graph), (), upward_lengths(graph, seconds))
        self.scheduler = Scheduler(node, columns, lanes_under(graph, regime), order=order)
        self.throttle = ThrottleController(regime, self.scheduler, whole_cores(node))
        categories = list(dict.fromkeys(profile.category for profile in graph.profiles))
        number = {name: at for at, name in enumerate(categories)}
        self.categories = categories
        self.kind_of = [number[profile.category] for profile in graph.profiles]
        self.profile = graph.profile
        self.work = [
            length * demands[graph.profile_of(task).category].speed if length else 0.0
            for task, length in enumerate(seconds)
        ]
        self.node = FluidNode(*_model(categories, demands), Random(0))
        self.attempts: dict[int, int] = {}
        self.most = 0
        self._seen = [dict(used) for used in self.node.used]
        self._sampled = 0.0
        self._held = [0.0] * len(categories)
        self._busy = [0.0] * len(categories)

    def execute(self) -> ThrottledSimulation:
        node, scheduler, throttle = self.node, self.scheduler, self.throttle
        ready = self.flow.ready()
        self._settle(scheduler.handle(0.0, throttle.begin(ready)))
        self._settle(scheduler.handle(0.0, TasksReady(ready)))
        tick = SAMPLE_SECONDS if self.regime.learns else NEVER
        while not scheduler.idle():
            assert tick < NEVER or any(node.running), "tasks wait for an event that never comes"
            self._advance(tick)
            if node.now >= tick:
                tick += SAMPLE_SECONDS
                self._look()
        cpu = sum(used[CPU] for used in node.used)
        together = {
            name: held / busy
            for name, held, busy in zip(self.categories, self._held, self._busy, strict=True)
            if busy > 0
        }
        return ThrottledSimulation(self.regime.name, node.now, cpu / node.now if node.now else 0.0, together, self.most)

    def _advance(self, until: float) -> None:
        """Advances until a task ends, or to `until`."""
        node = self.node
        before, running = node.now, list(node.running)
        ended = node.advance(until)
        for kind, count in enumerate(running):
            if count:
                self._held[kind] += count * (node.now - before)
                self._busy[kind] += node.now - before
        if ended:
            results = [
                TaskResult(one.mark, self.attempts.pop(one.mark), AttemptOutcome.OK, one.seconds) for one in ended
            ]
            self.throttle.ended(node.now, results)
            self._settle(self.scheduler.handle(node.now, TasksEnded(results, ready_follows=True)))

    def _look(self) -> None:
        """The periodic work of a live driver, twice a second."""
        now, throttle = self.node.now, self.throttle
        if throttle.wants_sample(now):
            throttle.sample(now, self._sense())
        caps = throttle.look(now)
        if caps is not None:
            self._settle(self.scheduler.handle(now, caps))

    def _sense(self) -> NodeSample:
        seconds = self.node.now - self._sampled
        shares = {
            name: min(
                1.0,
                sum(now[name] - then[name] for now, then in zip(self.node.used, self._seen, strict=True)) / seconds,
            )
            for name in COMPRESSIBLE
        }
        self._seen, self._sampled = [dict(used) for used in self.node.used], self.node.now
        return NodeSample(
            user=shares["cpu"], disk=shares["disk"], network=shares["network"], running=self.throttle.running()
        )

    def _settle(self, commands: list[Command]) -> None:
        """Executes the scheduler's commands; tasks that become ready go back to it immediately."""
        while commands:
            accepted: list[int] = []
            for command in commands:
                if isinstance(command, Start):
                    ((task,), (attempt,)) = command.tasks, command.attempts
                    self.attempts[task] = attempt
                    self.node.start(self.kind_of[self.profile[task]], max(1e-6, self.work[task]), task)
                    self.most = max(self.most, len(self.attempts))
                elif isinstance(command, Accept):
                    accepted.append(command.task)
            ready = self.flow.complete(accepted) if accepted else []
            commands = self.scheduler.handle(self.node.now, TasksReady(ready)) if accepted else []


def lanes_under(graph: Graph, regime: Regime) -> list[Lane]:
    """One lane per profile, without batches, since starting a task costs nothing here."""
    lanes = []
    for profile in graph.profiles:
        resources, elastic = profile.resources, regime.limits and not profile.declares("cores")
        if elastic:
            resources = resources.without("cores")
        elif not resources.amounts:
            resources = Resources((("cores", _LEAST_CORES),))
        lane = Lane(resources, 0)
        lane.cap, lane.elastic = regime.cap_for(profile.category), elastic
        lanes.append(lane)
    return lanes


def _model(categories: Sequence[str], demands: Mapping[str, TaskDemand]) -> tuple[list[TaskKind], dict[str, Supply]]:
    supplies = {name: Supply() for name in COMPRESSIBLE}
    kinds = []
    for category in categories:
        demand = demands[category]
        use = {name: share for name, share in demand.use.items() if share > 0}
        if demand.bears:
            supplies[_OUTSIDE + category] = Supply(outside=True)
            use[_OUTSIDE + category] = 1.0 / demand.bears
        kinds.append(TaskKind(category, (TaskPhase(1.0, use),)))
    return kinds, supplies
