"""Schedulers of the GSPC19 document as compositions over a flow and stewards: events in, commands out, no I/O.

`flows` is what they ask of a workflow, `scheduler` the one engine, `drawing`, `asking` and `choosing` its exchangeable
parts, `named` the document's schedulers, `pool` simulated workers to try them on. Real workers are `shoal.runtime`.
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
