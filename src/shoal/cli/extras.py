"""What only clusters need, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from shoal.errors import InputError


def need_cluster_libraries() -> None:
    """One sentence if a library is missing that only clusters use."""
    for module, library in (("zmq", "pyzmq"), ("redis", "redis")):
        if find_spec(module) is None:
            raise InputError(f"clusters need {library}, which is not installed", remedy="pip install 'shoal[cluster]'")
