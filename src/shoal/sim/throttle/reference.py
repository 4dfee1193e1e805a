"""The best fixed numbers of tasks for a scenario, found by trying them all in the same model.

Where there are several kinds the numbers are improved one after another until nothing gets better. What counts is the
work done per second, in seconds of undisturbed tasks, of all kinds together: for one kind that is in proportion to its
completed tasks, and it does not depend on which long task happened to end when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.policy.throttle.controller import State, Verdict
from shoal.policy.throttle.profile import Profile
from shoal.policy.throttle.readings import Period
from shoal.sim.throttle.node import Supply
from shoal.sim.throttle.play import Play
from shoal.sim.throttle.scenario import Scenario

PERIODS = 30
SETTLED = 3
"""Periods at the beginning that do not count."""
ENOUGH = 0.99
"""The least number that does this part of the best is where the knee is."""


class Static:
    """A controller that always says the same."""

    def __init__(self, caps: Mapping[str, int]) -> None:
        self.caps = caps

    def decide(self, now: float, period: Period) -> dict[str, Verdict]:
        return {name: Verdict(self.caps[name], State.FIXED, "always so many") for name in period.turnout}

    def know(self, category: str, profile: Profile, start: int) -> None:
        """Nothing follows from it."""

    def widen(self, category: str, level: int) -> bool:
        """It never changes."""
        return False

    def profiles(self) -> dict[str, Profile]:
        return {}


class Best(msgspec.Struct, frozen=True):
    """What fixed numbers come to."""

    caps: Sequence[int]
    """Per kind the best number."""
    knees: Sequence[int]
    """Per kind the least number that is nearly as good, with the others at their best."""
    work: float


def static_work(scenario: Scenario, caps: Sequence[int], seeds: Sequence[int]) -> float:
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
    scenario: Scenario, supplies: Mapping[str, Supply], seeds: Sequence[int] = (1,), most: int = 160, fine: int = 16
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
    trial: Scenario, caps: Sequence[int], at: int, numbers: Sequence[int], seeds: Sequence[int]
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
