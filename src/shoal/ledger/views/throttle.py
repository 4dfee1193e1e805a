"""Throttle decisions of a run: the last decision and a bounded curve for each category and node, and their text
forms."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from shoal.core.quantities import show_share
from shoal.ledger.records import ThrottleDecided


def listed(names: Sequence[str], others: int = 0) -> str:
    """`a`, `a and b`, `a, b and 2 more`."""
    parts = [*names, f"{others:,} more"] if others else list(names)
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def throttle_note(decisions: Iterable[ThrottleDecided]) -> str:
    """The most important limit of the throttle as text: `align: limit 6 (growing), disk 92 %`."""
    holding = [record for record in decisions if record.cap >= 0]
    if not holding:
        return ""
    # The category with most waiting tasks is shown. Among equals the name decides, so that the display does not
    # alternate.
    record = min(holding, key=lambda each: (-each.waiting, each.category, each.node))
    where = " on ".join(part for part in (record.category or "all", record.node) if part)
    use = f", {record.dominant} {show_share(record.use)}" if record.dominant else ""
    return f"{where}: limit {record.cap:,} ({record.state}){use}"


MOST_POINTS, FEWEST_POINTS = 400, 64
"""Points of a curve: maximum, and minimum if there are very many curves."""
_ALL_POINTS = 1 << 16
"""Maximum number of points of all curves together, as far as each has its minimum."""


class LimitPoint(msgspec.Struct, frozen=True, gc=False):
    """The drawn part of a decision; see `ThrottleDecided`."""

    time: float
    cap: int
    running: int
    waiting: int
    use: float
    rate: float
    reason: str


class Curve:
    """The decisions about one category on one node."""

    def __init__(self, first: ThrottleDecided) -> None:
        self.last = first
        self.decided = 0
        """Number of decisions."""
        self.strictest: ThrottleDecided | None = None
        """The decision that kept most tasks waiting: as many ran as it allowed. None if no decision did. A limit for
        all categories together is recorded once, without these counts, and always applies."""
        self._points: list[LimitPoint] = []
        self._step = 1
        """One decision in this number is kept as a point."""

    def add(self, record: ThrottleDecided, most: int) -> None:
        self.last = record
        limits = record.cap >= 0 and (not record.category or (record.cap <= record.running and record.waiting > 0))
        if limits and (self.strictest is None or record.waiting > self.strictest.waiting):
            self.strictest = record
        if self.decided % self._step == 0:
            self._points.append(_point(record))
            while len(self._points) > most:
                self._points, self._step = self._points[::2], 2 * self._step
        self.decided += 1

    def points(self) -> list[LimitPoint]:
        """The points that were kept, and always the last one."""
        is_there = (self.decided - 1) % self._step == 0
        return list(self._points) if is_there else [*self._points, _point(self.last)]


def _point(record: ThrottleDecided) -> LimitPoint:
    numbers = (record.time, record.cap, record.running, record.waiting, record.use, record.rate)
    return LimitPoint(*numbers, sys.intern(record.reason))  # the same few reasons repeat


class ThrottleDecisions:
    """All throttle decisions of a run. False if the run has no throttle; iterates over the last decision of each
    curve."""

    def __init__(self, *, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self.last: ThrottleDecided | None = None
        self.decisions: list[ThrottleDecided] = []
        """All decisions in order of time, if `keeps_all`; an empty category stands for all categories."""
        self._curves: dict[tuple[str, str], Curve] = {}

    def add(self, record: ThrottleDecided) -> None:
        self.last = record
        if self._keeps_all:
            self.decisions.append(record)
        key = record.node, record.category
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = Curve(record)
        curve.add(record, max(FEWEST_POINTS, min(MOST_POINTS, _ALL_POINTS // len(self._curves))))

    def __bool__(self) -> bool:
        return self.last is not None

    def __iter__(self) -> Iterator[ThrottleDecided]:
        return (curve.last for curve in self._curves.values())

    def last_of(self, node: str, category: str) -> ThrottleDecided | None:
        """The last decision about a category on a node; this machine has the empty name."""
        curve = self._curves.get((node, category))
        return curve.last if curve is not None else None

    def curves(self) -> list[Curve]:
        """All curves, in order of their first decision."""
        return list(self._curves.values())
