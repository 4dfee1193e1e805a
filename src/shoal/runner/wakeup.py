"""What wakes the loop: exited children, signals of the user, descriptors of worker processes.

Signals arrive as bytes on a pipe, so that one `poll` waits for everything. Handlers are put back afterwards.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any

USER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The byte on the pipe is what counts."""


class Wakeup:
    """One `poll` over a signal pipe and any number of other descriptors. Main thread only."""

    def __init__(self, caught: Iterable[signal.Signals]) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old: dict[int, Any] = {number: signal.signal(number, _ignore) for number in caught}
        self.signals: list[int] = []
        """Signals other than SIGCHLD that came since they were last taken."""
        self.child_exited = False

    def add(self, descriptor: int) -> None:
        self._poll.register(descriptor, select.POLLIN)

    def discard(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> list[int]:
        """Waits at most so long; returns the descriptors that can be read, the signal pipe left out."""
        ready = []
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if descriptor == self._read:
                self._drain()
            else:
                ready.append(descriptor)
        return ready

    def _drain(self) -> None:
        try:
            arrived = os.read(self._read, 4096)
        except BlockingIOError:
            return
        for number in arrived:
            if number == signal.SIGCHLD:
                self.child_exited = True
            else:
                self.signals.append(number)

    def close(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._read)
        os.close(self._write)
