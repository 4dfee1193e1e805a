"""A fluid model of a node for throttle simulations: tasks in phases share capacities and slow down under contention;
and the scenarios that controllers are measured with.

A phase of a task uses a fixed amount of each resource at full speed. If the running phases request more of a resource
than exists, they share it in proportion, so the speed of each is limited by its scarcest resource. With too many
requests a resource may lose capacity (thrashing). A resource may be outside the node: its use is then not measurable.
The node makes no decisions; `shoal.sim.throttle_measurement` starts the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import msgspec


class TaskPhase(msgspec.Struct, frozen=True):
    """A part of a task: its fraction of the task's duration, and its use of each resource at full speed."""

    share: float
    use: Mapping[str, float]


class TaskKind(msgspec.Struct, frozen=True):
    """Properties of the tasks of a category."""

    name: str
    phases: Sequence[TaskPhase]
    seconds: float = 2.0
    """Mean duration of a task at full speed."""
    spread: float = 0.2
    """Durations are uniform in this relative range around the mean."""
    tail: float = 0.0
    """If not zero, durations instead have a Pareto distribution with this exponent, truncated at 50 times the mean."""
    rounds: int = 1
    """Number of times that a task repeats its phases."""

    def draw(self, random: Random) -> float:
        if self.tail:
            scale = self.seconds * (self.tail - 1) / self.tail
            return min(50 * self.seconds, float(scale * random.paretovariate(self.tail)))
        return self.seconds * random.uniform(1 - self.spread, 1 + self.spread)


class Supply(msgspec.Struct, frozen=True):
    """Amount of a resource, relative to the nominal capacity of the node."""

    capacity: float = 1.0
    thrashing: float = 0.0
    """Fraction of the capacity that is lost per unit of relative excess demand."""
    outside: bool = False
    """The resource is shared with others, and its use is not measurable."""
    honest: bool = True
    """Capacity lost by thrashing is not measured as use. If False, the resource looks busy nevertheless."""

    def useful(self, demand: float) -> float:
        """The usable capacity with this total demand."""
        if demand <= self.capacity:
            return self.capacity
        return self.capacity * max(0.2, 1.0 - self.thrashing * (demand / self.capacity - 1.0))


class _Task(msgspec.Struct):
    kind: int
    begin: float
    work: float
    """Its duration at full speed."""
    phase: int
    left: int
    """Number of remaining phases, including the present one."""
    mark: int


class EndedTask(msgspec.Struct, frozen=True):
    """A task that has ended."""

    at: float
    kind: int
    seconds: float
    mark: int = -1
    """The mark that was passed to `start`."""


class FluidNode:
    """Running tasks, and the resources that they use."""

    def __init__(self, kinds: Sequence[TaskKind], supplies: Mapping[str, Supply], random: Random) -> None:
        self.kinds = kinds
        self.random = random
        self.now = 0.0
        self.running = [0] * len(kinds)
        self.work = [0.0] * len(kinds)
        """By kind, the work done so far, in seconds of tasks at full speed."""
        self.used: list[dict[str, float]] = [dict.fromkeys(supplies, 0.0) for _ in kinds]
        """By kind, the use of each resource: fraction times seconds."""
        self._slots = [(kind, phase) for kind, each in enumerate(kinds) for phase in range(len(each.phases))]
        self._slot_of = {pair: at for at, pair in enumerate(self._slots)}
        self._counts = [0] * len(self._slots)
        self._clocks = [0.0] * len(self._slots)
        """By phase of each kind, the work that a task would have done if it had been in that phase since time 0."""
        self._ends: list[list[tuple[float, int, _Task]]] = [[] for _ in self._slots]
        self._serial = 0
        self.supply(supplies)

    def supply(self, supplies: Mapping[str, Supply]) -> None:
        """Sets the amount of each resource from now on."""
        self.supplies = dict(supplies)
        self._known: dict[tuple[int, ...], tuple[list[float], list[dict[str, float]]]] = {}

    def start(self, kind: int, work: float | None = None, mark: int = -1) -> None:
        """Starts a task; `work` is its duration at full speed, otherwise it is random."""
        what = self.kinds[kind]
        # Each task starts at a random phase, because tasks of a real run are not synchronised.
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
        """By phase of each kind its speed, and by kind the use of each resource at that speed."""
        key = tuple(self._counts)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._share_out()
        return found

    def _share_out(self) -> tuple[list[float], list[dict[str, float]]]:
        demand = dict.fromkeys(self.supplies, 0.0)
        uses = [self.kinds[kind].phases[phase].use for kind, phase in self._slots]
        for count, use in zip(self._counts, uses, strict=True):
            for name, amount in use.items():
                demand[name] += count * amount
        factor = {
            name: min(1.0, supply.useful(demand[name]) / demand[name]) if demand[name] else 1.0
            for name, supply in self.supplies.items()
        }
        speeds = [min((factor[name] for name in use), default=1.0) for use in uses]
        used = [dict.fromkeys(self.supplies, 0.0) for _ in self.kinds]
        for (kind, _), count, use, speed in zip(self._slots, self._counts, uses, speeds, strict=True):
            for name, amount in use.items():
                supply = self.supplies[name]
                seen = speed if supply.honest else max(speed, min(1.0, supply.capacity / demand[name]))
                used[kind][name] += count * amount * seen
        return speeds, used

    def advance(self, until: float) -> list[EndedTask]:
        """Advances time until the first task ends, or to `until`; tasks move on to their next phases meanwhile."""
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
"""Default maximum number of concurrent tasks of a category."""
AFTER = 15
"""Control periods after which a controller must have converged."""
PERIODS = 90


class Party(msgspec.Struct, frozen=True):
    """A separate run on the node: it sees and throttles its own categories only."""

    kinds: Sequence[int]
    begins: int = 0
    """The control period in which it starts."""


class ThrottleScenario(msgspec.Struct, frozen=True):
    """Kinds of tasks, resources, and changes of these over time."""

    name: str
    kinds: Sequence[TaskKind]
    supplies: Mapping[str, Supply]
    changes: Sequence[tuple[int, Mapping[str, Supply]]] = ()
    """Control periods with new amounts of resources."""
    noise: float = 0.01
    """Standard deviation of each measurement."""
    periods: int = PERIODS
    limits: Mapping[str, int] = {}
    """Maximum number of concurrent tasks by category, where it is not `LIMIT`."""
    amounts: Mapping[str, int] = {}
    """Number of tasks by category, where it is finite."""
    parties: Sequence[Party] = ()
    """Empty if there is a single run."""

    def segments(self) -> list[tuple[int, int]]:
        """The ranges of periods between changes."""
        edges = [0, *(period for period, _ in self.changes), self.periods]
        return list(pairwise(edges))


def plain(name: str, seconds: float = 2.0, spread: float = 0.2, tail: float = 0.0, **use: float) -> TaskKind:
    """Tasks with constant resource use."""
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
    """The scenarios in which a controller must reach its target score."""
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
    """Further scenarios, in which measured use tells nothing or misleads."""
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
    """Two runs that share a server; the second starts later. With `seen`, the server's use shows as a plateau of the
    network."""
    use = {"server": 1 / capacity, **({"network": 0.02} if seen else {}), "cpu": 0.001}
    kinds = (plain("first", seconds, **use), plain("second", seconds, **use))
    supplies = {"cpu": Supply(), "network": Supply(), "server": Supply(outside=True)}
    parties = (Party((0,)), Party((1,), later))
    name = f"two runs, one server, {'seen on the link' if seen else 'unseen'}"
    return ThrottleScenario(name, kinds, supplies, periods=periods, parties=parties)
