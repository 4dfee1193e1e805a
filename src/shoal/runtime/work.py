"""What a node is sent for a granted task: a function that takes its place first, runs the user's own, and leaves.

Taking the place means: held to the granted processors, with the variables that tell of hosts, ranks and devices, and
with a line to the driver. Worker processes run one call at a time, and the next one has a place of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal.nets.work import Timed
from shoal.runner.pinning import pinned
from shoal.runner.seats import environment_of
from shoal.runtime.calls import Driver, attach
from shoal.steward.ranks import Rank


class Seat(msgspec.Struct, frozen=True):
    """Where one process of a task sits."""

    environment: dict[str, str]
    cpus: tuple[int, ...]
    driver: Driver | None = None


def seat_of(rank: Rank, addresses: Sequence[str], driver: Driver | None) -> Seat:
    """The seat of a rank; `addresses` are those of its hosts, in the order of `SHOAL_HOSTS`."""
    variables = {**dict(environment_of(rank.places)), **dict(rank.environment), "SHOAL_ADDRESSES": ",".join(addresses)}
    cpus = sorted({cpu for place in rank.places for cpu in place.cpus})
    return Seat(variables, tuple(cpus), driver)


@contextmanager
def seated(seat: Seat) -> Iterator[None]:
    """While this lasts the process is where the task was granted its place."""
    before = {name: os.environ.get(name) for name in seat.environment}
    os.environ.update(seat.environment)
    attach(seat.driver)
    try:
        with pinned(seat.cpus):
            yield
    finally:
        attach(None)
        _put_back(before)


def _put_back(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def granted(function: Callable[..., Any]) -> Callable[..., Timed]:
    """The function as it is sent to nodes, once for all its calls; each call says where it sits."""

    def perform(seat: Seat, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Timed:
        started, cpu = time.time(), time.process_time()
        with seated(seat):
            value = function(*arguments, **keywords)
        if isinstance(value, Timed):  # a command, which times itself
            return value
        return Timed(value, started, time.time(), time.process_time() - cpu)

    perform.__name__ = perform.__qualname__ = getattr(function, "__name__", "task")
    return perform
