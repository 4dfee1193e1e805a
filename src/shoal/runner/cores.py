"""The most cores that a tree of processes used over any window of time, from its CPU time at each look. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 1.0
"""Of a task of a run; a shorter burst does not count as a need."""
_SHORT = 0.05
"""A stretch over which clock ticks of 10 ms tell no rate."""


class CoresWindow:
    """CPU seconds at the last looks, oldest first."""

    def __init__(self, started: float, seconds: float = WINDOW_SECONDS, *, idle_before: bool = False) -> None:
        """With `idle_before` the time before the start counts as idle, until there is a whole window."""
        self._looks: deque[tuple[float, float]] = deque([(started, 0.0)])
        self._seconds = seconds
        self._least = 0.0 if idle_before else seconds
        self.most = 0.0

    @property
    def cpu(self) -> float:
        """Seconds so far."""
        return self._looks[-1][1]

    def note(self, now: float, cpu: float) -> None:
        """Takes in a look; what is buried between two readings may be missing for a moment."""
        looks = self._looks
        cpu = max(cpu, self.cpu)
        while len(looks) > 1 and looks[1][0] <= now - self._seconds:
            looks.popleft()
        stretch = now - looks[0][0]
        if stretch >= self._least:
            self.most = max(self.most, (cpu - looks[0][1]) / max(stretch, self._seconds))
        looks.append((now, cpu))

    def recent(self) -> float:
        """Cores in use since the last look, or since an earlier one if that was only a moment ago."""
        now, cpu = self._looks[-1]
        for moment, earlier in reversed(self._looks):
            if now - moment >= _SHORT:
                return (cpu - earlier) / (now - moment)
        return 0.0
