"""Situations in which the best number of tasks together is known to differ: by name, each with all it needs.

Shares are of what the node seems to have. Sixteen processors, so a task that keeps one busy uses 1/16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from shoal.sim.throttle.node import Kind, Phase, Supply

CORES = 16
LIMIT = 400
"""How many tasks of a category the contract admits together, if nothing else is said."""
AFTER = 15
"""Control periods until a controller has to be there."""
PERIODS = 90


class Party(msgspec.Struct, frozen=True):
    """A run of its own: it sees and throttles only its own categories."""

    kinds: Sequence[int]
    begins: int = 0
    """The control period in which it comes."""


class Scenario(msgspec.Struct, frozen=True):
    """Kinds of tasks, what there is for them, and when that changes."""

    name: str
    kinds: Sequence[Kind]
    supplies: Mapping[str, Supply]
    changes: Sequence[tuple[int, Mapping[str, Supply]]] = ()
    """Control periods from which there is something else."""
    noise: float = 0.01
    """Standard deviation of each sensed share."""
    periods: int = PERIODS
    limits: Mapping[str, int] = {}
    """What the contract admits, where it is not `LIMIT`."""
    amounts: Mapping[str, int] = {}
    """How many tasks a category has, where there is an end to them."""
    parties: Sequence[Party] = ()
    """Empty if all is one run."""

    def segments(self) -> list[tuple[int, int]]:
        """Stretches of periods between changes."""
        edges = [0, *(period for period, _ in self.changes), self.periods]
        return list(pairwise(edges))


def plain(name: str, seconds: float = 2.0, spread: float = 0.2, tail: float = 0.0, **use: float) -> Kind:
    """Tasks that use the same all the time."""
    return Kind(name, (Phase(1.0, use),), seconds, spread, tail)


def _network(capacity: float, thrashing: float = 0.0, honest: bool = True) -> dict[str, Supply]:
    return {"cpu": Supply(), "network": Supply(capacity, thrashing, honest=honest)}


def _changing() -> Scenario:
    return Scenario(
        "capacity 60-30-60 %",
        (plain("fetch", network=0.06, cpu=0.005),),
        _network(0.6, 0.1),
        ((50, _network(0.3, 0.1)), (100, _network(0.6, 0.1))),
        periods=150,
    )


def _bursty() -> Scenario:
    phases = (Phase(0.5, {"network": 0.12}), Phase(0.5, {"cpu": 0.01}))
    return Scenario("bursty, duty 0.5", (Kind("fetch", phases, 3.0, rounds=3),), _network(0.6, 0.1))


def _together(count: int) -> Scenario:
    kinds = (
        plain("compute", cpu=1 / CORES),
        plain("fetch", network=0.06, cpu=0.01, seconds=1.5),
        plain("write", disk=0.1, cpu=0.005, seconds=3.0),
    )
    supplies = {"cpu": Supply(1.0, 0.05), "network": Supply(0.6, 0.1), "disk": Supply(0.95, 0.1)}
    return Scenario(f"{('two', 'three')[count - 2]} categories together", kinds[:count], supplies)


def scenarios() -> list[Scenario]:
    """Those of the bar."""
    return [
        Scenario("CPU-bound", (plain("compute", cpu=1 / CORES),), {"cpu": Supply(1.0, 0.05)}),
        Scenario("network plateau at 60 %", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6)),
        Scenario("thrashing beyond the knee", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6, 0.3)),
        Scenario("tiny tasks of 0.6 %", (plain("fetch", network=0.006),), _network(0.6, 0.1), noise=0.005),
        _bursty(),
        _changing(),
        _together(2),
        _together(3),
        Scenario("heavy-tailed times", (plain("fetch", tail=1.5, network=0.06, cpu=0.005),), _network(0.6, 0.1)),
    ]


def further() -> list[Scenario]:
    """More than the bar asks for: where use says nothing, or lies."""
    server = {"cpu": Supply(), "server": Supply(outside=True)}
    return [
        Scenario("server outside, unseen", (plain("call", server=0.1, cpu=0.001),), server),
        Scenario(
            "thrashing that looks busy", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6, 0.3, honest=False)
        ),
        Scenario("tasks of 10 ms", (plain("fetch", network=0.06, cpu=0.005, seconds=0.01),), _network(0.6), periods=45),
        Scenario("tasks of two minutes", (plain("fetch", network=0.06, cpu=0.005, seconds=120.0),), _network(0.6)),
        Scenario("knee of three", (plain("fetch", network=0.2, cpu=0.01),), _network(0.6, 0.1)),
        Scenario(
            "contract below the knee", (plain("compute", cpu=1 / CORES),), {"cpu": Supply()}, limits={"compute": 6}
        ),
    ]


def shared(
    seen: bool = False, seconds: float = 2.0, capacity: float = 20, later: int = 12, periods: int = 150
) -> Scenario:
    """Two runs that share a server; the second comes later. `seen`: its use is a plateau of the link."""
    use = {"server": 1 / capacity, **({"network": 0.02} if seen else {}), "cpu": 0.001}
    kinds = (plain("first", seconds, **use), plain("second", seconds, **use))
    supplies = {"cpu": Supply(), "network": Supply(), "server": Supply(outside=True)}
    parties = (Party((0,)), Party((1,), later))
    name = f"two runs, one server, {'seen on the link' if seen else 'unseen'}"
    return Scenario(name, kinds, supplies, periods=periods, parties=parties)
