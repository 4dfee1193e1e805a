"""Public API of the GSPC schedulers: pure schedulers over a flow of jobs and resource managers (events in, commands
out).

`Flow` is what a scheduler reads of a workflow, `Scheduler` combines exchangeable parts (`OneAtATime`, `LookAhead`,
`Rescheduling`), and `base`, `co_allocation`, `transfer_costs` and so on make the schedulers of GSPC 2019. Real workers
are in `shoal.runtime`.
"""

from __future__ import annotations

from shoal.resources.composed_scheduler import ComposedScheduler as Scheduler
from shoal.resources.composed_scheduler import LookAhead, OneAtATime, Rescheduling
from shoal.resources.scheduler_interface import DagWork, Flow
from shoal.resources.scheduler_registry import (
    base,
    co_allocation,
    look_ahead,
    performance_model,
    rescheduling,
    several_locations,
    transfer_costs,
)

__path__: list[str] = []  # lets the former names of its modules be found

__all__ = [
    "DagWork",
    "Flow",
    "LookAhead",
    "OneAtATime",
    "Rescheduling",
    "Scheduler",
    "base",
    "co_allocation",
    "look_ahead",
    "performance_model",
    "rescheduling",
    "several_locations",
    "transfer_costs",
]
