"""A node as a fluid: tasks in phases share capacities, and all are slowed down alike where there is too little.

A phase of a task uses so much of each resource while it goes at full speed. If the phases under way ask for more of a
resource than there is, they get it in proportion, so each is as fast as its scarcest resource lets it be. Beyond the
knee a resource may lose capacity (thrashing). A resource may be outside: then nobody on the node sees how busy it is.
What is started when is left to `play`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import msgspec


class TaskPhase(msgspec.Struct, frozen=True):
    """A part of a task: its share of the task's time, and its use of each resource at full speed."""

    share: float
    use: Mapping[str, float]


class TaskKind(msgspec.Struct, frozen=True):
    """What the tasks of a category are like."""

    name: str
    phases: Sequence[TaskPhase]
    seconds: float = 2.0
    """The mean time of a task that nothing slows down."""
    spread: float = 0.2
    """Times differ evenly by this share of the mean, both ways."""
    tail: float = 0.0
    """If not zero, times have a Pareto distribution with this exponent instead, cut at 50 times the mean."""
    rounds: int = 1
    """How often a task goes through its phases."""

    def draw(self, random: Random) -> float:
        if self.tail:
            scale = self.seconds * (self.tail - 1) / self.tail
            return min(50 * self.seconds, float(scale * random.paretovariate(self.tail)))
        return self.seconds * random.uniform(1 - self.spread, 1 + self.spread)


class Supply(msgspec.Struct, frozen=True):
    """How much there is of a resource, as shares of what a node seems to have."""

    capacity: float = 1.0
    thrashing: float = 0.0
    """The share of the capacity lost for each time the capacity that is asked for beyond it."""
    outside: bool = False
    """It is shared with others, and its use is not sensed."""
    honest: bool = True
    """What is lost by thrashing is not seen as use. If not, the resource looks busy all the same."""

    def useful(self, asked: float) -> float:
        """What is left of the capacity if so much is asked for."""
        if asked <= self.capacity:
            return self.capacity
        return self.capacity * max(0.2, 1.0 - self.thrashing * (asked / self.capacity - 1.0))


class _Task(msgspec.Struct):
    kind: int
    begin: float
    work: float
    """Its time if nothing slows it down."""
    phase: int
    left: int
    """Phases still to come, with the one it is in."""
    mark: int


class EndedTask(msgspec.Struct, frozen=True):
    """A task that is over."""

    at: float
    kind: int
    seconds: float
    mark: int = -1
    """What it was started with."""


