"""The interface of throttle controllers, and two simple controllers: a fixed number of slots, and none.

`decide(now, period)` is called when a category appears and at the end of each control period; it returns a verdict for
each category of the period. `registry` creates controllers by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec

from shoal.core.policies.throttle.readings import Period
from shoal.core.policies.throttle.usage_model import UsageProfile


class ControllerState(Enum):
    """State of a controller for one category."""

    PROFILING = "profiling"
    GROWING = "growing"
    HOLDING = "holding"
    PROBING = "probing"
    WAITING = "waiting"
    """Another category uses the resource that it needs most."""
    FIXED = "fixed"


class ThrottleVerdict(msgspec.Struct, frozen=True):
    """How many tasks of a category may run concurrently, and why."""

    cap: int | None
    """None: as many as the contract admits."""
    state: ControllerState
    reason: str
    """Reason in one sentence."""
    dominant: str | None = None
    use: float = 0.0
    """Share of the dominant resource in use on the node."""
    rate: float = 0.0
    """Completed tasks per second."""


class Controller(Protocol):
    """Decides how many tasks of each category run concurrently."""

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        """Verdict for each category of the period; a period without samples requests only initial values."""

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """Sets the known profile of a category that has not been seen yet, and its initial number of tasks."""

    def widen(self, category: str, level: int) -> bool:
        """Raises a category that is still at its initial level after others have ended; returns whether it was
        raised."""

    def profiles(self) -> dict[str, UsageProfile]:
        """Learned profiles of the categories, to be stored and shared."""


class _FixedController:
    """A controller that learns nothing and starts no category with fewer tasks than it allows."""

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """Nothing follows from it."""

    def widen(self, category: str, level: int) -> bool:
        """There is no beginning."""
        return False

    def profiles(self) -> dict[str, UsageProfile]:
        return {}


class SlotsController(_FixedController):
    """A fixed number of places for tasks of all categories, first come first served."""

    def __init__(self, count: int) -> None:
        assert count > 0
        self.count = count

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        reason = f"there are {self.count} slots" if self.count > 1 else "there is one slot"
        verdicts = {}
        left = self.count
        for category, turnout in period.turnout.items():
            # Earlier categories have priority; each later one may use the remaining slots.
            cap = max(0, left)
            verdicts[category] = ThrottleVerdict(cap, ControllerState.FIXED, reason, rate=rate_of(period, category))
            left -= min(cap, round(turnout.running) + turnout.waiting)
        return verdicts


class ContractOnly(_FixedController):
    """No throttle: what the contract admits runs."""

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        reason = "only the contract limits how many run"
        return {
            category: ThrottleVerdict(None, ControllerState.FIXED, reason, rate=rate_of(period, category))
            for category in period.turnout
        }


def rate_of(period: Period, category: str) -> float:
    """Completed tasks per second."""
    return period.turnout[category].completed / period.seconds if period.seconds else 0.0


def most_used(use: Mapping[str, float]) -> str | None:
    """The resource with the largest use; on a tie the first."""
    return max(use, key=lambda name: use[name]) if use else None
