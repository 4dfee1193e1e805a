"""The broker's view of a graph: columns for the orders, lanes for admission."""

from __future__ import annotations

from array import array

from shoal.broker.broker import Lane
from shoal.engine.sizes import Sizes
from shoal.model.graph import Graph
from shoal.model.rank import ranks, upward_lengths
from shoal.model.resources import Resources
from shoal.model.task import Call
from shoal.plan.identity import Versions
from shoal.policy.order import TaskColumns
from shoal.policy.throttle.regime import NO_THROTTLE, Regime

_LEAST_CORES = 100
"""A task that asks for nothing at all still takes a hundredth of a core, so that not all of them start at once."""


def columns_for(graph: Graph, versions: Versions, order: str) -> TaskColumns:
    """Only the columns that the order looks at are filled; each costs a walk over the graph."""
    columns = TaskColumns(array("i", graph.profile))  # its own: tasks that exceed their size change lanes
    if order in ("hrf", "lifo+hrf", "rank-overlap"):
        columns.rank = ranks(graph)
    if order in ("data", "rank-overlap"):
        sizes = versions.sizes
        columns.input_bytes = [sum(max(0, sizes[file]) for file in graph.inputs_of(task)) for task in range(len(graph))]
    if order == "critical":
        columns.upward_length = upward_lengths(graph, [float(action is not None) for action in graph.actions])
    return columns


def lanes_for(graph: Graph, sizes: Sizes, throttle: Regime = NO_THROTTLE) -> list[Lane]:
    """One lane per profile; short tasks may be bundled. The lanes of a category are under one cap."""
    calls = {graph.profile[task] for task, action in enumerate(graph.actions) if isinstance(action, Call)}
    lanes = []
    for number, profile in enumerate(graph.profiles):
        resources, elastic = profile.resources, throttle.limits and not profile.declares("cores")
        if elastic:
            resources = resources.without("cores")
        elif not resources.amounts:
            resources = Resources((("cores", _LEAST_CORES),))
        # A call with a time limit travels alone: ending it would end the worker of the others.
        bundled = number not in calls or profile.timeout is None
        adviser = sizes.of_profile[number]
        lane = Lane(resources, profile.retries, bundled, refilled=number not in calls, adviser=adviser)
        lane.cap, lane.elastic = throttle.cap_for(profile.category), elastic
        lanes.append(lane)
    return lanes
