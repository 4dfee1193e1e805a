"""Our own sizing: what the next attempt of a task gets of one resource, learned from how earlier ones ended.

A first size, and after each exhaustion the next, form the chain with the least expected cost over the outlook (`chain`
and `outlook`); what follows an exhausted size is looked up by that size, so it is right also after sizes changed. What
a task costs is its size; for throughput also the place it takes where only so many equal ones fit on a node. One
`Sizer` serves one resource of one category. Who measures, runs and enforces is left to others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from shoal.policy.sizing.chain import best_choices
from shoal.policy.sizing.outlook import Row, outlook
from shoal.policy.sizing.sketch import Learned, Sketch

SIZER_MODES = ("fixed", "max", "min-waste", "max-throughput")
START_SHARE = 4
"""Before anything is known a task gets this part of the node."""
PLACE = 0.5
"""For throughput: how much of a task's cost is its place among equal ones; the rest is its size."""
ROOM = 1.15
"""A size that leaves room for no further task is raised, by at most this factor, to what is left anyway."""
MARGIN = 1.03
"""For the least waste sizes are raised by no more than this."""
RETHINK = 0.03
"""Sizes are decided anew when the number of attempts has grown by this share, and at least every so many."""
RETHINK_ATTEMPTS = 20


class Description(msgspec.Struct):
    """One row of the table of categories."""

    maximum: str
    """The number given; `~n` the largest seen; `>n` a task exhausted n and none was larger; `na` nothing is known."""
    first: float
    tasks: int
    retries: int
    changes: int
    """How often what had been learned was found to be out of date."""
    waste: float
    """The share of size times time that was of no use."""


