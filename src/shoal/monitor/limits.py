"""Limits: reading them from options and files, and telling which ones are exceeded. Pure.

Reading the file itself is left to `run`.
"""

from __future__ import annotations

from math import isfinite

from shoal.errors import InputError
from shoal.monitor.fields import FIELDS, NO_LIMITS, number

CORES_GRACE = 0.25
"""A thread more for a moment is no offence."""

_LIMITABLE = [name for name in FIELDS if name not in NO_LIMITS]


def parse_limits(text: str, file: str | None = None, line: int | None = None) -> dict[str, float]:
    """Reads `name: value, name: value`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, colon, value = part.partition(":")
        if not colon:
            remedy = "write 'name: value', for example 'memory: 500'"
            raise InputError(f"{part.strip()!r} is not a limit", file=file, line=line, remedy=remedy)
        name = name.strip()
        found[name] = _limit(name, value.strip(), file, line)
    return found


def parse_limits_file(text: str, file: str) -> dict[str, float]:
    """Reads a summary (or any JSON object of numbers and `[number, unit]` pairs), or lines of `name: value`."""
    if text.lstrip().startswith("{"):
        return _from_json(text, file)
    found: dict[str, float] = {}
    for at, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().rstrip(",")
        if stripped and not stripped.startswith("#"):
            found.update(parse_limits(stripped, file, at))
    return found


def _from_json(text: str, file: str) -> dict[str, float]:
    import json  # takes longer to load than all of the monitor, and few have such a file

    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"this is not JSON: {error}", file=file) from None
    found: dict[str, float] = {}
    for name, value in data.items():
        amount = value[0] if isinstance(value, list) and value else value
        # A summary of an earlier run may serve as limits, and says more than limits.
        if name in NO_LIMITS or (name not in FIELDS and not _is_number(amount)):
            continue
        found[name] = _limit(name, str(amount), file, None)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _limit(name: str, text: str, file: str | None, line: int | None) -> float:
    if name not in _LIMITABLE:
        known = ", ".join(_LIMITABLE)
        raise InputError(f"there is no limit for {name!r}", file=file, line=line, remedy=f"there is one for {known}")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or not isfinite(value):
        remedy = f"it is a number of {FIELDS[name][0]} that is not negative"
        raise InputError(f"the limit of {name} cannot be {text!r}", file=file, line=line, remedy=remedy)
    return value


def exceeded(limits: dict[str, float], values: dict[str, float]) -> dict[str, float]:
    """The limits that `values` are above, in the order in which they were given."""
    over = {}
    for name, limit in limits.items():
        value = values.get(name, 0.0)
        allowed = limit + CORES_GRACE if name == "cores" else limit
        if value > 0 and value > allowed + 1e-9:
            over[name] = limit
    return over


def verdict(over: dict[str, float], values: dict[str, float], after: float) -> str:
    """What was exceeded, by how much and when, in one sentence."""
    parts = []
    for name, limit in over.items():
        unit, decimals = FIELDS[name]
        least = min(max(decimals, 1), 3)
        shown = (number(values[name], places) for places in range(least, 9))
        value = next((text for text in shown if text != number(limit)), number(values[name]))
        parts.append(f"{name} {value} {unit} is over the limit of {number(limit)} {unit}")
    return f"{' and '.join(parts)}, {after:.1f} s after the start"
