"""Public API of the job server: runs a flow of jobs on the agents of a cluster (the runtime system of GSPC 2019).

`RuntimeSystem` manages agents and their resources, `JobServer` runs a flow on them with a scheduler (`simple`,
`with_transfer_costs`, `several_locations` make the usual ones), `call` and `meet` let a task call back to its driver.
Names are loaded on first use, so a task that only calls its driver does not import the server.
"""

from __future__ import annotations

from importlib import import_module

__path__: list[str] = []  # lets the former names of its modules be found

TYPE_CHECKING = False

if TYPE_CHECKING:
    from shoal.cluster.job_server import JobServer, several_locations, simple, with_transfer_costs
    from shoal.cluster.runtime_system import RuntimeSystem, Strategy
    from shoal.cluster.task_calls import call, meet

_HOMES = {
    "JobServer": "shoal.cluster.job_server",
    "RuntimeSystem": "shoal.cluster.runtime_system",
    "Strategy": "shoal.cluster.runtime_system",
    "call": "shoal.cluster.task_calls",
    "meet": "shoal.cluster.task_calls",
    "several_locations": "shoal.cluster.job_server",
    "simple": "shoal.cluster.job_server",
    "with_transfer_costs": "shoal.cluster.job_server",
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
