"""One wait for an event loop: exited children, signals of the user, readable descriptors.

Signals arrive as bytes on a pipe, so that one `poll` waits for everything. Exits of children, of which there may be
thousands per second, arrive through a signalfd where available, without a Python handler. Handlers and signal mask are
restored afterwards.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

USER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_SIGNAL_SET_BYTES = 128


def catchable(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Returns those of these signals that this process may catch.

    A program that is started with an ignored hang-up (`nohup`) or interrupt (background job of a shell without job
    control) must not be ended by that signal, so it stays ignored.
    """
    spared = (signal.SIGHUP, signal.SIGINT)
    return [number for number in numbers if number not in spared or signal.getsignal(number) is not signal.SIG_IGN]


def _ignore(number: int, frame: FrameType | None) -> None:
    """Does nothing; the byte on the pipe counts."""


def _child_descriptor() -> int:
    """Returns a descriptor that is readable when a child has exited, with SIGCHLD blocked; -1 if not supported."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        wanted = ctypes.create_string_buffer(_SIGNAL_SET_BYTES)
        library.sigemptyset(wanted)
        library.sigaddset(wanted, int(signal.SIGCHLD))
        descriptor = int(library.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1
    if descriptor >= 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    return descriptor


class Interrupted(BaseException):  # like KeyboardInterrupt
    """A signal arrived that `signals_raise` turns into an exception."""


@contextmanager
def signals_raise(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Inside the block, those of these signals that are `catchable` raise `Interrupted`, during any wait."""
    old = {number: signal.signal(number, _interrupt) for number in catchable(numbers)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


class Wakeup:
    """One `poll` over signals and any number of other descriptors. Main thread only.

    With `children`, SIGCHLD may be blocked in this process: child processes must have their mask reset. Of `caught`
    only signals that are `catchable` are caught.
    """

    def __init__(self, caught: Iterable[signal.Signals], *, children: bool = False) -> None:
        caught = catchable(caught)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._children = _child_descriptor() if children else -1
        if self._children >= 0:
            self._poll.register(self._children, select.POLLIN)
        elif children:
            caught.append(signal.SIGCHLD)
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
        """Waits for at most `seconds`; returns the readable descriptors, without those of signals."""
        ready = []
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if descriptor == self._children:
                os.read(descriptor, 512)
                self.child_exited = True
            elif descriptor == self._read:
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
        if self._children >= 0:
            os.close(self._children)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
