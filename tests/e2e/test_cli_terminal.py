"""The display on a real pseudo-terminal: it is redrawn in place, failures stay above it, and nothing is left behind."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path

from support.command import SHOAL, environment, shoal, wait_until

WORKFLOW = (
    "".join(f"o{number}:\n\tsleep 0.05; echo > o{number}\n\n" for number in range(20))
    + "bad:\n\techo last words; exit 3\n"
)
COLUMNS = 60
REWIND = "\r\x1b[3A"


def run_on_terminal(directory: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Exit status and everything that was written to the terminal."""
    wanted = {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "24", "PYTHONIOENCODING": "utf-8"} | variables
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(SHOAL[0], [*SHOAL, *words], environment() | wanted)
    written = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), written.decode()


def test_block_is_redrawn_in_place_and_taken_away_before_the_summary(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    status, text = run_on_terminal(tmp_path, "run", "--jobs", "2")
    assert status == 1
    assert text.count(REWIND) >= 3
    assert "running: sleep 2" in text
    assert "of 21 done" in text
    assert "failed: bad: exit status 3" in text
    summary = text.rsplit(REWIND + "\x1b[J", 1)[1]
    assert "20 tasks done, 1 failed" in summary
    assert "\x1b[3A" not in summary


def test_no_line_of_the_block_is_wider_than_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(
        WORKFLOW.replace("sleep 0.05", "C=very-long-name-of-a-category-indeed; sleep 0.05")
    )
    _, text = run_on_terminal(tmp_path, "run", "--jobs", "2")
    block = text[text.index(REWIND) : text.rindex(REWIND)]
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", block).replace("\r", "")
    assert max(len(line) for line in plain.split("\n")) < COLUMNS


def test_colours_only_where_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    _, without = run_on_terminal(tmp_path, "run", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*m", without)
    _, coloured = run_on_terminal(tmp_path, "run", "--force", NO_COLOR="")
    assert re.search(r"\x1b\[31m", coloured)


def test_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    _, text = run_on_terminal(tmp_path, "run", TERM="dumb")
    assert "\x1b" not in text
    assert "running 21 tasks" in text


def test_run_whose_terminal_goes_away_stops_cleanly(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("first:\n\ttouch first\n\nslow: first\n\techo \\$\\$ > pid; exec sleep 300\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(SHOAL[0], [*SHOAL, "run"], environment() | {"TERM": "xterm"})
    path = tmp_path / "pid"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), "the slow task has started")
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 143
    assert not os.path.exists(f"/proc/{int(path.read_text())}")
    assert "(received SIGHUP), 1 of 2 tasks done" in shoal(tmp_path, "status").stdout
