"""The run-time system and the job servers of the GSPC19 document, over the agents of a cluster.

`system` knows agents and their resources (`bootstrap` starts them), `server` runs a flow on them by a scheduler, `work`
and `sending` are what nodes are sent, `calls` and `desk` are both sides of calls from tasks to their driver. Names are
loaded when first used: a task that only calls its driver loads nothing of the rest.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from shoal.runtime.bootstrap import Strategy
    from shoal.runtime.calls import call, meet
    from shoal.runtime.server import JobServer, several_locations, simple, with_transfer_costs
    from shoal.runtime.system import RuntimeSystem

_HOMES = {
    "JobServer": "server",
    "RuntimeSystem": "system",
    "Strategy": "bootstrap",
    "call": "calls",
    "meet": "calls",
    "several_locations": "server",
    "simple": "server",
    "with_transfer_costs": "server",
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
    value = getattr(import_module(f"shoal.runtime.{home}"), name)
    globals()[name] = value
    return value