class FluidNode:
    """Tasks under way, and what they use."""

    def __init__(self, kinds: Sequence[TaskKind], supplies: Mapping[str, Supply], random: Random) -> None:
        self.kinds = kinds
        self.random = random
        self.now = 0.0
        self.running = [0] * len(kinds)
        self.work = [0.0] * len(kinds)
        """Per kind the work done so far, in seconds of tasks at full speed."""
        self.used: list[dict[str, float]] = [dict.fromkeys(supplies, 0.0) for _ in kinds]
        """Per kind what was used of each resource: shares times seconds."""
        self._slots = [(kind, phase) for kind, each in enumerate(kinds) for phase in range(len(each.phases))]
        self._slot_of = {pair: at for at, pair in enumerate(self._slots)}
        self._counts = [0] * len(self._slots)
        self._clocks = [0.0] * len(self._slots)
        """Per kind of phase the work done by a task that has been in it since the beginning."""
        self._ends: list[list[tuple[float, int, _Task]]] = [[] for _ in self._slots]
        self._serial = 0
        self.supply(supplies)

    def supply(self, supplies: Mapping[str, Supply]) -> None:
        """From now on there is so much of each resource."""
        self.supplies = dict(supplies)
        self._known: dict[tuple[int, ...], tuple[list[float], list[dict[str, float]]]] = {}

    def start(self, kind: int, work: float | None = None, mark: int = -1) -> None:
        """Begins a task; its time, if nothing slows it down, is `work`, or drawn."""
        what = self.kinds[kind]
        # Tasks do not march in step: each begins somewhere in its round of phases.
        first = self.random.randrange(len(what.phases)) if len(what.phases) > 1 else 0
        self.running[kind] += 1
        seconds = what.draw(self.random) if work is None else work
        self._enter(_Task(kind, self.now, seconds, first, what.rounds * len(what.phases), mark))

    def _enter(self, task: _Task) -> None:
        kind = self.kinds[task.kind]
        slot = self._slot_of[task.kind, task.phase]
        self._counts[slot] += 1
        self._serial += 1
        work = task.work * kind.phases[task.phase].share / kind.rounds
        heappush(self._ends[slot], (self._clocks[slot] + work, self._serial, task))

    def _speeds(self) -> tuple[list[float], list[dict[str, float]]]:
        """Per kind of phase its speed, and per kind of task what is used of each resource at that speed."""
        key = tuple(self._counts)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._share_out()
        return found

    def _share_out(self) -> tuple[list[float], list[dict[str, float]]]:
        asked = dict.fromkeys(self.supplies, 0.0)
        uses = [self.kinds[kind].phases[phase].use for kind, phase in self._slots]
        for count, use in zip(self._counts, uses, strict=True):
            for name, amount in use.items():
                asked[name] += count * amount
        factor = {
            name: min(1.0, supply.useful(asked[name]) / asked[name]) if asked[name] else 1.0
            for name, supply in self.supplies.items()
        }
        speeds = [min((factor[name] for name in use), default=1.0) for use in uses]
        used = [dict.fromkeys(self.supplies, 0.0) for _ in self.kinds]
        for (kind, _), count, use, speed in zip(self._slots, self._counts, uses, speeds, strict=True):
            for name, amount in use.items():
                supply = self.supplies[name]
                seen = speed if supply.honest else max(speed, min(1.0, supply.capacity / asked[name]))
                used[kind][name] += count * amount * seen
        return speeds, used

    def advance(self, until: float) -> list[EndedTask]:
        """Lets time pass until the first task ends, or until then; tasks that go on to another phase do so."""
        while True:
            speeds, used = self._speeds()
            soonest, slot = until - self.now, -1
            for at, ends in enumerate(self._ends):
                if ends:
                    left = (ends[0][0] - self._clocks[at]) / speeds[at]
                    if left < soonest:
                        soonest, slot = max(0.0, left), at
            self._pass(soonest, speeds, used)
            if slot < 0:
                return []
            _, _, task = heappop(self._ends[slot])
            self._counts[slot] -= 1
            task.left -= 1
            if task.left:
                task.phase = (task.phase + 1) % len(self.kinds[task.kind].phases)
                self._enter(task)
                continue
            self.running[task.kind] -= 1
            return [EndedTask(self.now, task.kind, self.now - task.begin, task.mark)]

    def _pass(self, seconds: float, speeds: Sequence[float], used: Sequence[Mapping[str, float]]) -> None:
        self.now += seconds
        for at, (kind, _) in enumerate(self._slots):
            if self._counts[at]:
                gone = speeds[at] * seconds
                self._clocks[at] += gone
                self.work[kind] += gone * self._counts[at]
        for mine, rates in zip(self.used, used, strict=True):
            for name, rate in rates.items():
                mine[name] += rate * seconds


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


class ThrottleScenario(msgspec.Struct, frozen=True):
    """Kinds of tasks, what there is for them, and when that changes."""

    name: str
    kinds: Sequence[TaskKind]
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


def plain(name: str, seconds: float = 2.0, spread: float = 0.2, tail: float = 0.0, **use: float) -> TaskKind:
    """Tasks that use the same all the time."""
    return TaskKind(name, (TaskPhase(1.0, use),), seconds, spread, tail)


def _network(capacity: float, thrashing: float = 0.0, honest: bool = True) -> dict[str, Supply]:
    return {"cpu": Supply(), "network": Supply(capacity, thrashing, honest=honest)}


