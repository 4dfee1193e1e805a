"""What every controller of concurrency promises, and the two that learn nothing.

`decide(now, period)` is called once when a category appears and at the end of each control period; it answers with a
verdict for each category of the period. Which controller there is for a name is in `choose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec

from shoal.core.policies.throttle.readings import Period
from shoal.core.policies.throttle.usage_model import UsageProfile


class ControllerState(Enum):
    """What a controller is about with a category."""

    PROFILING = "profiling"
    GROWING = "growing"
    HOLDING = "holding"
    PROBING = "probing"
    WAITING = "waiting"
    """Another category has the resource that it needs most."""
    FIXED = "fixed"


class ThrottleVerdict(msgspec.Struct, frozen=True):
    """How many tasks of a category may run together, and why."""

    cap: int | None
    """None: as many as the contract admits."""
    state: ControllerState
    reason: str
    """A sentence for people."""
    dominant: str | None = None
    use: float = 0.0
    """The share of the dominant resource that is in use on the node."""
    rate: float = 0.0
    """Completed tasks per second."""


class Controller(Protocol):
    """Says how many tasks of each category run together."""

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        """What holds from now on, for each category of the period; a period without samples only asks for a start."""

    def know(self, category: str, profile: UsageProfile, start: int) -> None:
        """What is known of a category that has not been seen yet, and the number of tasks it begins with."""

    def widen(self, category: str, level: int) -> bool:
        """Others have left: a category that is still at its beginning may go on with more tasks. Whether it does."""

    def profiles(self) -> dict[str, UsageProfile]:
        """What was learned of the categories, to be kept and shared."""


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
            # Who came first has its places first; all of a category may use what the earlier ones leave.
            cap = max(0, left)
            verdicts[category] = ThrottleVerdict(cap, ControllerState.FIXED, reason, rate=rate_of(period, category))
            left -= min(cap, round(turnout.running) + turnout.waiting)
        return verdicts


class ContractOnly(_FixedController):
    """No throttle: what the contract admits runs."""

    def decide(self, now: float, period: Period) -> dict[str, ThrottleVerdict]:
        reason = "only the contract says how many run"
        return {
            category: ThrottleVerdict(None, ControllerState.FIXED, reason, rate=rate_of(period, category))
            for category in period.turnout
        }


def rate_of(period: Period, category: str) -> float:
    """Completed tasks per second."""
    return period.turnout[category].completed / period.seconds if period.seconds else 0.0


def most_used(use: Mapping[str, float]) -> str | None:
    """The resource with the largest share; of equal ones the first."""
    return max(use, key=lambda name: use[name]) if use else None