class Sizer:
    """Answers what the next attempt of a task gets, and learns from how attempts end."""

    def __init__(
        self,
        node_size: float,
        mode: str = "max-throughput",
        *,
        explicit_max: float | None = None,
        explicit_min: float = 0,
        unit: float = 1,
        places: int | None = None,
        learned: Learned | None = None,
        hopeful: bool = False,
    ) -> None:
        """`hopeful`: before anything is known, a task gets what falls to each of `places` and not a larger part."""
        if mode not in SIZER_MODES:
            raise ValueError(f"no mode {mode!r}")
        self.mode = mode
        self.explicit_max = explicit_max
        self.explicit_min = explicit_min
        self.unit = unit
        self.hopeful = hopeful
        self.known = Sketch(learned)
        self.retries = 0
        self.allocated = self.used = 0.0
        self._sizes: list[float] = []
        self._answers: list[float] = []
        """What a task gets that is known to need a candidate size or more."""
        self._due = 0
        """The number of ended attempts at which sizes are decided anew."""
        self._places: dict[int, int] = {}
        """By panel that shares this sizer."""
        self.resize(node_size, places)

    def resize(self, node_size: float, places: int | None = None, panel: int = 0) -> None:
        """The node has so much from now on.

        `places` is how many such tasks it holds by its other resources: a share below that gains nothing. Tasks of one
        category may ask for different cores; then those of which it holds most decide, or the few that ask for all of
        the cores would have the others get all of the memory.
        """
        if places:
            self._places[panel] = places
            places = max(self._places.values())
        self.node_size = max(node_size, self.unit)
        self.top = self.node_size if self.explicit_max is None else min(self.node_size, self.explicit_max)
        share = self._in_units(self.node_size // places) if places else 0
        self.bottom = min(self.top, max(self.explicit_min, self.unit, share))
        self._due = 0

    def ask(self, tried: Sequence[float] = ()) -> float:
        """The size for the next attempt of a task that has exhausted the sizes in `tried`."""
        if self.known.seen >= self._due:
            self._decide()
        at = bisect_right(self._sizes, max(tried)) if tried else 0
        return self._answers[at] if at < len(self._answers) else self.top

    def hopeless(self, tried: Sequence[float]) -> bool:
        """Whether a task has exhausted all there is."""
        return bool(tried) and max(tried) >= self.top

    def observe(
        self,
        peak: float,
        duration: float,
        exhausted_at: float | None = None,
        tried: Sequence[float] = (),
        size: float | None = None,
    ) -> None:
        """An attempt has ended: at its own end with this peak, or over its limit `exhausted_at`.

        `tried` are the sizes that the same task had exhausted before, `size` what this attempt had.
        """
        before = max(tried) if tried else None
        if exhausted_at is not None:
            self.retries += 1
            self.allocated += exhausted_at * duration
            changed = self.known.exhausted(exhausted_at, duration, before)
        else:
            if size is not None:
                self.allocated += size * duration
                self.used += min(peak, size) * duration
            changed = self.known.completed(peak, duration, before)
        if changed:
            self._due = 0

    def learned(self) -> Learned:
        """What to keep for the next run."""
        return self.known.learned()

    def describe(self) -> Description:
        known = self.known
        exhausted = max(known.pending, default=0.0)
        if self.explicit_max is not None:
            maximum = f"{self.explicit_max:g}"
        elif exhausted > known.largest:
            maximum = f">{exhausted:g}"
        else:
            maximum = f"~{known.largest:g}" if known.tasks else "na"
        waste = 1.0 - self.used / self.allocated if self.allocated else 0.0
        return Description(maximum, self.ask(), known.tasks, self.retries, known.changes, waste)

    def _decide(self) -> None:
        seen = self.known.seen
        self._due = seen + max(1, min(RETHINK_ATTEMPTS, int(RETHINK * seen)))
        if self.mode == "fixed":
            self._sizes = self._answers = [self.top]
            return
        start = self.bottom if self.hopeful else max(self.unit, self._in_units(self.top / START_SHARE))
        rows = outlook(self.known, self.top, start)
        if self.mode == "max":
            self._sizes = self._above_all(rows)
            self._answers = [self._roomy(size) for size in self._sizes]
            return
        self._sizes, seconds = self._candidates(rows)
        choices = best_choices([self._cost(size) for size in self._sizes], seconds)
        roomy = {at: self._roomy(self._sizes[at]) for at in sorted(set(choices))}
        self._answers = [roomy[at] for at in choices]

    def _above_all(self, rows: Sequence[Row]) -> list[float]:
        """The largest peak with a margin, then everything; everything at once while nothing is known."""
        if not self.known.order:
            return [self.top]
        largest = self.known.cells[self.known.order[-1]].top
        first = next(row.size for row in rows if row.size > largest)
        return [self._fitted(first), self.top]

    def _candidates(self, rows: Sequence[Row]) -> tuple[list[float], list[float]]:
        """The rows as sizes that may be asked for, each once, the last one all there is."""
        sizes: list[float] = []
        seconds: list[float] = []
        for row in rows:
            size = self._fitted(row.size)
            if sizes and size <= sizes[-1]:
                seconds[-1] += row.seconds
            else:
                sizes.append(size)
                seconds.append(row.seconds)
        return sizes, seconds

    def _fitted(self, size: float) -> float:
        return min(self.top, max(self.bottom, math.ceil(size / self.unit) * self.unit))

    def _in_units(self, share: float) -> float:
        """Rounded down, so that as many shares fit on the node as it was divided into."""
        return share // self.unit * self.unit

    def _cost(self, size: float) -> float:
        if self.mode == "min-waste":
            return size
        return PLACE * self.node_size / (self.node_size // size) + (1 - PLACE) * size

    def _roomy(self, size: float) -> float:
        """The size with a margin; for throughput up to the share of as many equal tasks as fit anyway."""
        if self.mode == "min-waste":
            return self._fitted(size * MARGIN)
        share = self._in_units(self.node_size // (self.node_size // size))
        return min(self.top, max(size, min(share, self._fitted(size * ROOM))))
