"""Runs controllers against the modelled node as a driver would live: samples, endings, periods, caps.

What there is to run never ends unless the scenario says so. The controller sees what a node can sense, with noise; what
is kept of a run is the work that was really done, which it cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from shoal.core.policies.throttle.controller import Controller, ControllerState, ThrottleVerdict
from shoal.core.policies.throttle.readings import SAMPLE_SECONDS, NodeSample, Period
from shoal.core.policies.throttle.registry import Throttle
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.sim.throttled_node import AFTER, LIMIT, FluidNode, Party, Supply, ThrottleScenario

SAMPLES = 8
"""In a control period."""
ENDLESS = 1_000_000


class ControlPeriod(msgspec.Struct, frozen=True):
    """One control period as it was."""

    caps: Sequence[int]
    """Per kind what was allowed in this period."""
    work: Sequence[float]
    """Per kind the work done, in seconds of undisturbed tasks per second."""
    running: Sequence[float]
    """Per kind how many were under way in the end."""
    completed: Sequence[int]
    verdicts: Sequence[ThrottleVerdict | None]
    """Per kind what the controller said at the beginning of the period."""


class _Seat:
    """A party at work."""

    def __init__(self, party: Party, controller: Controller) -> None:
        self.party = party
        self.throttle = Throttle(controller)


class Play:
    """One run of a scenario."""

    def __init__(self, scenario: ThrottleScenario, make: Callable[[], Controller], seed: int) -> None:
        self.scenario = scenario
        self.random = Random(f"{scenario.name} {seed}")
        self.node = FluidNode(scenario.kinds, scenario.supplies, Random(f"tasks {scenario.name} {seed}"))
        count = len(scenario.kinds)
        self.names = [kind.name for kind in scenario.kinds]
        self.left = [scenario.amounts.get(name, ENDLESS) for name in self.names]
        self.caps = [0] * count
        self.verdicts: list[ThrottleVerdict | None] = [None] * count
        self.completed = [0] * count
        parties = scenario.parties or (Party(tuple(range(count))),)
        self.seats = [_Seat(party, make()) for party in parties]
        self._seat_of = {kind: seat for seat in self.seats for kind in seat.party.kinds}
        self._before = [dict(used) for used in self.node.used]

    def execute(self) -> list[ControlPeriod]:
        steps = []
        changes = dict(self.scenario.changes)
        for period in range(self.scenario.periods):
            if period in changes:
                self.node.supply(changes[period])
            for seat in self.seats:
                if period >= seat.party.begins:
                    self._decide(seat)
            steps.append(self._live(period))
        return steps

    def _decide(self, seat: _Seat) -> None:
        kinds = [kind for kind in seat.party.kinds if self.left[kind] or self.node.running[kind]]
        waiting = {self.names[kind]: self.left[kind] for kind in kinds}
        limits = {self.names[kind]: self.scenario.limits.get(self.names[kind], LIMIT) for kind in kinds}
        verdicts = seat.throttle.decide(self.node.now, waiting, limits)
        for kind in kinds:
            verdict = self.verdicts[kind] = verdicts[self.names[kind]]
            cap = verdict.cap if verdict.cap is not None else LIMIT
            self.caps[kind] = min(cap, limits[self.names[kind]])
            self._fill(kind)

    def _fill(self, kind: int) -> None:
        while self.node.running[kind] < self.caps[kind] and self.left[kind]:
            self.left[kind] -= 1
            self.node.start(kind)

    def _live(self, period: int) -> ControlPeriod:
        node = self.node
        work, caps, begin = list(node.work), list(self.caps), node.now
        completed = list(self.completed)
        for number in range(SAMPLES):
            until = begin + (number + 1) * SAMPLE_SECONDS
            while True:
                ended = node.advance(until)
                if not ended:
                    break
                for one in ended:
                    self.completed[one.kind] += 1
                    self._seat_of[one.kind].throttle.ended(node.now, self.names[one.kind], one.seconds)
                    self._fill(one.kind)
            for seat in self.seats:
                if period >= seat.party.begins:
                    seat.throttle.sample(node.now, self._sense(seat.party))
            self._before = [dict(used) for used in node.used]
        seconds = node.now - begin
        done = [(after - before) / seconds for before, after in zip(work, node.work, strict=True)]
        more = [after - before for before, after in zip(completed, self.completed, strict=True)]
        return ControlPeriod(caps, done, list(node.running), more, list(self.verdicts))

    def _sense(self, party: Party) -> NodeSample:
        seen = {}
        for name in ("cpu", "disk", "network"):
            share = 0.0
            if name in self.node.supplies and not self.node.supplies[name].outside:
                used = sum(self.node.used[kind][name] - self._before[kind][name] for kind in party.kinds)
                share = used / SAMPLE_SECONDS
            seen[name] = min(1.0, max(0.0, share + self.random.gauss(0.0, self.scenario.noise)))
        running = {self.names[kind]: self.node.running[kind] for kind in party.kinds}
        return NodeSample(user=seen["cpu"], disk=seen["disk"], network=seen["network"], running=running)


PERIODS = 30
SETTLED = 3
"""Periods at the beginning that do not count."""
ENOUGH = 0.99
"""The least number that does this part of the best is where the knee is."""


class Static:
    """A controller that always says the same."""

    def __init__(self, caps: Mapping[str, int]) -> None:
        self.caps = caps

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        return {
            name: ThrottleVerdict(self.caps[name], ControllerState.FIXED, "always so many") for name in period.turnout
        }

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """Nothing follows from it."""

    def widen(self, category: str, level: int) -> bool:
        """It never changes."""
        return False

    def profiles(self) -> dict[str, UsageProfile]:
        return {}


class Best(msgspec.Struct, frozen=True):
    """What fixed numbers come to."""

    caps: Sequence[int]
    """Per kind the best number."""
    knees: Sequence[int]
    """Per kind the least number that is nearly as good, with the others at their best."""
    work: float


def static_work(scenario: ThrottleScenario, caps: Sequence[int], seeds: Sequence[int]) -> float:
    """Work per second with these numbers, without the beginning."""
    names = [kind.name for kind in scenario.kinds]
    allowed = dict(zip(names, caps, strict=True))
    total = 0.0
    for seed in seeds:
        steps = Play(scenario, lambda: Static(allowed), seed).execute()[SETTLED:]
        total += sum(sum(step.work) for step in steps) / len(steps)
    return total / len(seeds)


def candidates(most: int, fine: int) -> list[int]:
    """All numbers up to twice `fine`, then ever fewer of the larger ones."""
    found, number = [], 1
    while number <= most:
        found.append(number)
        number += max(1, number // fine)
    return found


def best_static(
    scenario: ThrottleScenario,
    supplies: Mapping[str, Supply],
    seeds: Sequence[int] = (1,),
    most: int = 160,
    fine: int = 16,
) -> Best:
    """The best fixed numbers while there is so much of each resource."""
    trial = msgspec.structs.replace(scenario, supplies=supplies, changes=(), periods=PERIODS, parties=())
    names = [kind.name for kind in scenario.kinds]
    tops = [min(most, scenario.limits.get(name, most)) for name in names]
    caps = [min(8, top) for top in tops]
    knees, best = list(caps), 0.0
    for _ in range(1 if len(caps) == 1 else 3):
        before = best
        for at, top in enumerate(tops):
            tried = _sweep(trial, caps, at, candidates(top, fine), seeds)
            best = max(tried.values())
            caps[at] = next(number for number, work in tried.items() if work == best)
            knees[at] = next(number for number, work in tried.items() if work >= ENOUGH * best)
        if best <= before * 1.002:
            break
    return Best(tuple(caps), tuple(knees), best)


def _sweep(
    trial: ThrottleScenario, caps: Sequence[int], at: int, numbers: Sequence[int], seeds: Sequence[int]
) -> dict[int, float]:
    """Work for each number of one kind; numbers far beyond the best are left out."""
    tried: dict[int, float] = {}
    best, since = 0.0, 0
    for number in numbers:
        work = tried[number] = static_work(trial, [*caps[:at], number, *caps[at + 1 :]], seeds)
        since = 0 if work > best * 1.001 else since + 1
        best = max(best, work)
        if since > len(numbers) // 4:
            break
    return tried


GOOD = 0.95
LASTING = 5


class Score(msgspec.Struct, frozen=True):
    """One run of one controller."""

    work: float
    """Of the best fixed numbers' work, after `AFTER` periods (after a change of capacity, after its eight)."""
    early: float
    """The same over the `AFTER` periods that follow those."""
    changes: float
    """The share of those periods in which the number of tasks changed, of the kind that changed most often."""
    followed: int | None
    """Periods until a change of capacity was followed, the slowest; None if there was none, -1 if never."""
    levels: Sequence[float]
    """Per kind the mean number allowed, after `AFTER` periods."""


