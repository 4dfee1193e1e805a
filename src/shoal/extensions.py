"""Lazy lookup of optional features in higher layers: cluster support and notebook display of the executor.

An executor may run its calls on a cluster and may show itself in a notebook. Neither feature is loaded, nor has to be
installed, unless a program uses it. The lookup goes by name because a lower layer must not import a higher one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ClusterCallPool": "shoal.cluster.call_client",
    "end_farmed": "shoal.cluster.call_client",
    "find_cluster": "shoal.cluster.call_client",
    "largest_of": "shoal.cluster.call_client",
    "executor_html": "shoal.ui.notebook.display",
    "show_executor": "shoal.ui.notebook.display",
    "line_of": "shoal.ui.notebook.rendering",
}


def load_extension(name: str) -> Any:
    """Imports the module that defines `name` and returns the class or function."""
    return getattr(import_module(_HOMES[name]), name)
