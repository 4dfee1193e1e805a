"""Measures throttle controllers against the simulated node: runs them as a live driver would, finds the best fixed
limits, and scores controllers relative to these.

The supply of tasks is endless unless the scenario limits it. The controller gets noisy measurements, as on a real node.
The score uses the work that was really done, which the controller cannot see.
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
"""Samples in a control period."""
ENDLESS = 1_000_000


class ControlPeriod(msgspec.Struct, frozen=True):
    """Record of one control period."""

    caps: Sequence[int]
    """By kind, the limit in this period."""
    work: Sequence[float]
    """By kind, the work done, in seconds of undisturbed tasks per second."""
    running: Sequence[float]
    """By kind, the number of running tasks at the end."""
    completed: Sequence[int]
    verdicts: Sequence[ThrottleVerdict | None]
    """By kind, the controller's decision at the start of the period."""


class _PartyController:
    """A party with its controller."""

    def __init__(self, party: Party, controller: Controller) -> None:
        self.party = party
        self.throttle = Throttle(controller)


class ThrottleSimulation:
    """One simulated run of a throttle scenario."""

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
        self.parties = [_PartyController(party, make()) for party in parties]
        self._party_of = {kind: member for member in self.parties for kind in member.party.kinds}
        self._before = [dict(used) for used in self.node.used]

    def execute(self) -> list[ControlPeriod]:
        steps = []
        changes = dict(self.scenario.changes)
        for period in range(self.scenario.periods):
            if period in changes:
                self.node.supply(changes[period])
            for member in self.parties:
                if period >= member.party.begins:
                    self._decide(member)
            steps.append(self._live(period))
        return steps

    def _decide(self, member: _PartyController) -> None:
        kinds = [kind for kind in member.party.kinds if self.left[kind] or self.node.running[kind]]
        waiting = {self.names[kind]: self.left[kind] for kind in kinds}
        limits = {self.names[kind]: self.scenario.limits.get(self.names[kind], LIMIT) for kind in kinds}
        verdicts = member.throttle.decide(self.node.now, waiting, limits)
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
                    self._party_of[one.kind].throttle.ended(node.now, self.names[one.kind], one.seconds)
                    self._fill(one.kind)
            for member in self.parties:
                if period >= member.party.begins:
                    member.throttle.sample(node.now, self._sense(member.party))
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
"""Number of periods at the start that do not count."""
ENOUGH = 0.99
"""The knee is the smallest limit with at least this fraction of the best work."""


class Static:
    """A controller with constant limits."""

    def __init__(self, caps: Mapping[str, int]) -> None:
        self.caps = caps

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        return {
            name: ThrottleVerdict(self.caps[name], ControllerState.FIXED, "constant limit") for name in period.turnout
        }

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """Does nothing."""

    def widen(self, category: str, level: int) -> bool:
        """Never changes a limit."""
        return False

    def profiles(self) -> dict[str, UsageProfile]:
        return {}


class Best(msgspec.Struct, frozen=True):
    """The best fixed limits of a scenario."""

    caps: Sequence[int]
    """By kind, the best limit."""
    knees: Sequence[int]
    """By kind, the smallest limit that is nearly as good, with the others at their best."""
    work: float


def static_work(scenario: ThrottleScenario, caps: Sequence[int], seeds: Sequence[int]) -> float:
    """Work per second with these limits, without the first periods."""
    names = [kind.name for kind in scenario.kinds]
    allowed = dict(zip(names, caps, strict=True))
    total = 0.0
    for seed in seeds:
        steps = ThrottleSimulation(scenario, lambda: Static(allowed), seed).execute()[SETTLED:]
        total += sum(sum(step.work) for step in steps) / len(steps)
    return total / len(seeds)


def candidates(most: int, fine: int) -> list[int]:
    """All numbers up to twice `fine`, then increasingly sparse larger ones."""
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
    """The best fixed limits for these amounts of each resource."""
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
    """Work for each limit of one kind; stops far beyond the best one."""
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
    """Result of one run of one controller."""

    work: float
    """Relative to the best fixed limits, from `AFTER` periods after the start and `follow` periods after a change of
    capacity."""
    early: float
    """The same over the first `AFTER` periods of that time."""
    changes: float
    """Fraction of those periods in which the limit changed, for the kind with most changes."""
    followed: int | None
    """Periods until the controller had adapted to a change of capacity, for the slowest change; None if there was none,
    -1 if it never adapted."""
    levels: Sequence[float]
    """By kind, the mean limit after `AFTER` periods."""


class BestLimits(msgspec.Struct, frozen=True):
    """The best fixed limits of each segment of a scenario."""

    bests: Sequence[Best]


def best_limits(scenario: ThrottleScenario, seeds: Sequence[int] = (1,), fine: int = 16) -> BestLimits:
    stretches = [scenario.supplies, *(supplies for _, supplies in scenario.changes)]
    return BestLimits([best_static(scenario, supplies, seeds, fine=fine) for supplies in stretches])


def score(
    scenario: ThrottleScenario, make: Callable[[], Controller], seed: int, reference: BestLimits, follow: int = 8
) -> Score:
    """Runs the scenario and compares it with the best fixed limits."""
    steps = ThrottleSimulation(scenario, make, seed).execute()
    counted: list[tuple[int, float]] = []
    followed: int | None = None
    for number, ((begin, end), best) in enumerate(zip(scenario.segments(), reference.bests, strict=True)):
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
    """How two runs share one server."""

    first: float
    """The first run's fraction of the work done."""
    latency: float
    """Task duration relative to an undisturbed task."""
    used: float
    """Utilisation of the server."""


def sharing(scenario: ThrottleScenario, make: Callable[[], Controller], seed: int, settle: int = 30) -> Sharing:
    """Measures sharing from `settle` periods after the start of the second run."""
    steps = ThrottleSimulation(scenario, make, seed).execute()[scenario.parties[1].begins + settle :]
    work = [sum(step.work[kind] for step in steps) for kind in (0, 1)]
    running = sum(sum(step.running) for step in steps)
    capacity = 1 / scenario.kinds[0].phases[0].use["server"]
    return Sharing(work[0] / sum(work), running / sum(work), sum(work) / len(steps) / capacity)
