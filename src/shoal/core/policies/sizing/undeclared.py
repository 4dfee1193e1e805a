"""Undeclared resources: learned cores of tasks (`CoreNeed`), which resources a profile leaves open, and their sizers.

Cores can be shared: a task with fewer cores runs longer and does not fail. Therefore cores are never exhausted and no
task is repeated; the aim is that most tasks get the cores they use. On a full node a task cannot use more than it
gets, so measured values are too small rather than too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal.core.policies.sizing.adviser import SIZED
from shoal.core.policies.sizing.sizer import Learned, Sizer
from shoal.core.resources import FRACTION, Resources
from shoal.core.task import Profile

SHARE = 0.9
"""Share of the tasks that should get the cores they use."""
GRACE = 0.25
"""A short-lived extra thread is not a need: this fraction above a whole number of cores is rounded down."""
SHORTEST = 0.1
"""Seconds; shorter tasks are ignored, because start and end dominate their use of cores."""
HALF_LIFE = 200.0
RECALLED = 20.0
"""Maximum weight of an earlier run in the next one."""
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)


class LearnedCores(msgspec.Struct):
    """State stored between runs: weights of tasks by whole cores used, and the maximum."""

    weights: dict[int, float] = {}
    largest: float = 0.0
    tasks: int = 0


class CoreNeed:
    """Cores to reserve for tasks of one category; amounts as in `Resources`."""

    def __init__(self, node_size: float, least: int = FRACTION, learned: LearnedCores | None = None) -> None:
        """`least` is the initial value and the lower bound."""
        self.least = least
        self.retries = 0
        self.allocated = self.used = 0.0
        known = learned or LearnedCores()
        total = sum(known.weights.values())
        factor = min(1.0, RECALLED / total) if total > 0 else 0.0
        self.weights = {cores: weight * factor for cores, weight in sorted(known.weights.items()) if cores > 0}
        self.largest = known.largest
        self.tasks = known.tasks
        self._gain = 1.0
        self._answer = least
        self.resize(node_size)

    def resize(self, node_size: float, places: int = 1, panel: int = 0) -> None:
        """Sets the cores of the node."""
        self._whole = int(node_size // FRACTION)
        self._decide()

    def ask(self, tried: Sequence[float] = ()) -> float:
        """Cores to reserve for the next attempt."""
        return self._answer

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Always False: a task with fewer cores than it could use still runs."""
        return False

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """Learns from an attempt that kept `peak` cores busy."""
        if duration < SHORTEST:
            return
        if size:
            self.allocated += size * duration
            self.used += min(peak, size) * duration
        self.tasks += 1
        self.largest = max(self.largest, peak)
        need = max(1, math.ceil(peak / FRACTION - GRACE))
        self.weights[need] = self.weights.get(need, 0.0) + self._gain
        self._gain *= _GROWTH
        if self._gain > 1e6:
            self.weights = {cores: weight / self._gain for cores, weight in self.weights.items()}
            self._gain = 1.0
        self._decide()

    def learned(self) -> LearnedCores:
        """State to store for the next run."""
        weights = {cores: self.weights[cores] / self._gain for cores in sorted(self.weights)}
        return LearnedCores(weights, self.largest, self.tasks)

    def _decide(self) -> None:
        """The smallest number of whole cores that suffices for most tasks, limited by the node."""
        left = SHARE * sum(self.weights.values())
        need = 1
        for cores in sorted(self.weights):
            need = cores
            left -= self.weights[cores]
            if left <= 0:
                break
        self._answer = max(self.least, min(need, self._whole) * FRACTION)


UNIT = 1 << 20
"""Sizes of memory and disk are multiples of this."""


def open_resources(profile: Profile, node: Resources) -> list[str]:
    """Resources that the profile does not declare and the node has."""
    return [name for name in SIZED if node.get(name) and not profile.declares(name)]


def new_part(
    name: str, node_size: int, mode: str = "max-throughput", learned: Learned | LearnedCores | None = None
) -> Sizer | CoreNeed:
    """The sizer of one resource. Disk is usually plentiful, so new categories start with an even share of it, no
    more."""
    if name == "cores":
        return CoreNeed(node_size, learned=learned if isinstance(learned, LearnedCores) else None)
    known = learned if isinstance(learned, Learned) else None
    return Sizer(node_size, mode, unit=UNIT, learned=known, hopeful=name == "disk")
