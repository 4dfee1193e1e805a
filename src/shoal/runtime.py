"""The run-time system and the job servers of the GSPC19 document, over the agents of a cluster.

`system` knows agents and their resources (`bootstrap` starts them), `server` runs a flow on them by a scheduler, `work`
and `sending` are what nodes are sent, `calls` and `desk` are both sides of calls from tasks to their driver. Names are
loaded when first used: a task that only calls its driver loads nothing of the rest.
"""

from __future__ import annotations

from importlib import import_module

__path__: list[str] = []  # lets the former names of its modules be found

TYPE_CHECKING = False

if TYPE_CHECKING:
    from shoal.cluster.job_servers.job_server import JobServer, several_locations, simple, with_transfer_costs
    from shoal.cluster.job_servers.runtime_system import RuntimeSystem, Strategy
    from shoal.cluster.job_servers.task_calls import call, meet

_HOMES = {
    "JobServer": "shoal.cluster.job_servers.job_server",
    "RuntimeSystem": "shoal.cluster.job_servers.runtime_system",
    "Strategy": "shoal.cluster.job_servers.runtime_system",
    "call": "shoal.cluster.job_servers.task_calls",
    "meet": "shoal.cluster.job_servers.task_calls",
    "several_locations": "shoal.cluster.job_servers.job_server",
    "simple": "shoal.cluster.job_servers.job_server",
    "with_transfer_costs": "shoal.cluster.job_servers.job_server",
}
__all__ = [
    "JobServer",
    "RuntimeSystem",
    "Strategy",
    "call",
    "meet",
    "several_locations",
    "simple",
    "with_transfer_costs",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'shoal.runtime' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
