"""`shoal top` on an emulated terminal: what is on the screen in every size, after keys, and when it has left."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.real.test_ssh_starter import Server, server
from shoal.ledger.workspace import Workspace
from support.command import PATIENCE, SHOAL, shoal, start, wait_until
from support.terminal import Terminal, on_terminal, untouched

__all__ = ["server"]
SHELL = ("sh", "-c", 'trap : INT QUIT; echo before; shift; "$@"; echo "left with $?"; exec cat', "sh", "sh")
HOSTILE = "\\x1b[2J\\x1b]0;title\\x07\\u202egnp\\u4e2d\\u6587\\u4e2d\\u6587"
FLOW = """
from shoal import rule
for number in range(6):
    rule(f"a{number}", run=f"echo > a{number}", category="align")
rule("bad", run="echo last words; exit 3", category="align")
rule("one", ["a0"], run="echo first line; while ! test -e go; do sleep 0.02; done; echo > one", category="NAME")
rule("two", ["one"], run="echo > two", category="join")
rule("all", ["two", "bad", *(f"a{number}" for number in range(6))], run="echo > all", category="join")
"""


@contextmanager
def flow_under_way(folder: Path, name: str = "step") -> Iterator[None]:
    """A run in which all is done or failed but the task `one` and what needs it."""
    (folder / "flow.py").write_text(FLOW.replace("NAME", name))
    run = start(folder, "run", "flow.py", "all", "--quiet")
    stands = "6 done, 0 up to date, 1 failed, 1 running"
    wait_until(lambda: stands in shoal(folder, "status", "flow.py", expect=None).stdout, "only one task runs")
    try:
        yield
    finally:
        (folder / "go").touch()
        assert run.wait(PATIENCE) == 1


def the_essentials(terminal: Terminal) -> bool:
    found = terminal.lines
    return found[0].startswith("flow.py  running") and found[2].startswith("6 of 10 done")


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
def test_every_size_shows_the_essentials_and_every_view(tmp_path: Path, size: tuple[int, int]) -> None:
    with flow_under_way(tmp_path), on_terminal(tmp_path, "top", "flow.py", size=size) as terminal:
        terminal.until(lambda: the_essentials(terminal) and "> align" in terminal.text, "progress and a table")
        assert terminal.emulator.alternate and terminal.emulator.cursor.hidden
        cores = re.compile(r"cores +[▁-█]+ +[012]\.\d of [\d.]+")
        terminal.until(lambda: any(map(cores.fullmatch, terminal.lines)), "the cores over time")
        wanted = [r"(?m)^[█▒░]+ 60 %$", r"failures: exit status 3 \(1\)", r"(?m)^q quit  \? help"]
        if size[0] >= 80:
            wanted += ["1 failed, 1 running, 1 not started, 1 cannot run", r"critical path: \d+ % done"]
            wanted += ["longest running: one "]
        for words in wanted:  # what is drawn may be read in several pieces
            terminal.until(lambda words=words: re.search(words, terminal.text) is not None, words)  # type: ignore[misc]
        for key, word in ((b"r", "> one "), (b"f", "> exit status 3"), (b"n", "> "), (b"t", "> a0"), (b"c", "> align")):
            terminal.press(key)
            terminal.until(lambda word=word: word in terminal.text, f"the view {key!r}")  # type: ignore[misc]
        terminal.press(b"q")
        assert terminal.until_end() == 0
        assert not terminal.emulator.alternate and not terminal.emulator.cursor.hidden


def test_it_follows_the_window_and_the_run(tmp_path: Path) -> None:
    with on_terminal(tmp_path, "top", "flow.py", size=(80, 24), COLUMNS="77") as terminal:
        with flow_under_way(tmp_path):
            terminal.until(lambda: the_essentials(terminal), "the run")
            for size in ((40, 12), (200, 60), (20, 5), (7, 2), (80, 24)):
                terminal.resize(*size)
                if size[0] >= 20:
                    terminal.until(
                        lambda: the_essentials(terminal) and terminal.lines[-1].startswith("q quit"), f"{size}"
                    )
            assert terminal.lines.count(terminal.lines[0]) == 1
        terminal.until(lambda: terminal.lines[0].startswith("flow.py  failed"), "the run is over")
        terminal.until(lambda: "8 of 10 done, 1 failed, 1 not run" in terminal.lines[2], "how it has ended")
        terminal.press(b"q")
        assert terminal.until_end() == 0


def test_one_task_is_opened_with_its_reason_and_its_output(tmp_path: Path) -> None:
    with flow_under_way(tmp_path), on_terminal(tmp_path, "top", "flow.py") as terminal:
        terminal.until(lambda: the_essentials(terminal), "the run")
        terminal.press(b"?")
        terminal.until(lambda: terminal.lines[0] == "Keys of shoal top", "help")
        terminal.press(b"xr")
        terminal.until(lambda: "> one " in terminal.text, "what runs")
        terminal.press(b"\r")
        terminal.until(lambda: terminal.lines[0] == "one  running", "the running task")
        terminal.until(lambda: "why: " in terminal.text and "loading" not in terminal.text, "the workflow's answer")
        for line in ("  first line", "needs: a0 (done)"):
            terminal.until(lambda line=line: line in terminal.lines, line)  # type: ignore[misc]
        terminal.press(b"\x1b")
        terminal.until(lambda: "> one " in terminal.text, "back in the table")
        terminal.press(b"f\r")
        terminal.until(lambda: re.search(r"> bad +failed", terminal.text) is not None, "failed tasks")
        terminal.press(b"\x1bOB\x1b[A\n")
        terminal.until(lambda: terminal.lines[0] == "bad  failed" and "  last words" in terminal.lines, "a failed task")
        terminal.press(b"\x1b[D\x7fs")
        terminal.until(lambda: "category▾" in terminal.text, "back in all categories, sorted")


def test_names_cannot_break_the_screen(tmp_path: Path) -> None:
    with flow_under_way(tmp_path, HOSTILE), on_terminal(tmp_path, "top", "flow.py") as terminal:
        terminal.until(lambda: the_essentials(terminal), "the run")
        for key in (b"c", b"r", b"t", b"s", b"s"):
            terminal.press(key)
            # How much room it has depends on how wide the figures beside it are.
            terminal.until(lambda: "?[2J?]0;tit" in terminal.text, f"the name in {key!r}")
            terminal.until(lambda: the_essentials(terminal) and terminal.lines[-1].startswith("q quit"), "the rest")
        assert terminal.emulator.title == "" and "\u202e" not in terminal.text
        terminal.press(b"r")
        terminal.until(lambda: "> one " in terminal.text, "what runs")
        terminal.press(b"\r")
        terminal.until(lambda: "category ?[2J?]0;title??gnp" in terminal.text, "the task")


@pytest.mark.parametrize(
    ("term", "how"),
    [
        *(("xterm", "key"), ("xterm", "ctrl-c"), ("xterm", "ctrl-\\"), ("screen", "SIGTERM"), ("vt100", "SIGTERM")),
        ("xterm", "SIGHUP"),
    ],
)
def test_the_terminal_is_left_as_it_was(tmp_path: Path, term: str, how: str) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    with on_terminal(tmp_path, *SHOAL, "top", "flow.py", command=SHELL, TERM=term) as terminal:
        before = untouched()
        terminal.until(lambda: "not run yet" in terminal.text, "it is there")
        assert termios.tcgetattr(terminal.line) != before
        if how.startswith("SIG"):
            children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.Signals[how])
        else:
            terminal.press({"key": b"q", "ctrl-c": b"\x03", "ctrl-\\": b"\x1c"}[how])
        status = {"key": 0, "ctrl-c": 0, "ctrl-\\": 131, "SIGTERM": 143, "SIGHUP": 129}[how]
        terminal.until(lambda: f"left with {status}" in terminal.text, "it has left")
        above = [] if term in ("vt100", "linux") else ["before"]  # those have no second screen
        assert [line for line in terminal.lines if line] == [*above, f"left with {status}"]
        assert termios.tcgetattr(terminal.line) == before
        assert not terminal.emulator.cursor.hidden


def test_a_ledger_that_cannot_be_read_ends_it_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    Path(Workspace(str(tmp_path / "flow.py")).ledger).mkdir(parents=True)
    with on_terminal(tmp_path, *SHOAL, "top", "flow.py", command=SHELL) as terminal:
        before = untouched()
        terminal.until(lambda: "left with 1" in terminal.text, "it has left")
        assert "Is a directory" in terminal.text and "Traceback" not in terminal.text
        assert termios.tcgetattr(terminal.line) == before
        assert not terminal.emulator.alternate and not terminal.emulator.cursor.hidden


def test_a_stopped_program_gives_the_terminal_back_until_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    with on_terminal(tmp_path, "top", "flow.py") as terminal:
        before = untouched()
        terminal.until(lambda: "not run yet" in terminal.text, "it is there")
        os.kill(terminal.pid, signal.SIGTSTP)  # as Ctrl-Z does
        terminal.until(lambda: Path(f"/proc/{terminal.pid}/stat").read_text().split()[2] == "T", "it is stopped")
        terminal.until(lambda: not terminal.emulator.alternate, "the first screen")
        assert termios.tcgetattr(terminal.line) == before
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.until(lambda: terminal.emulator.alternate and "not run yet" in terminal.text, "it goes on")
        terminal.press(b"q")
        assert terminal.until_end() == 0


def test_over_ssh_it_is_the_same(tmp_path: Path, server: Server) -> None:
    there = f"cd {shlex.quote(str(tmp_path))} && LC_ALL=C.UTF-8 {shlex.join([*SHOAL, 'top', 'flow.py'])}"
    words = ["ssh", "-tt", *server.client().prefix[2:], f"{getpass.getuser()}@127.0.0.1", there]
    with flow_under_way(tmp_path), on_terminal(tmp_path, *words[1:], command=words[:1]) as terminal:
        terminal.until(lambda: the_essentials(terminal) and "> align" in terminal.text, "the run")
        terminal.resize(40, 12)
        terminal.until(lambda: the_essentials(terminal) and "q quit  ? help" in terminal.lines[-1], "a small window")
        terminal.press(b"r")
        terminal.until(lambda: "> one " in terminal.text, "what runs")
        terminal.press(b"\x1b[B\r")
        terminal.until(lambda: terminal.lines[0] == "one  running", "the running task")
        terminal.press(b"q")
        assert terminal.until_end() == 0
        assert not terminal.emulator.alternate


def test_where_it_cannot_be_drawn_it_says_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    assert "needs a terminal; 'shoal status'" in shoal(tmp_path, "top", "flow.py", expect=2).stderr
    assert "does not exist" in shoal(tmp_path, "top", "absent.py", expect=2).stderr
    with on_terminal(tmp_path, "top", "flow.py", TERM="dumb") as terminal:
        assert terminal.until_end() == 2
    assert "this terminal does not support full-screen display" in terminal.text and b"\x1b" not in terminal.written
