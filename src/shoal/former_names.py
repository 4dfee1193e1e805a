"""Former module names, so that programs and pickles of earlier versions still load.

Plans and tokens that an earlier version pickled contain the module names of their classes, and programs import
`shoal.flow.net`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

_NEW_NAMES = {
    "shoal.engine.replay_work": "shoal.execution.replay_tasks",
    "shoal.flow.net": "shoal.petri",
    "shoal.flow.net.records": "shoal.petri.records",
    "shoal.flow.net.words": "shoal.petri.language",
    "shoal.memory.handle": "shoal.data.memory.handle",
    "shoal.memory.layout": "shoal.resources.memory_layout",
    "shoal.model.graph": "shoal.core.graph",
    "shoal.model.resources": "shoal.core.resources",
    "shoal.model.task": "shoal.core.task",
    "shoal.monitor.launch": "shoal.compat.resource_monitor.start",
    "shoal.plan.decide": "shoal.ledger.up_to_date",
    "shoal.plan.identity": "shoal.ledger.identity",
    "shoal.runner.call_errors": "shoal.execution.calls.pickling",
    "shoal.schedulers.pool": "shoal.sim.worker_pool",
}
_PACKAGES = {"shoal.engine", "shoal.flow", "shoal.model", "shoal.plan", "shoal.runner"}


class _Alias(Loader):
    """Loads a module under its former name; the module object exists only once."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return import_module(_NEW_NAMES[spec.name]) if spec.name in _NEW_NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module was executed under its own name."""


def former_spec(name: str) -> ModuleSpec | None:
    """Returns the spec that loads a module by its former name, or None."""
    if name not in _NEW_NAMES and name not in _PACKAGES:
        return None
    return ModuleSpec(name, _Alias(), is_package=name in _PACKAGES or name == "shoal.flow.net")
