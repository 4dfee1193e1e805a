"""The course of an attempt over time, as it stands in the ledger: points of five 32-bit numbers in little-endian order.

They are the age of the attempt in milliseconds, the most memory since the point before in KiB, the CPU time so far in
hundredths of a second, and what it has read and written so far in KiB. What is too large is cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

MOST_POINTS = 60
_POINT = struct.Struct("<5I")
_LARGEST = (1 << 32) - 1
_KIBIBYTE = 1024


class Point(NamedTuple):
    """Seconds and bytes."""

    age: float
    memory: int
    cpu: float
    read: int
    written: int


def pack(points: Iterable[Point]) -> bytes:
    """As they stand in the ledger."""
    return b"".join(_POINT.pack(*map(_cut, _figures(point))) for point in points)


def _figures(point: Point) -> tuple[float, ...]:
    sizes = (point.memory / _KIBIBYTE, point.read / _KIBIBYTE, point.written / _KIBIBYTE)
    return (point.age * 1000, sizes[0], point.cpu * 100, *sizes[1:])


def _cut(value: float) -> int:
    return max(0, min(_LARGEST, int(value)))


def unpack(data: bytes) -> list[Point]:
    """What stands there; what is no whole point is left out. What was used so far never becomes less: of processes that
    were killed together the last look sees only a part."""
    whole = data[: len(data) // _POINT.size * _POINT.size]
    found: list[Point] = []
    cpu = read = written = 0
    for age, memory, *so_far in _POINT.iter_unpack(whole):
        cpu, read, written = map(max, (cpu, read, written), so_far)
        found.append(Point(age / 1000, memory * _KIBIBYTE, cpu / 100, read * _KIBIBYTE, written * _KIBIBYTE))
    return found
