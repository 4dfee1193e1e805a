"""How well a controller did in a scenario, against the best fixed numbers.

Work is counted from the 15th control period on. A change of capacity has been followed in the first period from which
on, over five periods, at least 95 % of the best fixed number's work is done and no more tasks run together than a
quarter beyond that number, or three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.policy.throttle.controller import Controller
from shoal.sim.throttle.play import Play, Step
from shoal.sim.throttle.reference import Best, best_static
from shoal.sim.throttle.scenario import AFTER, Scenario

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


def yardstick(scenario: Scenario, seeds: Sequence[int] = (1,), fine: int = 16) -> Yardstick:
    stretches = [scenario.supplies, *(supplies for _, supplies in scenario.changes)]
    return Yardstick([best_static(scenario, supplies, seeds, fine=fine) for supplies in stretches])


def score(scenario: Scenario, make: Callable[[], Controller], seed: int, stick: Yardstick, follow: int = 8) -> Score:
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


def _followed(steps: Sequence[Step], best: Best) -> int:
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


def sharing(scenario: Scenario, make: Callable[[], Controller], seed: int, settle: int = 30) -> Sharing:
    """What becomes of two runs, from so many periods after the second has come."""
    steps = Play(scenario, make, seed).execute()[scenario.parties[1].begins + settle :]
    work = [sum(step.work[kind] for step in steps) for kind in (0, 1)]
    running = sum(sum(step.running) for step in steps)
    capacity = 1 / scenario.kinds[0].phases[0].use["server"]
    return Sharing(work[0] / sum(work), running / sum(work), sum(work) / len(steps) / capacity)
