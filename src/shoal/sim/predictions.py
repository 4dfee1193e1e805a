"""Predicts a run: the real flow and broker over a virtual node on which nothing goes wrong, and what bounds it below.

Unlike `shoal.sim.run` this checks nothing and keeps no trace, so that large workflows take seconds. How long each task
takes is an argument. Overheads are not modelled: starting a task costs nothing here.
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
from shoal.sim.scenario import CALM, Fates

_LEAST_CORES = FRACTION // 100
"""What a task counts for that asks for nothing, as in a live run."""


class CategoryForecast(msgspec.Struct):
    """The tasks of one category."""

    tasks: int = 0
    seconds: float = 0.0


class Forecast(msgspec.Struct, frozen=True):
    """What a run is going to take."""

    tasks: int
    makespan: float
    utilisation: float
    """Share of the node's cores that is busy until the end."""
    work: float
    """Core seconds."""
    critical_path: float
    """Seconds of the longest chain of tasks: no number of cores makes it shorter."""
    area: float
    """Work divided by cores: no order makes it shorter."""
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
    """Runs the wanted tasks, or all, on one node; every task must fit there. A task that runs nothing takes no time."""
    counts = [
        action is not None and (wanted is None or bool(wanted[task])) for task, action in enumerate(graph.actions)
    ]
    seconds = [length if counted else 0.0 for length, counted in zip(durations, counts, strict=True)]
    lengths = upward_lengths(graph, seconds)
    columns = TaskColumns(graph.profile, ranks(graph), input_bytes, lengths)
    lanes = [Lane(profile.resources if profile.resources.amounts else _LITTLE, 0) for profile in graph.profiles]
    virtual = VirtualNode(graph, node, seconds, Fates(Random(0), CALM, len(graph)))
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


def _run(flow: DagFlow, broker: Scheduler, node: VirtualNode) -> float:
    """Drives flow and broker to the end and returns when that is; what ends at one moment is one batch."""
    agenda: EventHeap[SimulatedBundle] = EventHeap()
    commands = broker.handle(0.0, TasksReady(flow.ready()))
    while True:
        _settle(flow, broker, node, agenda, commands)
        if not len(agenda):
            assert broker.idle(), "tasks wait for what will not happen"
            return agenda.now
        places = [agenda.next()]
        while agenda.due_now() is not None:
            places.append(agenda.next())
        results: list[TaskResult] = []
        for place in places:
            results += node.end_turn(agenda.now, place)
            if place.tasks:
                agenda.at(place.started + place.fate.seconds, place)
        commands = broker.handle(agenda.now, TasksEnded(results, ready_follows=True))


def _settle(
    flow: DagFlow, broker: Scheduler, node: VirtualNode, agenda: EventHeap[SimulatedBundle], commands: list[Command]
) -> None:
    """Does what the broker says; what becomes ready by that goes straight back to it."""
    while commands:
        accepted: list[int] = []
        for command in commands:
            if isinstance(command, Start):
                place = node.start(agenda.now, command)
                agenda.at(place.started + place.fate.seconds, place)
            elif isinstance(command, Accept):
                accepted.append(command.task)
        commands = broker.handle(agenda.now, TasksReady(flow.complete(accepted))) if accepted else []
