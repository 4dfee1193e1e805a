"""The throttle of one node (meter and controller), and throttles by name.

The driver passes a sample every half second and the duration of each completed task. It calls `decide` when `due` is
true or when a category appears, and starts no task of a category that has `cap` tasks running. The contract applies in
addition and has the last word.
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
        """The latest verdict for each category."""
        self._meter = Meter()

    def sample(self, now: float, sample: NodeSample) -> None:
        """Processes a sample of the node."""
        self._meter.sample(now, sample)

    def ended(self, now: float, category: str, seconds: float) -> None:
        """Processes a completed task; failed tasks are not reported, because their durations say nothing."""
        self._meter.ended(now, category, seconds)

    def due(self, now: float) -> bool:
        """Whether the control period is over."""
        return self._meter.due(now)

    def cap(self, category: str) -> int | None:
        """How many tasks of the category may run concurrently; None if only the contract limits them."""
        verdict = self.verdicts.get(category)
        return None if verdict is None else verdict.cap

    def decide(
        self, now: float, waiting: Mapping[str, int], limits: Mapping[str, int | None] | None = None
    ) -> dict[str, ThrottleVerdict]:
        """Decides again and returns the current verdicts.

        `waiting` contains every category with tasks on the node, in order of appearance, with its number of ready
        tasks. `limits` is how many tasks of a category the contract admits. If the control period is not over, only new
        categories get a verdict.
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
        """Learned profiles, to be stored for the next run and for other nodes."""
        return self.controller.profiles()


FORMS = "adaptive, weasel, contract or slots=N"


def controller(name: str, cores: int, known: Mapping[str, UsageProfile] | None = None) -> Controller:
    """Creates the controller that the user named; `known` are profiles from earlier runs."""
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
    """The properties of a throttle that matter for admission."""

    name: str
    learns: bool = False
    """It measures the node and changes its caps."""
    slots: int = 0
    """Fixed number of tasks of all categories; 0 if there is none."""

    @property
    def limits(self) -> bool:
        """Whether it limits anything: then undeclared cores are not counted."""
        return self.learns or self.slots > 0

    def cap_for(self, category: str) -> str:
        """Name of the cap for tasks of a category; empty for none."""
        if self.slots:
            return SLOTS
        return (category or "task") if self.learns else ""


def regime(name: str) -> Regime:
    """Parses the name of a throttle given by the user."""
    chosen = controller(name, 1)
    if isinstance(chosen, SlotsController):
        return Regime(name, slots=chosen.count)
    return Regime(name, learns=name != "contract")


NO_THROTTLE = Regime("contract")
