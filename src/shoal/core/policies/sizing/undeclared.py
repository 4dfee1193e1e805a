"""How many cores to reckon with for tasks that do not say it, from how many such tasks have kept busy.

Cores can be shared: whoever gets fewer runs longer and nothing breaks. So nothing is ever exhausted here and no task
is retried; what counts is that most tasks find the cores they use. On a full node a task cannot use more than it is
left, so what is seen there is too little rather than too much.
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
"""Of the tasks, that are to find the cores they use."""
GRACE = 0.25
"""A thread more for a moment is no need: so much above a whole number of cores is rounded down."""
SHORTEST = 0.1
"""Seconds; shorter tasks say nothing of cores, as too much of them is beginning and end."""
HALF_LIFE = 200.0
RECALLED = 20.0
"""The most weight that an earlier run has in the next one."""
_GROWTH = 2.0 ** (1.0 / HALF_LIFE)


class LearnedCores(msgspec.Struct):
    """What is kept from one run to the next: weights of the tasks by the whole cores they need, and the most seen."""

    weights: dict[int, float] = {}
    largest: float = 0.0
    tasks: int = 0


class CoreNeed:
    """The cores that tasks of one category are reckoned with; amounts as in `Resources`."""

    def __init__(self, node_size: float, least: int = FRACTION, learned: LearnedCores | None = None) -> None:
        """`least` is what a task is reckoned with before anything is known, and at least."""
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
        """The node has so many cores from now on."""
        self._whole = int(node_size // FRACTION)
        self._decide()

    def ask(self, tried: Sequence[float] = ()) -> float:
        """What the next attempt is reckoned with."""
        return self._answer

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Never: a task with fewer cores than it would like runs on."""
        return False

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """An attempt has ended that kept so much of the cores busy."""
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
        """What to keep for the next run."""
        weights = {cores: self.weights[cores] / self._gain for cores in sorted(self.weights)}
        return LearnedCores(weights, self.largest, self.tasks)

    def _decide(self) -> None:
        """The fewest whole cores that are enough for most tasks, as far as the node has them."""
        left = SHARE * sum(self.weights.values())
        need = 1
        for cores in sorted(self.weights):
            need = cores
            left -= self.weights[cores]
            if left <= 0:
                break
        self._answer = max(self.least, min(need, self._whole) * FRACTION)


UNIT = 1 << 20
"""Memory and disk are given in steps of this."""


def open_resources(profile: Profile, node: Resources) -> list[str]:
    """What nobody said such tasks need, and the node has."""
    return [name for name in SIZED if node.get(name) and not profile.declares(name)]


def new_part(
    name: str, node_size: int, mode: str = "max-throughput", learned: Learned | LearnedCores | None = None
) -> Sizer | CoreNeed:
    """The part for one resource. Disk is plenty as a rule, so unknown tasks get no more of it than falls to each."""
    if name == "cores":
        return CoreNeed(node_size, learned=learned if isinstance(learned, LearnedCores) else None)
    known = learned if isinstance(learned, Learned) else None
    return Sizer(node_size, mode, unit=UNIT, learned=known, hopeful=name == "disk")
