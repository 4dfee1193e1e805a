"""The orders of a run with the seats of their tasks: who declares whole cores or GPUs is held to certain ones.

Light, since every run asks for it; which seats there are is in `shoal.runner.seats`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from shoal.model.resources import FRACTION
from shoal.model.task import Profile
from shoal.runner.link import Order

if TYPE_CHECKING:
    from shoal.runner.seats import Seats


class Seating:
    """Seats for the orders of one run: who asks for whole cores or GPUs gets certain ones."""

    def __init__(self, seats: Seats, needs: Sequence[tuple[int, int]], kind_of: Callable[[int], int]) -> None:
        """`needs` are cores and GPUs by kind of task; 0 and 0 for those that are not pinned."""
        self._seats = seats
        self._needs = needs
        self._kind_of = kind_of

    def seated(self, orders: Sequence[Order]) -> Sequence[Order]:
        """The orders, with what the task is told; tasks so short that they come in bundles are not pinned."""
        if len(orders) != 1:
            return orders
        (order,) = orders
        cores, gpus = self._needs[self._kind_of(order[0])]
        if not cores and not gpus:
            return orders
        told = self._seats.take(order[0], cores, gpus)
        variables = without(told, order[4]) + order[4]
        seated = (*order[:4], variables, *order[5:])
        return [cast(Order, seated)]

    def give(self, task: int) -> None:
        self._seats.give(task)

    def close(self) -> None:
        self._seats.close()


def without(told: bytes, own: bytes) -> bytes:
    """The variables of a seat but for those that the user has set for the task."""
    if not own:
        return told
    names = {entry.partition(b"=")[0] for entry in own.split(b"\0")}
    kept = [entry for entry in told.split(b"\0") if entry and entry.partition(b"=")[0] not in names]
    return b"".join(entry + b"\0" for entry in kept)


def seating_for(profiles: Sequence[Profile], kind_of: Callable[[int], int]) -> Seating | None:
    """The seating of a run on this machine; None if none of its tasks declares whole cores or GPUs."""
    needs = [needs_of(profile) for profile in profiles]
    if not any(cores or gpus for cores, gpus in needs) or not hasattr(os, "sched_setaffinity"):
        return None
    # Only who needs it pays for it: most tasks are held to nothing.
    from shoal.runner.seats import SHARED, Seats
    from shoal.runner.topology import this_machine

    folder = SHARED if os.path.isdir(SHARED) else tempfile.gettempdir()
    return Seating(Seats(this_machine(), folder), needs, kind_of)


def needs_of(profile: Profile) -> tuple[int, int]:
    """Whole cores and GPUs that a task declares; parts of one are shared, so nobody is held to them."""
    found = []
    for name in ("cores", "gpus"):
        amount = profile.resources.get(name) if profile.declares(name) else 0
        found.append(amount // FRACTION if amount % FRACTION == 0 else 0)
    return found[0], found[1]
