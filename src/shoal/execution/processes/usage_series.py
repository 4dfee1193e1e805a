"""The usage of an attempt over time, as the ledger keeps it: few points of five 32-bit numbers in little-endian order.

A point is the age of the attempt in milliseconds, the peak memory since the point before in KiB, the CPU time so far in
hundredths of a second, and the KiB read and written so far. Larger values are cut off. `native/course.c` collects the
same points for the launcher in C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

MOST_POINTS = 60
_POINT = struct.Struct("<5I")
_LARGEST = (1 << 32) - 1
_KIBIBYTE = 1024


class UsagePoint(NamedTuple):
    """Times in seconds, amounts in bytes."""

    age: float
    memory: int
    cpu: float
    read: int
    written: int


def pack(points: Iterable[UsagePoint]) -> bytes:
    """Encodes points for the ledger."""
    return b"".join(_POINT.pack(*map(_cut, _figures(point))) for point in points)


def _figures(point: UsagePoint) -> tuple[float, ...]:
    sizes = (point.memory / _KIBIBYTE, point.read / _KIBIBYTE, point.written / _KIBIBYTE)
    return (point.age * 1000, sizes[0], point.cpu * 100, *sizes[1:])


def _cut(value: float) -> int:
    return max(0, min(_LARGEST, int(value)))


def unpack(data: bytes) -> list[UsagePoint]:
    """Decodes points, without an incomplete one at the end. Makes cumulative values non-decreasing: when processes are
    killed together, the last measurement sees only some of them."""
    whole = data[: len(data) // _POINT.size * _POINT.size]
    found: list[UsagePoint] = []
    cpu = read = written = 0
    for age, memory, *so_far in _POINT.iter_unpack(whole):
        cpu, read, written = map(max, (cpu, read, written), so_far)
        found.append(UsagePoint(age / 1000, memory * _KIBIBYTE, cpu / 100, read * _KIBIBYTE, written * _KIBIBYTE))
    return found


LEAST_SPACING = 0.2
"""Minimum seconds between two points; doubles when there are too many points."""
FIRST_AGE = 0.1
"""Age at the first point: shorter attempts cost nothing."""
LEAST_AGE = 1.0
"""Minimum age of an attempt whose series is reported."""


class UsageSeries:
    """The series of one attempt."""

    def __init__(self) -> None:
        self._points: list[UsagePoint] = []
        self._spacing = LEAST_SPACING
        self._memory = 0

    def is_due(self, age: float, memory: int) -> bool:
        """Records the memory at a measurement; returns whether a new point is due."""
        if not self._points:
            self._memory = memory
            return age >= FIRST_AGE
        self._memory = max(self._memory, memory)
        return age - self._points[-1].age >= 0.9 * self._spacing

    def add(self, age: float, cpu: float, read: int, written: int) -> None:
        """Adds a point; its memory is the maximum since the previous point."""
        points = self._points
        if len(points) == MOST_POINTS:
            pairs = zip(points[::2], points[1::2], strict=True)
            points[:] = [second._replace(memory=max(first.memory, second.memory)) for first, second in pairs]
            self._spacing *= 2
        points.append(UsagePoint(age, self._memory, cpu, read, written))
        self._memory = 0

    def end(self, age: float, cpu: float, read: int, written: int) -> bytes:
        """Returns the encoded series; empty for short attempts. The memory at the end is unknown by then."""
        if not self._points or age < LEAST_AGE:
            return b""
        self._memory = max(self._memory, self._points[-1].memory)
        self.add(age, cpu, read, written)
        return pack(self._points)
