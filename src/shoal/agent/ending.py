"""What a share does when its node is taken away: at a time that is known, or when the batch system says so.

Whoever ends a batch job signals every process in it, so tasks die beside their agent, and word of their death may come
first. That is no failure of theirs. A task that ends by SIGTERM is therefore looked at a moment later: if the agent was
told to end meanwhile, the attempt is lost and repeated elsewhere, without being charged for it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from shoal.broker.broker import Broker
from shoal.policy.deadline import NOTICE, can_finish, typical_duration
from shoal.policy.retry import Outcome
from shoal.store.directory import NodeInfo

DOUBT_SECONDS = 1.0
"""How long the end of a task by SIGTERM may be that of the whole node."""
LOOK_SECONDS = 1.0
_TERMINATED = (signal.SIGTERM, -signal.SIGTERM, 128 + signal.SIGTERM)
_SUSPECT = (Outcome.CRASHED.value, Outcome.FAILED.value)
_OUTCOME, _STATUS = 3, 4
"""Places in what the launcher tells of a task that has ended."""


class Ending:
    """When the node ends, and what is thought of tasks that end with it."""

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.leaving = False
        """The agent was told to end."""
        self._doubtful: list[tuple[float, tuple[Any, ...]]] = []
        self._next_look = 0.0

    # ---- tasks that end with their node --------------------------------------------------------------------------

    def sift(self, rows: Sequence[tuple[Any, ...]], now: float) -> list[tuple[Any, ...]]:
        """Of tasks that have ended, those of which it is known how; also those of earlier ones."""
        clear = []
        for row in rows:
            if self.leaving or row[_OUTCOME] not in _SUSPECT or row[_STATUS] not in _TERMINATED:
                clear.append(self._excused(row))
            else:
                self._doubtful.append((now + DOUBT_SECONDS, row))
        return clear + self.settled(now)

    def settled(self, now: float) -> list[tuple[Any, ...]]:
        """Those of which it has become known how they ended."""
        if not self._doubtful:
            return []
        known = [row for until, row in self._doubtful if self.leaving or until <= now]
        self._doubtful = [each for each in self._doubtful if not self.leaving and each[0] > now]
        return [self._excused(row) for row in known]

    def _excused(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.leaving and row[_OUTCOME] in _SUSPECT:
            return (*row[:_OUTCOME], Outcome.LOST.value, *row[_OUTCOME + 1 :])
        return row

    def doubts_until(self) -> float | None:
        """When the first of those in doubt is settled at the latest."""
        return self._doubtful[0][0] if self._doubtful else None

    # ---- a time that is known ------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is worth looking again whether what is queued fits."""
        if self.ends_at is None or self.leaving or now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        return True

    def expected(self, broker: Broker) -> float | None:
        """How long the next tasks take: those that are queued; if there are none, the longest kind there was."""
        lanes = [(broker.queue.queued_in(lane), broker.lanes[lane].mean_duration) for lane in broker.queue.lanes()]
        known = [lane.mean_duration for lane in broker.lanes if lane.mean_duration is not None]
        return typical_duration(lanes) if lanes else max(known, default=None)

    def is_too_late(self, broker: Broker, now: float) -> bool:
        """Whether what would be started now could not finish here."""
        return not can_finish(self.ends_at, now, self.expected(broker))


def longest_time(nodes: dict[int, NodeInfo], now: float) -> float | None:
    """Seconds that the node which stays longest is there for tasks; None: one of them has no end."""
    ends = [node.ends_at for node in nodes.values()]
    if any(end is None for end in ends):
        return None
    return max((end for end in ends if end is not None), default=now) - now - NOTICE
