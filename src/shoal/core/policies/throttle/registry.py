"""The throttle of one node as its driver sees it: told what happens, asked how many may run.

The driver gives it a sample every half second and a word about each task that completed, calls `decide` when `due` says
so or when a category appears, and starts no task of a category that has as many running as `cap` says. The contract is
asked as well, and has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.core.policies.throttle.adaptive import AdaptiveController
from shoal.core.policies.throttle.controller import ContractOnly, Controller, SlotsController, ThrottleVerdict
from shoal.core.policies.throttle.readings import Meter, NodeSample
from shoal.core.policies.throttle.usage_model import UsageProfile
from shoal.core.policies.throttle.weasel import Weasel
from shoal.errors import InputError


class Throttle:
    """A meter and a controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.verdicts: dict[str, ThrottleVerdict] = {}
        """What was decided last, for each category there is: cap, state, reason, dominant resource, use, rate."""
        self._meter = Meter()

    def sample(self, now: float, sample: NodeSample) -> None:
        """The node was looked at."""
        self._meter.sample(now, sample)

    def ended(self, now: float, category: str, seconds: float) -> None:
        """A task has completed; failed ones are not told of, their times say nothing."""
        self._meter.ended(now, category, seconds)

    def due(self, now: float) -> bool:
        """Whether a control period is over."""
        return self._meter.due(now)

    def cap(self, category: str) -> int | None:
        """How many tasks of the category may run together; None if only the contract says."""
        verdict = self.verdicts.get(category)
        return None if verdict is None else verdict.cap

    def decide(
        self, now: float, waiting: Mapping[str, int], limits: Mapping[str, int | None] | None = None
    ) -> dict[str, ThrottleVerdict]:
        """Decides anew, and answers with what holds from now on.

        `waiting` has every category with tasks on the node, in the order they came, with the number of its tasks that
        are ready but not started. `limits` says how many of a category the contract admits together. If no period is
        over, only categories that are new get a verdict.
        """
        limits = limits or {}
        if self.due(now):
            self.verdicts = self.controller.decide(now, self._meter.period(now, waiting, limits))
        else:
            new = {category: count for category, count in waiting.items() if category not in self.verdicts}
            if new:
                self.verdicts.update(self.controller.decide(now, Meter().period(now, new, limits)))
        targets = {}
        for category, verdict in self.verdicts.items():
            bounds = [bound for bound in (verdict.cap, limits.get(category)) if bound is not None]
            targets[category] = min(bounds, default=0)
        self._meter.aim(now, targets)
        return self.verdicts

    def profiles(self) -> dict[str, UsageProfile]:
        """What was learned, to be kept in a store for the next run and for other nodes."""
        return self.controller.profiles()


FORMS = "adaptive, weasel, contract or slots=N"


def controller(name: str, cores: int, known: Mapping[str, UsageProfile] | None = None) -> Controller:
    """The controller for what a user wrote; `known` is what was learned of categories before."""
    if name == "adaptive":
        return AdaptiveController(cores, known)
    if name == "weasel":
        return Weasel(cores)
    if name == "contract":
        return ContractOnly()
    what, _, number = name.partition("=")
    if what == "slots" and number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0:
        return SlotsController(int(number))
    raise InputError(f"there is no throttle {name!r}", remedy=f"write {FORMS}")


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
    if isinstance(chosen, SlotsController):
        return Regime(name, slots=chosen.count)
    return Regime(name, learns=name != "contract")


NO_THROTTLE = Regime("contract")
