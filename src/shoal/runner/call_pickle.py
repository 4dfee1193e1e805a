"""Pickling by value, for what the other side could not import: lambdas, closures, what the main program defines."""

from __future__ import annotations

import pickle

PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)
"""What plain pickling raises for something that may still be picklable by value."""


def dumps_by_value(value: object) -> bytes:
    """The value with the definitions it needs; raises what cloudpickle raises if it cannot be pickled."""
    # Loading it costs about 30 ms, which nobody pays whose functions and results all belong to modules.
    import cloudpickle  # type: ignore[import-untyped]  # it has no stubs

    data: bytes = cloudpickle.dumps(value)
    return data
