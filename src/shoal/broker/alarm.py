"""When a driver wakes its member next: one moment, the earliest that the member has asked for.

Live agents and the simulator keep the moments of `WakeAt` in the same way, so that the simulator finds a member that
relies on more than that. A member is told `TimePassed` when the alarm goes off, and asks anew for what is due later.
"""

from __future__ import annotations

from math import inf


class Alarm:
    """The alarm of one member."""

    def __init__(self) -> None:
        self.when = inf

    def set(self, when: float) -> None:
        """Goes off at this moment, or earlier."""
        self.when = min(when, self.when)

    def goes_off(self, now: float) -> bool:
        """Whether it is time to tell `TimePassed`; only once."""
        if now < self.when:
            return False
        self.when = inf
        return True
