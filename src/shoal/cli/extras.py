"""What only clusters need, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from shoal.errors import InputError


def need_cluster_libraries(*, certificates: bool = False) -> None:
    """Raises one sentence if a library is missing that only clusters use.

    `certificates`: this command makes certificates. Clients need no library for that.
    """
    libraries = [("zmq", "pyzmq"), ("redis", "redis")]
    if certificates:
        libraries.append(("cryptography", "cryptography"))
    for module, library in libraries:
        if find_spec(module) is None:
            raise InputError(f"clusters need {library}, which is not installed", remedy="pip install 'shoal[cluster]'")
