"""Balance: how an idle broker looks for work, and when one that has too much lets go of it (design §4.5).

Three small machines: `RetryInterval` says when a thief asks again; `Release` decides how much of a Local queue becomes
Shared; `POLICIES` names the combinations of placement and release that people know.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isqrt
from random import Random

import msgspec

from shoal.core.policies.placement import AdaptiveThreshold, CandidatesPlacement, DataAware, Placement
from shoal.errors import InputError

DEFAULT_POLICY = "flds"


class Stealing(msgspec.Struct, frozen=True):
    """How stealing is done."""

    enabled: bool = True
    neighbours: int = 0
    """Peers asked at once; 0: the square root of all, up to `MOST_NEIGHBOURS`."""
    share: float = 0.5
    """Part of the victim's Shared queue that goes to the thief, rounded up."""
    first_interval: float = 0.001
    longest_interval: float = 0.25
    """Seconds between two tries of an idle broker. It never stops for good: work may appear at any time."""
    part_of_task: float = 0.02
    """Where tasks take long, so may the search for one: the longest interval is at least this part of a task."""
    patience: float = 0.05
    """Seconds after which an answer is no longer waited for."""

    def asked(self, peers: int) -> int:
        """How many of so many peers are asked."""
        return min(peers, self.neighbours or max(1, min(MOST_NEIGHBOURS, isqrt(peers + 1))))


MOST_NEIGHBOURS = 4
"""The square root of 10,000 would be a hundred questions for one task; the best of a few is nearly as good."""


class RetryInterval:
    """Seconds until the next try: doubling from the first interval, with jitter, up to the longest."""

    def __init__(self, stealing: Stealing, random: Random) -> None:
        self._stealing = stealing
        self._random = random
        self._interval = stealing.first_interval

    def next(self, seconds: float = 0.0) -> float:
        """`seconds` is how long a task takes, as far as that is known."""
        interval = self._interval
        stealing = self._stealing
        self._interval = min(2 * interval, max(stealing.longest_interval, stealing.part_of_task * seconds))
        return interval * (0.5 + self._random.random())

    def reset(self) -> None:
        self._interval = self._stealing.first_interval


UNKNOWN_LENGTH = 1.0
"""Seconds that a task is taken to last before one of its kind has ended."""


class Release:
    """How much of a Local queue is let go: what would take longer than `patience` seconds at the present throughput.

    The paper lets the idle thief, whose queue is empty, halve the time, and the loaded broker double it without bound.
    Here the loaded one does both, within bounds: it halves when a thief leaves empty-handed and doubles after a
    release, and otherwise goes back to where it began.
    """

    RANGE = 64.0
    MEMORY = 20
    """Completions over which the throughput is averaged."""

    def __init__(self, patience: float, cores: int) -> None:
        self.first = self.patience = patience
        self._cores = cores
        self._gap: float | None = None
        """Moving average of the seconds between two completions."""
        self._last: float | None = None

    def completed(self, now: float, count: int) -> None:
        if self.first == inf:
            return
        if self._last is not None and count:
            gap = max((now - self._last) / count, 1e-9)
            keep = max(0.0, 1.0 - count / self.MEMORY)
            self._gap = gap if self._gap is None else keep * self._gap + (1.0 - keep) * gap
            self.patience += 0.01 * (self.first - self.patience)
        self._last = now

    def surplus(self, local: int, seconds: float | None) -> int:
        """Tasks of a Local queue to let go; `seconds` is the expected length of one, None if that is not known."""
        gap = self._gap
        if self.first == inf:
            return 0
        if gap is None:
            gap = max((UNKNOWN_LENGTH if seconds is None else seconds) / self._cores, 1e-9)
        return max(0, local - int(self.patience / gap))

    def has_released(self) -> None:
        self.patience = min(self.patience * 2, self.first * self.RANGE)

    def left_empty_handed(self) -> None:
        """A thief has got nothing although tasks wait here."""
        self.patience = max(self.patience / 2, self.first / self.RANGE)


class BalancePolicy(msgspec.Struct, frozen=True):
    """A placement, and for how long work may wait beside its data before others may have it."""

    placement: Callable[[float, float], Placement]
    """Makes one from threshold and bandwidth."""
    patience: float
    """Seconds; infinite: nothing is released."""
    meaning: str
    gathers: bool = False
    """Whether tasks that read the same files are seen together."""


RELEASE_SECONDS = 0.5
THRESHOLD = 0.1
"""The paper has 10 s and 0.5. Since here a thief's visit releases work, following smaller data costs little: in the
simulated experiments fan-out takes up to 3 % longer; all-pairs, stacking and Montage gain more (`experiments/`)."""
POLICIES: dict[str, BalancePolicy] = {
    "flds": BalancePolicy(
        DataAware, RELEASE_SECONDS, "large data decides, waiting work is released (default)", gathers=True
    ),
    "rlds": BalancePolicy(DataAware, inf, "large data decides"),
    "mdl": BalancePolicy(
        lambda threshold, bandwidth: DataAware(0.0, bandwidth), inf, "data decides, whatever its size"
    ),
    "mlb": BalancePolicy(lambda threshold, bandwidth: DataAware(inf, bandwidth), inf, "load decides"),
    "auto": BalancePolicy(
        AdaptiveThreshold, RELEASE_SECONDS, "as flds, with a threshold that follows what is really moved", gathers=True
    ),
    "pwrake": BalancePolicy(
        lambda threshold, bandwidth: CandidatesPlacement(), inf, "a node with half of the richest one's data"
    ),
}


def policy_named(name: str) -> BalancePolicy:
    """The policy, or one sentence with all there are."""
    found = POLICIES.get(name)
    if found is None:
        raise InputError(f"there is no policy {name!r}", remedy=f"choose one of {', '.join(POLICIES)}")
    return found
