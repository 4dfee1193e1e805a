"""The most cores that a tree of processes used over any second, from its CPU time at each look. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 1.0
"""A shorter burst does not count as a need."""
_SHORT = 0.05
"""A stretch over which clock ticks of 10 ms tell no rate."""


class CoresWindow:
    """CPU seconds at the last looks, oldest first."""

    def __init__(self, started: float) -> None:
        self._looks: deque[tuple[float, float]] = deque([(started, 0.0)])
        self.most = 0.0

    @property
    def cpu(self) -> float:
        """Seconds so far."""
        return self._looks[-1][1]

    def note(self, now: float, cpu: float) -> None:
        """Takes in a look; what is buried between two readings may be missing for a moment."""
        looks = self._looks
        cpu = max(cpu, self.cpu)
        while len(looks) > 1 and looks[1][0] <= now - WINDOW_SECONDS:
            looks.popleft()
        stretch = now - looks[0][0]
        if stretch >= WINDOW_SECONDS:
            self.most = max(self.most, (cpu - looks[0][1]) / stretch)
        looks.append((now, cpu))

    def recent(self) -> float:
        """Cores in use since the last look, or since an earlier one if that was only a moment ago."""
        now, cpu = self._looks[-1]
        for moment, earlier in reversed(self._looks):
            if now - moment >= _SHORT:
                return (cpu - earlier) / (now - moment)
        return 0.0
