"""What a share is given by the agent around it: a clock, and somewhere to send messages."""

from __future__ import annotations

import time
from typing import Protocol

from shoal.agent.messages import WireMessage


class Clock:
    """Seconds since the epoch that never jump."""

    def __init__(self) -> None:
        self.offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self.offset


class Post(Protocol):
    """Where messages for other agents go."""

    def send(self, address: str, message: WireMessage) -> None: ...
