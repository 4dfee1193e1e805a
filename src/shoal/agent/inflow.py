"""How fast files come to a node, seen from what came: so that nobody needs to say what its link bears."""

from __future__ import annotations

PERIOD = 0.5
LEAST = 1 << 20
"""Bytes; less says more about how long a request takes than about the link."""
FRESH = 0.3
"""What a new measurement counts beside all earlier ones."""


class Inflow:
    """Measures while something is on its way."""

    def __init__(self) -> None:
        self.rate: float | None = None
        """Bytes a second; None: not enough has come yet."""
        self._since: float | None = None
        self._bytes = 0

    def begins(self, now: float) -> None:
        """Something is on its way from now on."""
        if self._since is None:
            self._since = now

    def arrived(self, now: float, size: int, under_way: int) -> None:
        """Something has come, and so many are still on their way."""
        if self._since is None:
            return
        self._bytes += size
        seconds = now - self._since
        if under_way and seconds < PERIOD:
            return
        if self._bytes >= LEAST and seconds > 0:
            seen = self._bytes / seconds
            self.rate = seen if self.rate is None else (1 - FRESH) * self.rate + FRESH * seen
        self._since = now if under_way else None
        self._bytes = 0
