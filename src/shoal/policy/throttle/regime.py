"""What a throttle by its name means for admission: which lanes share a cap, and whether cores limit.

What a task declares always counts. A task that declares no cores is counted as one core where nothing else limits how
many run; where a throttle does, its cores are not counted.
"""

from __future__ import annotations

import msgspec

from shoal.policy.throttle.choose import controller
from shoal.policy.throttle.controller import Slots

SLOTS = "slots"


class Regime(msgspec.Struct, frozen=True):
    """A throttle as admission sees it."""

    name: str
    learns: bool = False
    """It looks at the node and changes its mind."""
    slots: int = 0
    """So many tasks together, of all categories; 0 if there is no such number."""

    @property
    def limits(self) -> bool:
        """Whether it says anything at all: then nobody counts cores that were not declared."""
        return self.learns or self.slots > 0

    def cap_for(self, category: str) -> str:
        """The name of the cap that tasks of a category are under; empty for none."""
        if self.slots:
            return SLOTS
        return (category or "task") if self.learns else ""


def regime(name: str) -> Regime:
    """The regime for what a user wrote."""
    chosen = controller(name, 1)
    if isinstance(chosen, Slots):
        return Regime(name, slots=chosen.count)
    return Regime(name, learns=name != "contract")


NO_THROTTLE = Regime("contract")