def _changing() -> ThrottleScenario:
    return ThrottleScenario(
        "capacity 60-30-60 %",
        (plain("fetch", network=0.06, cpu=0.005),),
        _network(0.6, 0.1),
        ((50, _network(0.3, 0.1)), (100, _network(0.6, 0.1))),
        periods=150,
    )


def _bursty() -> ThrottleScenario:
    phases = (TaskPhase(0.5, {"network": 0.12}), TaskPhase(0.5, {"cpu": 0.01}))
    return ThrottleScenario("bursty, duty 0.5", (TaskKind("fetch", phases, 3.0, rounds=3),), _network(0.6, 0.1))


def _together(count: int) -> ThrottleScenario:
    kinds = (
        plain("compute", cpu=1 / CORES),
        plain("fetch", network=0.06, cpu=0.01, seconds=1.5),
        plain("write", disk=0.1, cpu=0.005, seconds=3.0),
    )
    supplies = {"cpu": Supply(1.0, 0.05), "network": Supply(0.6, 0.1), "disk": Supply(0.95, 0.1)}
    return ThrottleScenario(f"{('two', 'three')[count - 2]} categories together", kinds[:count], supplies)


def scenarios() -> list[ThrottleScenario]:
    """Those of the bar."""
    return [
        ThrottleScenario("CPU-bound", (plain("compute", cpu=1 / CORES),), {"cpu": Supply(1.0, 0.05)}),
        ThrottleScenario("network plateau at 60 %", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6)),
        ThrottleScenario("thrashing beyond the knee", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6, 0.3)),
        ThrottleScenario("tiny tasks of 0.6 %", (plain("fetch", network=0.006),), _network(0.6, 0.1), noise=0.005),
        _bursty(),
        _changing(),
        _together(2),
        _together(3),
        ThrottleScenario(
            "heavy-tailed times", (plain("fetch", tail=1.5, network=0.06, cpu=0.005),), _network(0.6, 0.1)
        ),
    ]


def further() -> list[ThrottleScenario]:
    """More than the bar asks for: where use says nothing, or lies."""
    server = {"cpu": Supply(), "server": Supply(outside=True)}
    return [
        ThrottleScenario("server outside, unseen", (plain("call", server=0.1, cpu=0.001),), server),
        ThrottleScenario(
            "thrashing that looks busy", (plain("fetch", network=0.06, cpu=0.005),), _network(0.6, 0.3, honest=False)
        ),
        ThrottleScenario(
            "tasks of 10 ms", (plain("fetch", network=0.06, cpu=0.005, seconds=0.01),), _network(0.6), periods=45
        ),
        ThrottleScenario(
            "tasks of two minutes", (plain("fetch", network=0.06, cpu=0.005, seconds=120.0),), _network(0.6)
        ),
        ThrottleScenario("knee of three", (plain("fetch", network=0.2, cpu=0.01),), _network(0.6, 0.1)),
        ThrottleScenario(
            "contract below the knee", (plain("compute", cpu=1 / CORES),), {"cpu": Supply()}, limits={"compute": 6}
        ),
    ]


def shared(
    seen: bool = False, seconds: float = 2.0, capacity: float = 20, later: int = 12, periods: int = 150
) -> ThrottleScenario:
    """Two runs that share a server; the second comes later. `seen`: its use is a plateau of the link."""
    use = {"server": 1 / capacity, **({"network": 0.02} if seen else {}), "cpu": 0.001}
    kinds = (plain("first", seconds, **use), plain("second", seconds, **use))
    supplies = {"cpu": Supply(), "network": Supply(), "server": Supply(outside=True)}
    parties = (Party((0,)), Party((1,), later))
    name = f"two runs, one server, {'seen on the link' if seen else 'unseen'}"
    return ThrottleScenario(name, kinds, supplies, periods=periods, parties=parties)
