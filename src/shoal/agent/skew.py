"""Clocks that differ: whether a node's clock is so far from the cluster's that somebody should be told.

Nothing is decided by a node's clock: leases go by the clock of the books. But the times in a run's record are those of
the nodes, and the end of an allocation is compared with them.
"""

from __future__ import annotations

from shoal.model.quantities import show_seconds

TOLERATED = 2.0
"""Seconds; less hardly shows in a record."""


def ahead(before: float, after: float, theirs: float) -> float:
    """Seconds by which our clock is ahead of one that showed `theirs` at some moment between; 0: not worth a word."""
    found = (before + after) / 2 - theirs
    return found if abs(found) > TOLERATED + (after - before) / 2 else 0.0


def sentence(name: str, seconds: float) -> str:
    """What is told of a clock that is wrong."""
    where = "ahead of" if seconds > 0 else "behind"
    return (
        f"the clock of {name} is {show_seconds(round(abs(seconds)))} {where} the cluster's, "
        "and so are the times of its tasks; let it be set by NTP"
    )
