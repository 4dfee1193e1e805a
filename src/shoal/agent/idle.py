"""Whether a core of this node is idle beside tasks of a peer that it could run, by what nodes tell with each beat.

That must not last longer than `Rounds.longest_search`, within which every peer was asked for tasks; it lasts if words
get lost on the way, or by a defect of ours. Then the agent looks anew who is there, asks once more, and tells of it. A
peer that was asked and gave nothing has its reasons: the node would have the data too late, or others were quicker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from shoal.agent.messages import NodeNote
from shoal.model.quantities import show_seconds

FIRST_LOOK = 5.0
LONGEST_PAUSE = 60.0
"""Seconds after which an idle node looks at what all nodes tell: doubling as long as there is nothing for it."""
SLACK = 3.0
"""Seconds by which what is told may be old, and in which loops may be busy."""


class Beside(msgspec.Struct, frozen=True):
    """A peer with tasks that this node could run."""

    peer: int
    shared: int
    seconds: float
    """For how long both has been so: this node idle, that one with tasks for it."""
    lasts: bool
    """That is longer than it may be."""


class Idle:
    """One for each share of a run."""

    def __init__(self) -> None:
        self._next_look = inf
        self._pause = FIRST_LOOK
        self._beside: dict[int, float] = {}
        """Peers that had tasks for us whenever we looked, and since when."""
        self.told = ""
        """What there is to say of it, as long as it lasts."""

    def is_time(self, now: float, *, is_searching: bool) -> bool:
        """Whether to look at what the others tell. To be asked with every beat."""
        if not is_searching:
            self._next_look, self._pause = inf, FIRST_LOOK
            self._beside.clear()
            self.told = ""
        elif self._next_look == inf:
            self._next_look = now + self._pause
        return now >= self._next_look

    def look(
        self,
        now: float,
        run: str,
        allowed: float,
        unable: Sequence[int],
        notes: Mapping[int, NodeNote],
        declined: Mapping[int, float],
    ) -> Beside | None:
        """`notes` are of the others; `unable` are lanes of which nothing could start here, and `declined` tells when
        peers that were asked have given nothing."""
        waits = {
            peer
            for peer, note in notes.items()
            if note.run == run
            and any(lane not in unable for lane in note.lanes)
            and now - declined.get(peer, -inf) > allowed + SLACK
        }
        self._beside = {peer: self._beside.get(peer, now) for peer in waits}
        if not waits:
            self.told = ""
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._next_look = now + self._pause
            return None
        self._pause = FIRST_LOOK
        self._next_look = now + self._pause
        peer, since = min(self._beside.items(), key=lambda each: each[1])
        return Beside(peer, notes[peer].shared, now - since, now - since > allowed + SLACK)


def sentence(name: str, other: str, beside: Beside) -> str:
    """What is told of it; with the name of this node and that of the other one."""
    return (
        f"{name} has been idle for {show_seconds(round(beside.seconds))} "
        f"beside {beside.shared} queued tasks of {other}, some of which it could run; it asks again"
    )
