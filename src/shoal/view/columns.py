"""Columns that grow, and names packed away: a million tasks in a hundred megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Array = NDArray[Any]
_FIRST_ROOM = 256
_MOST_EXPECTED = 1 << 23
_GROWTH = 1.5


class Column:
    """Numbers of one kind, added at the end."""

    def __init__(self, kind: str, expected: int = 0) -> None:
        # Room that is not used yet takes no memory.
        self._room: Array = np.zeros(max(_FIRST_ROOM, min(expected + expected // 32, _MOST_EXPECTED)), kind)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: Sequence[float] | Array) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            self._grow(size)
        self._room[self._size : size] = values
        self._size = size

    def _grow(self, size: int) -> None:
        room = np.zeros(max(size, int(_GROWTH * len(self._room))), self._room.dtype)
        room[: self._size] = self._room[: self._size]
        self._room = room

    def reach(self, size: int) -> None:
        """At least so many, with zeros where nothing was said."""
        if size > len(self._room):
            self._grow(size)
        self._size = max(self._size, size)

    @property
    def values(self) -> Array:
        """All of them, not copied."""
        return self._room[: self._size]


class Names:
    """Names of tasks by number, as they came: in packed chunks, of which the one used last is unpacked."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._chunk_of = Column("i4")
        """Counted from 1; 0 for a task that has no name here."""
        self._place = Column("i4")
        self._open: tuple[int, list[str]] = (-1, [])

    def add(self, tasks: Ints, names: Sequence[str]) -> None:
        self._chunks.append(msgspec.msgpack.encode(names))
        if len(tasks):
            for column in (self._chunk_of, self._place):
                column.reach(int(tasks.max()) + 1)
            self._chunk_of.values[tasks] = len(self._chunks)
            self._place.values[tasks] = np.arange(len(tasks))

    def may_have(self, part: str, size: int) -> Array:
        """For each task below this number, whether its name may have this part: one in its chunk has. Large and small
        letters are the same."""
        wanted = part.lower()
        texts = ("\n".join(msgspec.msgpack.decode(chunk, type=list[str])) for chunk in self._chunks)
        has_it = np.array([True, *(wanted in text.lower() for text in texts)])
        found = np.ones(size, bool)
        known = self._chunk_of.values[:size]
        found[: len(known)] = has_it[known]
        return found

    def of(self, task: int) -> str:
        """The name, or something that stands for it."""
        number = int(self._chunk_of.values[task]) if 0 <= task < len(self._chunk_of) else 0
        if not number:
            return f"task {task}"
        if self._open[0] != number:
            self._open = (number, msgspec.msgpack.decode(self._chunks[number - 1], type=list[str]))
        return self._open[1][int(self._place.values[task])]
