"""The way into an engine's thread: any thread puts a message in, the engine's poll wakes up."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

Message: TypeAlias = tuple[Callable[[Any], None], Any]
"""What the engine calls, and with what."""


class Inbox:
    """Messages in the order of their arrival; posting never waits for the engine."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when the engine was asleep and something has come."""
        self._messages: deque[Message] = deque()
        self._asleep = False

    def __len__(self) -> int:
        return len(self._messages)

    def post(self, handler: Callable[[Any], None], argument: Any) -> None:
        """Leave a message; one to an engine that has ended is dropped."""
        with self._lock:
            if self.wakeup < 0:
                return
            self._messages.append((handler, argument))
            if self._asleep:
                self._asleep = False
                os.eventfd_write(self.wakeup, 1)

    def take(self) -> Message | None:
        """The oldest message, if there is one."""
        return self._messages.popleft() if self._messages else None

    def fall_asleep(self) -> bool:
        """Announce that the engine will poll; false if it must not wait, because there are messages."""
        self._asleep = True
        if self._messages:
            self._asleep = False
            return False
        return True

    def wake(self) -> None:
        """Announce that the engine is awake, and empty the descriptor."""
        self._asleep = False
        try:
            os.eventfd_read(self.wakeup)
        except BlockingIOError:
            pass  # something else woke it

    def close(self) -> None:
        """Take nothing more."""
        with self._lock:
            if self.wakeup >= 0:
                os.close(self.wakeup)
                self.wakeup = -1
