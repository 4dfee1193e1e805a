"""Controllers of concurrency by name."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import InputError
from shoal.policy.throttle.adaptive import Adaptive
from shoal.policy.throttle.controller import ContractOnly, Controller, Slots
from shoal.policy.throttle.profile import Profile
from shoal.policy.throttle.weasel import Weasel

DEFAULT = "adaptive"
FORMS = "adaptive, weasel, contract or slots=N"


def controller(name: str, cores: int, known: Mapping[str, Profile] | None = None) -> Controller:
    """The controller for what a user wrote; `known` is what was learned of categories before."""
    if name == "adaptive":
        return Adaptive(cores, known)
    if name == "weasel":
        return Weasel(cores)
    if name == "contract":
        return ContractOnly()
    what, _, number = name.partition("=")
    if what == "slots" and number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0:
        return Slots(int(number))
    raise InputError(f"there is no throttle {name!r}", remedy=f"write {FORMS}")
