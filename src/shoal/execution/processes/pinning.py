"""Holding a process to processors.

A task that is started by a launcher has its processors in the variable `SHOAL_CPUS` of its order; whoever starts the
process reads them there (`cpus_in`) and sets the affinity between fork and exec. A Python launcher, which has no such
moment, takes on the affinity itself while it spawns (`pinned`). Tasks without a grant carry no such variable and cost
nothing. Who gets which processors is left to `shoal.execution.processes.orders`; a launcher imports
only this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

CPUS = "SHOAL_CPUS"


def number_list(text: str) -> list[int]:
    """The numbers of `0-3,8,10-11`, as the system writes sets of processors; what is no number is left out."""
    found: list[int] = []
    for piece in text.strip().split(","):
        first, _, last = piece.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found += range(int(first), int(last or first) + 1)
    return found


def number_text(numbers: Iterable[int]) -> str:
    """`0-3,8`: the opposite of `number_list`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def cpus_in(variables: Iterable[tuple[str, str]]) -> list[int]:
    """The processors named in the variables of an order; empty if none are."""
    return next((number_list(value) for name, value in variables if name == CPUS), [])


def pin(cpus: Iterable[int], pid: int = 0) -> bool:
    """Holds a process, or ourselves, to these processors; whether the system did that."""
    wanted = list(cpus)
    if not wanted or not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(pid, wanted)
    except (OSError, ValueError, OverflowError):
        return False
    return True


@contextmanager
def pinned(cpus: Iterable[int]) -> Iterator[None]:
    """While this lasts, processes that we start are held to these processors from their first instruction on."""
    wanted = list(cpus)
    before = os.sched_getaffinity(0) if wanted and hasattr(os, "sched_getaffinity") else None
    try:
        pin(wanted)
        yield
    finally:
        if before is not None:
            pin(before)
