"""Parts of higher layers that a lower layer reaches by name, each loaded when something asks for it.

An executor may run its calls on a cluster and may show itself in a notebook. Neither is loaded, nor needs to be
installed, unless a program asks for it; imports in the code itself only go down.
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
    """Returns the class or function of this name."""
    return getattr(import_module(_HOMES[name]), name)
