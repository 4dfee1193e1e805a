"""How many tasks a scheduler draws from its flow before there are resources for them.

The lines themselves, one for each vector of classes, are the steward's: tickets that ask for the same wait in one line,
and a line that cannot be served keeps no other from being served. What is decided here is only how many tickets wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

AHEAD = 64
MOST_AHEAD = 10_000


class Drawing(Protocol):
    """Whether one more task is to be drawn."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        """`waiting` have no resources yet; `is_idle` tells whether something is free that none of them can use."""


class OneAtATime(msgspec.Struct, frozen=True):
    """The document's base loop, which blocks in `acquire`: the next task is looked at when this one has resources."""

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting == 0


class LookAhead(msgspec.Struct, frozen=True):
    """Up to `ahead` tasks wait, up to `most` while something is idle, and any number while nothing runs at all.

    The last rule is why this cannot hang. With a fixed bound, so many tasks of a class of which there is nothing would
    hide a task behind them that could run.
    """

    ahead: int = AHEAD
    most: int = MOST_AHEAD

    def wants(self, waiting: int, running: int, is_idle: Callable[[], bool]) -> bool:
        return waiting < self.ahead or not running or (waiting < self.most and is_idle())
