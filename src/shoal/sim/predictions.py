"""Predicts run times: simulates a workflow without faults on one node, and replays recorded runs under other conditions
(faster categories, more or fewer cores).

Unlike `shoal.sim.run`, this checks nothing and records no trace, so large workflows take seconds. Durations are an
input. Overheads are not modelled: starting a task costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from shoal.core.dependencies import DagFlow
from shoal.core.graph import Graph, ranks, upward_lengths
from shoal.core.policies.order import DEFAULT_ORDER, TaskColumns
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import Accept, Command, Start, TaskResult, TasksEnded, TasksReady
from shoal.sim.node import EventHeap, SimulatedBundle, VirtualNode
from shoal.sim.scenario import CALM, OutcomeSampler

_LEAST_CORES = FRACTION // 100
"""The allocation of a task that requests nothing, as in a live run."""


class CategoryForecast(msgspec.Struct):
    """Sums over the tasks of one category."""

    tasks: int = 0
    seconds: float = 0.0


class Forecast(msgspec.Struct, frozen=True):
    """The predicted run."""

    tasks: int
    makespan: float
    utilisation: float
    """Fraction of the node's cores that is busy until the end."""
    work: float
    """Core seconds."""
    critical_path: float
    """Seconds of the longest chain of dependent tasks: a lower bound for any number of cores."""
    area: float
    """Work divided by cores: a lower bound for any order."""
    categories: dict[str, CategoryForecast]

    @property
    def lower_bound(self) -> float:
        return max(self.critical_path, self.area)


def predict(
    graph: Graph,
    durations: Sequence[float],
    node: Resources,
    order: str = DEFAULT_ORDER,
    *,
    wanted: bytearray | None = None,
    input_bytes: Sequence[int] = (),
) -> Forecast:
    """Simulates the wanted tasks, or all, on one node; every task must fit on it. Groups take no time."""
    counts = [
        action is not None and (wanted is None or bool(wanted[task])) for task, action in enumerate(graph.actions)
    ]
    seconds = [length if counted else 0.0 for length, counted in zip(durations, counts, strict=True)]
    lengths = upward_lengths(graph, seconds)
    columns = TaskColumns(graph.profile, ranks(graph), input_bytes, lengths)
    lanes = [Lane(profile.resources if profile.resources.amounts else _LITTLE, 0) for profile in graph.profiles]
    virtual = VirtualNode(graph, node, seconds, OutcomeSampler(Random(0), CALM, len(graph)))
    makespan = _run(DagFlow(graph, wanted), Scheduler(node, columns, lanes, order=order), virtual)
    categories: dict[str, CategoryForecast] = {}
    work = 0.0
    for task, counted in enumerate(counts):
        if counted:
            profile = graph.profile_of(task)
            row = categories.setdefault(profile.category, CategoryForecast())
            row.tasks += 1
            row.seconds += seconds[task]
            work += seconds[task] * profile.resources.get("cores") / FRACTION
    area = work / (node.get("cores") / FRACTION)
    longest = max(lengths, default=0.0)
    return Forecast(sum(counts), makespan, area / makespan if makespan else 0.0, work, longest, area, categories)


_LITTLE = Resources((("cores", _LEAST_CORES),))


def _run(flow: DagFlow, scheduler: Scheduler, node: VirtualNode) -> float:
    """Runs until all tasks have ended; returns that time. Simultaneous ends form one batch."""
    agenda: EventHeap[SimulatedBundle] = EventHeap()
    commands = scheduler.handle(0.0, TasksReady(flow.ready()))
    while True:
        _settle(flow, scheduler, node, agenda, commands)
        if not len(agenda):
            assert scheduler.idle(), "tasks wait for an event that never comes"
            return agenda.now
        places = [agenda.next()]
        while agenda.due_now() is not None:
            places.append(agenda.next())
        results: list[TaskResult] = []
        for place in places:
            results += node.end_turn(agenda.now, place)
            if place.tasks:
                agenda.at(place.started + place.planned.seconds, place)
        commands = scheduler.handle(agenda.now, TasksEnded(results, ready_follows=True))


def _settle(
    flow: DagFlow, scheduler: Scheduler, node: VirtualNode, agenda: EventHeap[SimulatedBundle], commands: list[Command]
) -> None:
    """Executes the scheduler's commands; tasks that become ready go back to it immediately."""
    while commands:
        accepted: list[int] = []
        for command in commands:
            if isinstance(command, Start):
                place = node.start(agenda.now, command)
                agenda.at(place.started + place.planned.seconds, place)
            elif isinstance(command, Accept):
                accepted.append(command.task)
        commands = scheduler.handle(agenda.now, TasksReady(flow.complete(accepted))) if accepted else []


MOST_SIMULATED, MOST_NODES = 20_000, 64
"""Maximum number of tasks and nodes, so that the simulation does not delay a report."""
