"""The course of an attempt: what was seen of it at the looks at its tree, in few points, for the launcher in Python.

`native/course.c` does the same. How points are written is said in `shoal.model.course`.
"""

from __future__ import annotations

from shoal.model.course import MOST_POINTS, Point, pack

LEAST_SPACING = 0.2
"""Seconds between two points; it doubles when there are too many of them."""
FIRST_AGE = 0.1
"""At the first point: whatever is shorter costs nothing."""
LEAST_AGE = 1.0
"""Of an attempt whose course is told."""


class Course:
    """One attempt."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._spacing = LEAST_SPACING
        self._memory = 0

    def is_due(self, age: float, memory: int) -> bool:
        """Takes note of the memory at a look; whether there is to be another point."""
        if not self._points:
            self._memory = memory
            return age >= FIRST_AGE
        self._memory = max(self._memory, memory)
        return age - self._points[-1].age >= 0.9 * self._spacing

    def add(self, age: float, cpu: float, read: int, written: int) -> None:
        """Adds a point; its memory is the most since the one before."""
        points = self._points
        if len(points) == MOST_POINTS:
            pairs = zip(points[::2], points[1::2], strict=True)
            points[:] = [second._replace(memory=max(first.memory, second.memory)) for first, second in pairs]
            self._spacing *= 2
        points.append(Point(age, self._memory, cpu, read, written))
        self._memory = 0

    def end(self, age: float, cpu: float, read: int, written: int) -> bytes:
        """What is told of it; nothing if it was short. Its memory at the end is not known any more."""
        if not self._points or age < LEAST_AGE:
            return b""
        self._memory = max(self._memory, self._points[-1].memory)
        self.add(age, cpu, read, written)
        return pack(self._points)
