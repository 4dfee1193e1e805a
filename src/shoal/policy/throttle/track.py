"""What is known of one category on one node: its climber, its undisturbed times, and what its last period came to.

How much a category gets done is worked out here from what the node senses, with the share of the others taken off.
What follows from it is left to `adaptive`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.policy.throttle.climb import Climber
from shoal.policy.throttle.effect import MANY, Base, Effect, from_times, from_use, together
from shoal.policy.throttle.profile import UseModel
from shoal.policy.throttle.readings import Endings, Period, Turnout

BLOCKED = 2
BELIEVED = 30
"""After so many periods with too few running the contract is thought to admit no more, for so many periods."""
WELL_KNOWN = 0.15
"""A use with no larger relative error serves as a measure."""


class Track:
    """One category."""

    def __init__(self, climber: Climber) -> None:
        self.climber = climber
        self.base = Base()
        self.pending = Endings()
        """Endings at the current level that were too few so far to say anything."""
        self.latest = Endings()
        """The endings behind the last effect."""
        self.effect: Effect | None = None
        self._blocked = 0
        """Periods in which fewer ran than might although others waited."""
        self._admitted: int | None = None
        """What the contract was seen to admit."""
        self._believed = 0
        """Periods for which that still counts."""

    def amount(self, turnout: Turnout) -> float:
        """How many undisturbed tasks the category is worth in this period, as far as is known."""
        if self.effect is None or self.effect.level != turnout.target:
            return turnout.running
        return min(turnout.running, self.effect.value)

    def collect(self, turnout: Turnout) -> None:
        self.pending.merge(turnout.endings)

    def limit(self, told: int | None) -> int | None:
        """How many the contract admits: what the driver says, or what was seen."""
        if self._admitted is None or told is None:
            return told if self._admitted is None else self._admitted
        return min(told, self._admitted)

    def mind_the_contract(self, turnout: Turnout) -> None:
        """Notices if fewer run than might although others wait, and asks again after some time."""
        self._believed -= 1
        if self._believed <= 0:
            self._admitted = None
        short = turnout.waiting > 0 and turnout.running < turnout.target and not turnout.held
        self._blocked = self._blocked + 1 if short and turnout.target == self.climber.level else 0
        if self._blocked >= BLOCKED and turnout.running >= 1:
            self._admitted, self._believed, self._blocked = round(turnout.running), BELIEVED, 0
            self.climber.bound(self.limit(turnout.limit))

    def moved(self) -> None:
        """Another level begins."""
        self.pending = Endings()

    def measure(self, turnout: Turnout, use: Effect | None, vague: bool = False) -> Effect | None:
        """Both witnesses together; times are kept until there are enough of them."""
        times = from_times(turnout.target, self.pending, self.base.endings)
        if times is not None:
            self.latest, self.pending = self.pending, Endings()
        return together(use, times, vague)

    def has_base(self) -> bool:
        return self.base.endings.count >= MANY


def own_use(model: UseModel, tracks: Mapping[str, Track], period: Period, category: str) -> Effect | None:
    """What the use of the dominant resource says of the category, if one task's use of it is well known."""
    profile = model.profile(category)
    name = profile.dominant
    if name is None or profile.error[name] > WELL_KNOWN * profile.use[name]:
        return None
    figure = period.use[name]
    used, variance = figure.mean, figure.error**2
    for other, turnout in period.turnout.items():
        if other != category and turnout.running:
            amount = tracks[other].amount(turnout)
            used -= amount * model.use(name, other)
            variance += (amount * model.error(name, other)) ** 2
    turnout = period.turnout[category]
    # A few more or fewer than the target may have run while it was being reached.
    scale = turnout.target / turnout.running if turnout.running else 1.0
    error = scale * math.sqrt(variance)
    return from_use(turnout.target, scale * max(0.0, used), error, profile.use[name], profile.error[name])
