"""The document's schedulers by name, each put together from the same parts.

A program that wants something else puts a `Scheduler` together itself. All of these try a lost task again except
`base`, and all except `base` and `rescheduling` look ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.flow.net.records import Task
from shoal.memory.layout import Range
from shoal.policy.performance import Performance
from shoal.schedulers.asking import ByProfile, CoAllocation
from shoal.schedulers.choosing import (
    Partition,
    PerformanceModel,
    SeveralLocations,
    TransferCosts,
    WhileLearning,
    ranges_of_arguments,
)
from shoal.schedulers.drawing import LookAhead
from shoal.schedulers.flows import Flow
from shoal.schedulers.scheduler import Rescheduling, Scheduler
from shoal.steward.asking import Requirement
from shoal.steward.steward import Steward

AGAIN = Rescheduling(attempts=3, losses=10)


def base(flow: Flow, steward: Steward, run: str = "run") -> Scheduler:
    """Next, acquire, extract, submit, inject: one task after the other waits for resources."""
    return Scheduler(flow, steward, run)


def rescheduling(flow: Flow, steward: Steward, run: str = "run", again: Rescheduling = AGAIN) -> Scheduler:
    """As `base`; a task that failed, or whose machine is lost, goes elsewhere, a bounded number of times."""
    return Scheduler(flow, steward, run, rescheduling=again)


def look_ahead(flow: Flow, steward: Steward, run: str = "run", drawing: LookAhead | None = None) -> Scheduler:
    """Many tasks wait, those of each vector of classes in a line of their own."""
    return Scheduler(flow, steward, run, drawing=drawing or LookAhead(), rescheduling=AGAIN)


def co_allocation(
    flow: Flow,
    steward: Steward,
    run: str = "run",
    beside: Callable[[Task], Sequence[Requirement]] | None = None,
) -> Scheduler:
    """Tasks that need several machines, or several things in different places, get all of it or nothing."""
    return Scheduler(flow, steward, run, drawing=LookAhead(), asking=CoAllocation(beside), rescheduling=AGAIN)


def several_locations(flow: Flow, stewards: Mapping[str, Steward], run: str = "run") -> Scheduler:
    """A steward for each location; tasks choose theirs by the label `location=NAME`."""
    asking = SeveralLocations(CoAllocation(), stewards)
    return Scheduler(flow, stewards, run, drawing=LookAhead(), asking=asking, rescheduling=AGAIN)


def performance_model(
    flow: Flow, steward: Steward, run: str = "run", performance: Performance | None = None
) -> Scheduler:
    """Of several implementations the one that is done first, by what was learned while the run goes on."""
    asking = PerformanceModel(ByProfile(), {"": steward}, performance)
    return Scheduler(flow, steward, run, drawing=WhileLearning(asking), asking=asking, rescheduling=AGAIN)


def transfer_costs(
    flow: Flow,
    steward: Steward,
    partition: Callable[[str], Partition],
    run: str = "run",
    *,
    needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
    resources: Mapping[str, Sequence[str]] | None = None,
) -> Scheduler:
    """Tasks go to the machines that hold the memory they need, as long as these have room."""
    asking = TransferCosts(CoAllocation(), partition, needs, resources)
    return Scheduler(flow, steward, run, drawing=LookAhead(), asking=asking, rescheduling=AGAIN)