class Yardstick(msgspec.Struct, frozen=True):
    """The best fixed numbers of each stretch of a scenario."""

    bests: Sequence[Best]


def yardstick(scenario: ThrottleScenario, seeds: Sequence[int] = (1,), fine: int = 16) -> Yardstick:
    stretches = [scenario.supplies, *(supplies for _, supplies in scenario.changes)]
    return Yardstick([best_static(scenario, supplies, seeds, fine=fine) for supplies in stretches])


def score(
    scenario: ThrottleScenario, make: Callable[[], Controller], seed: int, stick: Yardstick, follow: int = 8
) -> Score:
    """Plays the scenario and compares."""
    steps = Play(scenario, make, seed).execute()
    counted: list[tuple[int, float]] = []
    followed: int | None = None
    for number, ((begin, end), best) in enumerate(zip(scenario.segments(), stick.bests, strict=True)):
        skipped = AFTER if number == 0 else follow
        counted += [(at, sum(steps[at].work) / best.work) for at in range(begin + skipped, end)]
        if number:
            took = _followed(steps[begin:end], best)
            followed = took if followed is None or took < 0 or (took > followed >= 0) else followed
    kinds = range(len(scenario.kinds))
    after = [at for at, _ in counted]
    changed = max(sum(steps[at].caps[kind] != steps[at - 1].caps[kind] for at in after) for kind in kinds) / len(after)
    work = sum(share for _, share in counted) / len(counted)
    early = [share for at, share in counted if at < 2 * AFTER]
    levels = [sum(steps[at].caps[kind] for at in after) / len(after) for kind in kinds]
    return Score(work, sum(early) / len(early), changed, followed, levels)


def _followed(steps: Sequence[ControlPeriod], best: Best) -> int:
    good = [
        sum(step.work) >= GOOD * best.work
        and all(cap <= max(knee + 3, 1.25 * knee) for cap, knee in zip(step.caps, best.knees, strict=True))
        for step in steps
    ]
    for at in range(len(good) - LASTING):
        if all(good[at : at + LASTING]):
            return at
    return -1


class Sharing(msgspec.Struct, frozen=True):
    """Two runs at one server."""

    first: float
    """The first's share of the work done."""
    latency: float
    """The time of tasks in multiples of that of an undisturbed one."""
    used: float
    """How much of the server is used."""


def sharing(scenario: ThrottleScenario, make: Callable[[], Controller], seed: int, settle: int = 30) -> Sharing:
    """What becomes of two runs, from so many periods after the second has come."""
    steps = Play(scenario, make, seed).execute()[scenario.parties[1].begins + settle :]
    work = [sum(step.work[kind] for step in steps) for kind in (0, 1)]
    running = sum(sum(step.running) for step in steps)
    capacity = 1 / scenario.kinds[0].phases[0].use["server"]
    return Sharing(work[0] / sum(work), running / sum(work), sum(work) / len(steps) / capacity)
