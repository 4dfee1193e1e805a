"""Numbers at any places of a stretch of bytes, many at once."""

from __future__ import annotations

import numpy as np

from shoal.view.columns import Array, Ints

_SPARE = bytes(16)
"""Behind the last byte, so that a number that begins there can be looked at."""


class Strided:
    """Bytes, as numbers of any kind that begin at any of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._padded = data + _SPARE
        self._kinds: dict[str, Array] = {}

    def at(self, kind: str, places: Ints) -> Array:
        """The numbers of this kind that begin at these places; IndexError if one is far outside."""
        found = self._kinds.get(kind)
        if found is None:
            size = len(self._padded) - np.dtype(kind).itemsize + 1
            found = self._kinds[kind] = np.ndarray((size,), kind, self._padded, strides=(1,))
        return found[places]

    def places_of(self, byte: int) -> Ints:
        """Where this byte stands."""
        return np.flatnonzero(np.frombuffer(self.data, np.uint8) == byte)
