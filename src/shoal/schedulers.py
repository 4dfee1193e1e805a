"""Schedulers of the GSPC19 document as compositions over a flow and stewards: events in, commands out, no I/O.

`flows` is what they ask of a workflow, `scheduler` the one engine, `drawing`, `asking` and `choosing` its exchangeable
parts, `named` the document's schedulers, `pool` simulated workers to try them on. Real workers are `shoal.runtime`.
"""

from __future__ import annotations

from shoal.resources.schedulers.composed import ComposedScheduler as Scheduler
from shoal.resources.schedulers.composed import LookAhead, OneAtATime, Rescheduling
from shoal.resources.schedulers.interface import DagWork, Flow
from shoal.resources.schedulers.registry import (
    base,
    co_allocation,
    look_ahead,
    performance_model,
    rescheduling,
    several_locations,
    transfer_costs,
)

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
