"""The most that attempts had of something at the same time, found bit by bit as a run goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.view.attempts import Attempts
from shoal.view.columns import Floats, Ints

_PIECE = 1 << 16
_MOST_LOOKED_AT = 4 * _PIECE
"""Attempts that are sorted at once. Where a long one would make it more, the earlier ones are left out: what they had
together is known but for the share of that one."""


class Together:
    """Of the attempts of one run."""

    def __init__(self) -> None:
        self._known, self._most = 0, 0.0

    def most(self, rows: Attempts, weigh: Callable[[Ints], Floats]) -> float:
        """Each has as much as `weigh` says of some rows, from its beginning to its end. Only what is new since the last
        time is looked at, with what ran beside it."""
        while self._known < len(rows):
            upto = min(len(rows), self._known + _PIECE)
            began = rows.started[self._known : upto].min()
            late = np.flatnonzero(rows.ended[:upto] >= began)[-_MOST_LOOKED_AT:]
            self._most = max(self._most, most_of(rows.started[late], rows.ended[late], weigh(late)))
            self._known = upto
        return self._most


def most_of(begins: Floats, ends: Floats, held: Floats) -> float:
    if (held == 1.0).all():
        begins.sort()
        ends.sort()
        running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
        return float(running.max())
    order = np.argsort(np.concatenate((ends, begins)), kind="stable")
    return float(np.cumsum(np.concatenate((-held, held))[order]).max())
