"""Load balancing: parameters of work stealing, retry intervals of a thief, release of local tasks, policies by name.

`RetryInterval` determines when an idle scheduler asks again. `Release` determines how many tasks of a local queue
become shared. `POLICIES` lists the combinations of placement and release.
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
    """Parameters of work stealing."""

    enabled: bool = True
    neighbours: int = 0
    """Number of peers asked at once; 0: the square root of all, up to `MOST_NEIGHBOURS`."""
    share: float = 0.5
    """Fraction of the victim's shared queue that the thief gets, rounded up."""
    first_interval: float = 0.001
    longest_interval: float = 0.25
    """Maximum seconds between two rounds of an idle scheduler. It never stops for good: work may appear at any time."""
    part_of_task: float = 0.02
    """The longest interval is at least this fraction of a task: with long tasks the search may take longer, too."""
    patience: float = 0.05
    """Seconds after which a missing reply is ignored."""

    def asked(self, peers: int) -> int:
        """How many of `peers` are asked in one round."""
        return min(peers, self.neighbours or max(1, min(MOST_NEIGHBOURS, isqrt(peers + 1))))


MOST_NEIGHBOURS = 4
"""The square root of 10,000 nodes would be 100 requests for one task; the best of a few peers is nearly as good."""


class RetryInterval:
    """Seconds until the next round: doubling from the first interval, with jitter, up to the longest."""

    def __init__(self, stealing: Stealing, random: Random) -> None:
        self._stealing = stealing
        self._random = random
        self._interval = stealing.first_interval

    def next(self, seconds: float = 0.0) -> float:
        """`seconds` is the duration of a task, as far as known."""
        interval = self._interval
        stealing = self._stealing
        self._interval = min(2 * interval, max(stealing.longest_interval, stealing.part_of_task * seconds))
        return interval * (0.5 + self._random.random())

    def reset(self) -> None:
        self._interval = self._stealing.first_interval


UNKNOWN_LENGTH = 1.0
"""Assumed duration of a task in seconds before one of its kind has ended."""


class Release:
    """Decides how many local tasks to release: those that would wait longer than `patience` at the current throughput.

    In the MATRIX paper an idle thief halves the time, and the loaded scheduler doubles it without bound. Here the
    loaded scheduler does both, within bounds: it halves the time when a thief gets nothing, doubles it after a release,
    and otherwise returns to the initial value.
    """

    RANGE = 64.0
    MEMORY = 20
    """Number of completions over which the throughput is averaged."""

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
        """Number of local tasks to release; `seconds` is the expected duration of a task, None if unknown."""
        gap = self._gap
        if self.first == inf:
            return 0
        if gap is None:
            gap = max((UNKNOWN_LENGTH if seconds is None else seconds) / self._cores, 1e-9)
        return max(0, local - int(self.patience / gap))

    def has_released(self) -> None:
        self.patience = min(self.patience * 2, self.first * self.RANGE)

    def thief_failed(self) -> None:
        """Records that a thief got nothing although tasks wait here."""
        self.patience = max(self.patience / 2, self.first / self.RANGE)


class BalancePolicy(msgspec.Struct, frozen=True):
    """A placement, and how long work may wait beside its data before peers may steal it."""

    placement: Callable[[float, float], Placement]
    """Creates the placement from threshold and bandwidth."""
    patience: float
    """Seconds; infinity: nothing is released."""
    meaning: str
    gathers: bool = False
    """Whether tasks that read the same files are placed together."""


RELEASE_SECONDS = 0.5
THRESHOLD = 0.1
"""The MATRIX paper uses 10 s and 0.5. Here a thief's request releases work, so following smaller data costs little: in
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
    """The policy of this name; raises InputError with all names if there is none."""
    found = POLICIES.get(name)
    if found is None:
        raise InputError(f"there is no policy {name!r}", remedy=f"choose one of {', '.join(POLICIES)}")
    return found
