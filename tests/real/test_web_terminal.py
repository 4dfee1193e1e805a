"""`shoal top` in a real pseudo-terminal: it follows the run and the size of the window, and leaves all as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.command import PATIENCE, SHOAL, environment, shoal, start

STEPS = """
from shoal import rule
rule("one", run="while ! test -e go; do sleep 0.01; done; echo done > one", category="step")
"""


class Terminal:
    """What a program shows on a terminal."""

    def __init__(self, pid: int, line: int) -> None:
        self.pid, self.line = pid, line
        self.seen = ""

    def read_until(self, condition: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while not condition(self.seen):
            assert time.monotonic() < deadline, f"waited in vain: {what}; {self.seen[-2000:]!r}"
            if select.select([self.line], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.line, 1 << 16).decode("utf-8", "replace")
                except OSError:  # the program has gone
                    assert condition(self.seen), f"{what}; {self.seen[-2000:]!r}"
        return self.seen

    def frame(self) -> list[str]:
        """What was drawn last, as lines without colours."""
        last = self.seen.rsplit("\x1b[H", 1)[-1].split("\x1b[J")[0]
        return re.sub(r"\x1b\[[0-9;]*[mK]", "", last).split("\r\n")

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.line, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def top(folder: Path, *words: str) -> Iterator[Terminal]:
    pid, line = pty.fork()
    if pid == 0:
        os.chdir(folder)
        surroundings = environment({"TERM": "xterm", "LC_ALL": "C.UTF-8", "COLUMNS": "77"})
        os.execve(SHOAL[0], [*SHOAL, "top", *words], surroundings)
    terminal = Terminal(pid, line)
    try:
        terminal.resize(100, 24)
        yield terminal
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(line)


def test_it_follows_a_run_fits_the_window_and_leaves_with_q(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    run = start(tmp_path, "run", "flow.py", "one", "--quiet")
    with top(tmp_path, "flow.py") as terminal:
        terminal.read_until(lambda seen: "0 of 1 done, 0 failed, 1 running" in seen, "the task runs")
        assert terminal.seen.startswith("\x1b[?1049h")
        os.write(terminal.line, b"r")
        terminal.read_until(lambda seen: re.search(r"one +1 +", seen) is not None, "the table of running tasks")
        terminal.resize(40, 10)
        terminal.read_until(
            lambda seen: len(terminal.frame()) > 5 and max(map(len, terminal.frame())) <= 39, "a narrow window"
        )
        assert len(terminal.frame()) <= 10
        terminal.resize(100, 24)
        (tmp_path / "go").touch()
        terminal.read_until(lambda seen: "1 of 1 done, 0 failed" in seen, "the task is done")
        assert run.wait(PATIENCE) == 0
        terminal.read_until(lambda seen: "flow.py  ok" in "\n".join(terminal.frame()), "the run is over")
        os.write(terminal.line, b"q")
        terminal.read_until(lambda seen: seen.endswith("\x1b[?25h\x1b[?1049l"), "the screen as it was")
        assert os.waitpid(terminal.pid, 0)[1] == 0


def test_without_a_terminal_it_says_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(STEPS)
    assert "needs a terminal; 'shoal status'" in shoal(tmp_path, "top", "flow.py", expect=2).stderr
    assert "does not exist" in shoal(tmp_path, "top", "absent.py", expect=2).stderr
