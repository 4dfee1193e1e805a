"""Who is in a cluster, seen by somebody who looks again and again: since when, who falls silent, and who has gone.

Nodes beat once a second. One that says nothing for some seconds is in trouble; its lease ends later, and then the
others strike it off. Who goes without such a silence has left of its own will. Pure: the time is an argument.
"""

from __future__ import annotations

from collections import deque

import msgspec

from shoal.agent.messages import ClusterTold, NodeNote, RunTold
from shoal.store.directory import NodeInfo

SILENT_SECONDS = 3.5
"""A busy machine may miss a beat or two."""
MOST_GONE = 50
"""Nodes that are remembered after they have gone."""
RATE_SECONDS = 20.0
"""The time over which it is counted how fast a run goes."""


class Seen(msgspec.Struct):
    """A node, as it was seen last."""

    number: int
    info: NodeInfo
    note: NodeNote
    since: float
    """When it joined."""
    heard: float
    """When it has said something last."""
    idle_since: float | None = None
    gone: float | None = None
    """When it was noticed that it is not there any more."""
    lost: bool = False
    """It has not left: it fell silent first."""

    def silence(self, now: float) -> float:
        """Seconds without a word; 0 as long as that is nothing unusual."""
        quiet = (self.gone or now) - self.heard
        return quiet if quiet > SILENT_SECONDS else 0.0


class Presence:
    """The nodes and runs of one cluster over time."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}
        self._left: dict[str, deque[tuple[float, int]]] = {}
        """By run: when so many of its tasks were left."""
        self.runs: list[RunTold] = []

    def take(self, now: float, told: ClusterTold) -> None:
        """What the cluster says at this moment."""
        for number, info in told.nodes.items():
            self._meet(now, number, info, told.notes.get(number, NodeNote()))
        for seen in self._seen.values():
            if seen.number not in told.nodes and seen.gone is None:
                seen.gone, seen.lost = now, not seen.note.draining and seen.silence(now) > 0
        gone = [seen.number for seen in self._seen.values() if seen.gone is not None]
        for number in gone[: max(0, len(gone) - MOST_GONE)]:
            del self._seen[number]
        self.runs = told.runs
        self._left = {run.run: self._left.get(run.run, deque()) for run in told.runs}
        for run in told.runs:
            points = self._left[run.run]
            points.append((now, run.left))
            while len(points) > 2 and now - points[1][0] >= RATE_SECONDS:
                points.popleft()

    def _meet(self, now: float, number: int, info: NodeInfo, note: NodeNote) -> None:
        seen = self._seen.get(number)
        if seen is None:
            self._seen[number] = seen = Seen(number, info, note, now - note.up_seconds, now)
        elif note.up_seconds != seen.note.up_seconds:
            seen.heard = now
            if not seen.note.up_seconds:
                seen.since = now - note.up_seconds  # its first word
        seen.info, seen.note = info, note
        if note.idle_seconds is None:
            seen.idle_since = None
        elif seen.idle_since is None:
            seen.idle_since = now - note.idle_seconds

    def nodes(self) -> list[Seen]:
        """Those that are there in the order of their numbers, then those that have gone, the last of them first."""
        there = [seen for seen in self._seen.values() if seen.gone is None]
        gone = [seen for seen in self._seen.values() if seen.gone is not None]
        return sorted(there, key=lambda seen: seen.number) + sorted(gone, key=lambda seen: -(seen.gone or 0.0))

    def rate(self, run: str) -> float | None:
        """Tasks of a run that end in a second, lately; None if nothing can be said yet."""
        points = self._left.get(run, deque())
        if len(points) < 2 or points[-1][0] <= points[0][0]:
            return None
        return max(0, points[0][1] - points[-1][1]) / (points[-1][0] - points[0][0])
