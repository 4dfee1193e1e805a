"""Pins a process to processors (CPU affinity).

A pinned task has its processors in the variable `SHOAL_CPUS` of its order. The compiled launcher reads them there and
sets the affinity between fork and exec. The Python launcher, which uses posix_spawn, sets its own affinity while it
spawns (`pinned`), and the child inherits it. Tasks that are not pinned have no such variable and no extra cost.
`shoal.execution.processes.orders` assigns the processors; launchers import only this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

CPUS = "SHOAL_CPUS"


def number_list(text: str) -> list[int]:
    """Returns the numbers in `0-3,8,10-11`, the system's format for sets of processors; skips invalid parts."""
    found: list[int] = []
    for piece in text.strip().split(","):
        first, _, last = piece.strip().partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found += range(int(first), int(last or first) + 1)
    return found


def number_text(numbers: Iterable[int]) -> str:
    """Formats numbers as `0-3,8`: the inverse of `number_list`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def cpus_in(variables: Iterable[tuple[str, str]]) -> list[int]:
    """Returns the processors named in the variables of an order; empty if there are none."""
    return next((number_list(value) for name, value in variables if name == CPUS), [])


def pin(cpus: Iterable[int], pid: int = 0) -> bool:
    """Pins a process, or this one, to processors; returns whether the system did that."""
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
    """Pins processes that are started inside the block from their first instruction on."""
    wanted = list(cpus)
    before = os.sched_getaffinity(0) if wanted and hasattr(os, "sched_getaffinity") else None
    try:
        pin(wanted)
        yield
    finally:
        if before is not None:
            pin(before)
