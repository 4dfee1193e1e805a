"""Whether tasks shared cores: the one rule, for a run that counts as it goes and for whoever reads its ledger. Needs no
numpy, but for many attempts at once.

Time is cut into equal pieces. Tasks share cores if together they held notably more than there was, summed over the
pieces: where one begins when another one ends, or is found to have ended a moment late, that is not more. The pieces
follow from the attempts alone, not from their order, so that everybody comes to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.view.columns import Floats

CROWDED = 1.02
"""From so many times what there was on, tasks share cores."""
_PIECES, _FINEST = 256, 1 / 64


class Crowding:
    """What attempts held over time; O(1) for each, and of a fixed size."""

    def __init__(self) -> None:
        self._width = _FINEST
        self._steps: dict[int, float] = {}
        """By piece: how much more is held after it than before."""
        self._inside: dict[int, float] = {}
        """Core seconds of these steps within the piece."""
        self._first = self._last = 0

    def copy(self) -> Crowding:
        other = Crowding()
        other._width, other._first, other._last = self._width, self._first, self._last
        other._steps, other._inside = self._steps.copy(), self._inside.copy()
        return other

    def add(self, begin: float, end: float, cores: float) -> None:
        """An attempt."""
        if end <= begin or not cores:
            return
        self._reach(begin, end)
        for moment, change in ((begin, cores), (end, -cores)):
            at = int(moment // self._width)
            self._change(at, change, change * ((at + 1) * self._width - moment))

    def add_all(self, begins: Floats, ends: Floats, cores: Floats) -> None:
        """Many of them."""
        import numpy as np

        count = (ends > begins) & (cores != 0)
        begins, ends, cores = begins[count], ends[count], cores[count]
        if not len(begins):
            return
        self._reach(float(begins.min()), float(ends.max()))
        for moments, changes in ((begins, cores), (ends, -cores)):
            places = np.floor_divide(moments, self._width).astype(np.int64)
            left = changes * ((places + 1) * self._width - moments)
            first = int(places.min())
            steps, inside = np.bincount(places - first, changes), np.bincount(places - first, left)
            for at in np.unique(places).tolist():
                self._change(at, float(steps[at - first]), float(inside[at - first]))

    def is_crowded(self, cores: float) -> bool:
        held = fits = running = 0.0
        there, before = cores * self._width, self._first
        for at in sorted(self._steps):
            between = running * self._width  # in each of the pieces in which nothing began or ended
            held += between * (at - before)
            fits += min(between, there) * (at - before)
            here = between + self._inside[at]
            held += here
            fits += min(here, there)
            running += self._steps[at]
            before = at + 1
        return cores > 0 and held > CROWDED * fits

    def _change(self, at: int, step: float, inside: float) -> None:
        self._steps[at] = self._steps.get(at, 0.0) + step
        self._inside[at] = self._inside.get(at, 0.0) + inside

    def _reach(self, begin: float, end: float) -> None:
        first, last = int(begin // self._width), int(end // self._width)
        if self._steps:
            first, last = min(first, self._first), max(last, self._last)
        while last - first >= _PIECES:
            self._widen()
            first, last = first >> 1, last >> 1
        self._first, self._last = first, last

    def _widen(self) -> None:
        steps, inside, width = self._steps, self._inside, self._width
        self._steps, self._inside, self._width = {}, {}, 2 * width
        for at, step in steps.items():
            self._change(at >> 1, step, inside[at] + (0.0 if at & 1 else step * width))
