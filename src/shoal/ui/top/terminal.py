"""Full-screen terminal control: alternate screen, unbuffered keys, and restoring of the terminal afterwards.

Only changed lines are written, which saves bandwidth and avoids flicker. Signals that would end the program are
recorded, and the terminal is restored first; the same holds while the program is stopped (Ctrl-Z).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from shoal.execution.processes.wakeup import catchable
from shoal.ui.cli.screen import Screen

_SEQUENCES = {
    b"[A": "up",
    b"[B": "down",
    b"[C": "right",
    b"[D": "left",
    b"[H": "home",
    b"[F": "end",
    b"[1~": "home",
    b"[4~": "end",
    b"[5~": "page up",
    b"[6~": "page down",
    b"OA": "up",
    b"OB": "down",
    b"OC": "right",
    b"OD": "left",
    b"OH": "home",
    b"OF": "end",
}
_SINGLE = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "back", "\x08": "back", "\x0c": "redraw", "\x04": "q"}
_OTHERS = {"k": "up", "j": "down", "g": "home", "G": "end", " ": "page down", "Q": "q", "h": "?"}
_LONGEST = 12


def keys_in(data: bytes) -> tuple[list[str], bytes]:
    """Returns the keys, and the rest of the bytes if a sequence is not complete yet."""
    found: list[str] = []
    while data:
        if data[:1] != b"\x1b":
            letter = chr(data[0])
            found.append(_SINGLE.get(letter) or _OTHERS.get(letter, letter))
            data = data[1:]
            continue
        size = _length(data)
        if size is None:
            return found, data
        key = _SEQUENCES.get(data[1:size]) if size > 1 else "escape"
        found += [key] if key is not None else []
        data = data[size:]
    return found, b""


def _length(data: bytes) -> int | None:
    """Length of the escape sequence at the start; None if more bytes must follow."""
    if len(data) == 1:
        return None
    if data[1:2] == b"O":
        return 3 if len(data) > 2 else None
    if data[1:2] != b"[":
        return 1
    for at in range(2, min(len(data), _LONGEST)):
        if 0x40 <= data[at] <= 0x7E:
            return at + 1
    return None if len(data) < _LONGEST else _LONGEST


# Alternate screen, hidden cursor, and no line wrapping. A terminal without an alternate screen is left empty.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J", "\x1b[0m\x1b[H\x1b[2J\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_SEQUENCE_SECONDS = 0.05
"""Maximum delay between Escape and the rest of a sequence."""


class FullScreen:
    """Controls the terminal inside a `with` block."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.stopped = 0
        """Exit status requested by a signal; 0 if there was none, and after Ctrl-C, which is a normal way to quit."""
        self._interrupted = self._suspended = False
        self._drawn: list[str] = []
        self._size = (0, 0)
        self._rest = b""
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> FullScreen:
        self._keyboard = sys.stdin.fileno()
        self._woken, self.wake = os.pipe()
        for end in (self._woken, self.wake):
            os.set_blocking(end, False)
        self._previous_wakeup = signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        for number in catchable((*_ENDING, signal.SIGTSTP, signal.SIGWINCH)):
            self._handlers[number] = signal.signal(number, self._record_signal)
        self._before = termios.tcgetattr(self._keyboard)
        self._enter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self.wake)

    def _record_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupted = True
        elif number in _ENDING:
            self.stopped = 128 + number
        elif number == signal.SIGTSTP:
            self._suspended = True

    def _enter(self) -> None:
        tty.setcbreak(self._keyboard)
        self._write(_ENTER)
        self.forget()

    def _restore(self) -> None:
        self._write(_LEAVE)
        try:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)
        except termios.error:  # the terminal has been closed
            pass

    def _suspend(self) -> None:
        """Suspends the program, as Ctrl-Z does."""
        self._suspended = False
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()

    def _write(self, text: str) -> bool:
        try:
            self.screen.stream.write(text)
            self.screen.stream.flush()
        except (OSError, ValueError):
            return False
        return True

    def forget(self) -> None:
        """Forces the next `draw` to write every line."""
        self._size = (0, 0)

    def draw(self, lines: Sequence[str]) -> bool:
        """Draws these lines; False if the terminal has been closed."""
        size, pieces = self.screen.size(), []
        if size != self._size:
            self._size, self._drawn = size, []
            pieces.append("\x1b[H\x1b[2J")
        for number in range(max(len(lines), len(self._drawn))):
            new = lines[number] if number < len(lines) else ""
            if number >= len(self._drawn) or self._drawn[number] != new:
                pieces.append(f"\x1b[{number + 1};1H{new}\x1b[K")
        self._drawn = list(lines)
        return self._write("".join(pieces)) if pieces else True

    def keys(self, patience: float) -> list[str]:
        """Waits for keys; returns early if the size changes or the wake-up pipe is written."""
        if self._rest:
            ready, _, _ = select.select([self._keyboard], [], [], _SEQUENCE_SECONDS)
        else:
            ready, _, _ = select.select([self._keyboard, self._woken], [], [], patience)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._suspended:
            self._suspend()
        if self._interrupted:
            return ["q"]
        if self._keyboard not in ready:
            rest, self._rest = self._rest, b""
            return ["escape"] if rest else []
        try:
            data = os.read(self._keyboard, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal has been closed
            return ["q"]
        found, self._rest = keys_in(self._rest + data)
        return found
