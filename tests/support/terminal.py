"""A program on a pseudo-terminal whose escape sequences an emulator interprets: tests see what a user would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

from support.command import PATIENCE, SHOAL, environment

ALTERNATE = 1049
"""The mode in which a terminal shows a second screen, and afterwards the first one as it was."""


class Emulator(pyte.Screen):
    """An emulator that knows the second screen, too, if such terminals do, and keeps what scrolls away at the top."""

    def __init__(self, columns: int, lines: int, has_second: bool) -> None:
        super().__init__(columns, lines)
        self.alternate = False
        self.scrolled: list[str] = []
        self._has_second = has_second
        self._first: tuple[list[str], int, int] = ([], 0, 0)

    def set_mode(self, *modes: int, **more: bool) -> None:
        if ALTERNATE in modes and more.get("private") and self._has_second:
            self.alternate, self._first = True, (list(self.display), self.cursor.y, self.cursor.x)
            self.erase_in_display(2)
        super().set_mode(*modes, **more)

    def reset_mode(self, *modes: int, **more: bool) -> None:
        if ALTERNATE in modes and more.get("private") and self.alternate:
            self.alternate = False
            self.erase_in_display(2)
            shown, line, column = self._first
            for number, text in enumerate(shown):
                self.cursor_position(number + 1)
                self.draw(text.rstrip())
            self.cursor_position(line + 1, column + 1)
        super().reset_mode(*modes, **more)

    def index(self) -> None:
        if self.cursor.y == self.lines - 1 and not self.alternate:
            self.scrolled.append(self.display[0])
        super().index()


class Terminal:
    """What a program shows on a terminal."""

    def __init__(self, pid: int, line: int, emulator: Emulator) -> None:
        self.pid, self.line = pid, line
        self.emulator = emulator
        self.written = b""
        """Everything that came from the program."""
        self.status: int | None = None
        self._stream = pyte.ByteStream(self.emulator)

    @property
    def lines(self) -> list[str]:
        """What is on the screen now."""
        return [line.rstrip() for line in self.emulator.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def everything(self) -> str:
        """With what has scrolled away."""
        return "\n".join([*(line.rstrip() for line in self.emulator.scrolled), self.text])

    def read(self, patience: float = 0.1) -> bool:
        """Takes what the program has written; False when it has closed the terminal."""
        if not select.select([self.line], [], [], patience)[0]:
            return True
        try:
            piece = os.read(self.line, 1 << 16)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.written += piece
        self._stream.feed(piece)
        return bool(piece)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Reads until the condition holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what};\n{self.everything}"
            assert self.read() or condition(), f"the program is gone before {what};\n{self.everything}"

    def until_end(self) -> int:
        """Reads until the program has ended; its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self.read():
            assert time.monotonic() < deadline, f"it does not end;\n{self.everything}"
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def press(self, keys: bytes) -> None:
        os.write(self.line, keys)

    def resize(self, columns: int, lines: int) -> None:
        self.emulator.resize(lines, columns)
        set_size(self.line, columns, lines)


def untouched() -> list[Any]:
    """The settings of a terminal that no program has changed yet; one that was just started may have done so."""
    ends = os.openpty()
    try:
        return termios.tcgetattr(ends[0])
    finally:
        for end in ends:
            os.close(end)


def set_size(line: int, columns: int, lines: int) -> None:
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def on_terminal(
    directory: Path, *words: str, size: tuple[int, int] = (80, 24), command: Sequence[str] = SHOAL, **variables: str
) -> Iterator[Terminal]:
    """Starts `shoal WORDS` there, and ends it if it has not ended."""
    wanted = environment({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **variables})
    pid, line = pty.fork()
    if pid == 0:
        set_size(0, *size)
        os.chdir(directory)
        os.execvpe(command[0], [*command, *words], wanted)
    terminal = Terminal(pid, line, Emulator(*size, has_second=wanted["TERM"] not in ("vt100", "linux")))
    try:
        yield terminal
    finally:
        if terminal.status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(line)
