"""Millions of seeded draws, in numpy, and the way from there to the plain columns of a `Work`.

The generator is counter-based: draw number *i* of a stream depends on the seed, the stream and *i* alone, not on how
many are asked for. So a workload of 1,000 tasks is the beginning of the one of a million, all shapes of one seed have
the same task lengths, and any stretch of a stream too long to keep can be drawn again.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]

LENGTHS = 0
"""The stream that task lengths come from."""
SIZES = 1
"""The stream that sizes of outputs come from."""

_STRETCH = 1 << 20
"""Draws under one counter; a request need not begin at a multiple of it."""
_WORD = (1 << 64) - 1


def uniform(seed: int, stream: int, count: int, first: int = 0) -> Floats:
    """Draws `first` to `first + count` of the stream, evenly from 0 up to but not including 1."""
    drawn = np.empty(count, dtype=np.float64)
    key = np.array([seed & _WORD, stream & _WORD], dtype=np.uint64)
    at = first
    while at < first + count:
        stretch, skipped = divmod(at, _STRETCH)
        taken = min(_STRETCH - skipped, first + count - at)
        counter = np.array([0, stretch, 0, 0], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
        drawn[at - first : at - first + taken] = generator.random(skipped + taken)[skipped:]
        at += taken
    return drawn


def floats(column: Floats) -> array[float]:
    """The column with plain floats as elements."""
    plain = array("d")
    plain.frombytes(column.tobytes())
    return plain


def numbers(column: Whole) -> array[int]:
    """The column with plain ints as elements, 32 bits each: for tasks, files and counts."""
    plain = array("i")
    plain.frombytes(column.astype(np.int32).tobytes())
    return plain


def sizes(column: Whole) -> array[int]:
    """The column with plain ints as elements, 64 bits each: for bytes."""
    plain = array("q")
    plain.frombytes(column.astype(np.int64).tobytes())
    return plain


def sums(start: Whole, values: Whole) -> Whole:
    """For each row `values[start[i]:start[i + 1]]` its sum; an empty row has 0."""
    running = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)))
    return running[start[1:]] - running[start[:-1]]
