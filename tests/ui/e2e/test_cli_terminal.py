"""The display on an emulated terminal: it is redrawn in place, failures stay above it, and nothing is left behind."""

from __future__ import annotations

import os
import pty
import re
from pathlib import Path

import pytest

from support.command import SHOAL, environment, shoal, wait_until
from support.terminal import on_terminal, set_size

WORKFLOW = (
    "CATEGORY=nap\n"
    + "".join(f"o{number}:\n\tsleep 0.05; echo > o{number}\n\n" for number in range(20))
    + "CATEGORY=other\nbad:\n\techo last words; exit 3\n"
)
GATED = """
from shoal import rule
for number in range(4):
    rule(f"n{number}", run=f"sleep 0.2; echo > n{number}", category="nap")
rule("gate", run="while ! test -e go; do sleep 0.02; done; echo > gate", category="{name}")
rule("all", ["gate", *(f"n{number}" for number in range(4))], run="echo > all", category="end")
"""
HOSTILE = "\\x1b[2J\\x1b]0;title\\x07\\u202egnp\\u4e2d\\u6587\\u4e2d\\u6587"


def gated(directory: Path, name: str = "gate-keeping") -> None:
    (directory / "flow.py").write_text(GATED.replace("{name}", name))


def test_block_is_redrawn_in_place_and_taken_away_before_the_summary(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW.replace("sleep 0.05", "while ! test -e go; do sleep 0.05; done"))
    with on_terminal(tmp_path, "run", "--jobs", "2") as terminal:
        terminal.until(lambda: " of 21 done" in terminal.text, "the counts")
        terminal.until(lambda: terminal.written.count(b" of 21 done") >= 3, "it is redrawn")
        (tmp_path / "go").touch()
        assert terminal.until_end() == 1
    found = terminal.lines
    assert found[:2] == ["failed: bad: exit status 3", "    | last words"]
    assert found[2] == "not everything could be made: 20 tasks done, 1 failed"
    assert " running" not in terminal.text  # of the block nothing is left


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60), (20, 5)])
def test_the_display_says_the_essentials_in_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    gated(tmp_path)
    with on_terminal(tmp_path, "run", "flow.py", "all", "--jobs", "2", size=size) as terminal:
        terminal.until(lambda: terminal.lines[1].startswith("4 of 6 done"), "only the gate is left")
        wanted = [(0, r"^\S+ +67 %")]
        if size[0] >= 40:
            wanted += [(2, r"^gate-keep\S+ \S+ 0 of 1 · 1 running$"), (0, " left|nearly done")]
        if size[0] >= 80:
            wanted += [(1, r"of 2 cores")]
        for at, words in wanted:  # what is drawn may be read in several pieces
            terminal.until(lambda at=at, words=words: bool(re.search(words, terminal.lines[at])), words)  # type: ignore[misc]
        (tmp_path / "go").touch()
        assert terminal.until_end() == 0
    assert "all done: 6 tasks done" in terminal.everything.replace("\n", "")


def test_the_display_follows_the_size_of_the_window(tmp_path: Path) -> None:
    gated(tmp_path)
    with on_terminal(tmp_path, "run", "flow.py", "all", "--jobs", "2", size=(80, 24)) as terminal:
        terminal.until(lambda: "4 of 6 done" in terminal.text, "only the gate is left")
        set_size(terminal.line, 40, 12)  # before the emulator: it would wrap what was still drawn for 80 columns
        terminal.until(lambda: "4 of 6 done · 1 running · 1 not started" in terminal.lines, "it is drawn for 40")
        terminal.resize(40, 12)
        # What is drawn may be read in several pieces.
        counts = "4 of 6 done · 1 running · 1 not started"
        terminal.until(lambda: len(list(filter(None, terminal.lines))) == 3 and counts in terminal.lines, "three lines")
        terminal.resize(120, 30)
        terminal.until(lambda: "1 not started · " in terminal.text, "it is wide again")
        (tmp_path / "go").touch()
        assert terminal.until_end() == 0
    assert terminal.lines[0] == "all done: 6 tasks done"


def test_ctrl_c_leaves_a_clean_terminal(tmp_path: Path) -> None:
    gated(tmp_path)
    with on_terminal(tmp_path, "run", "flow.py", "all", "--jobs", "2") as terminal:
        terminal.until(lambda: "4 of 6 done" in terminal.text, "only the gate is left")
        terminal.press(b"\x03")
        assert terminal.until_end() == 130
    assert terminal.lines[:2] == [
        "shoal: stopping: received SIGINT",
        "stopped (received SIGINT): 4 tasks done, 2 not run",
    ]
    assert terminal.emulator.cursor.x == 0 and not terminal.emulator.cursor.hidden


def test_names_cannot_move_the_cursor_or_turn_the_line(tmp_path: Path) -> None:
    gated(tmp_path, HOSTILE)
    with on_terminal(tmp_path, "run", "flow.py", "all", "--jobs", "2", size=(60, 12)) as terminal:

        def is_shown() -> bool:
            counts, gate, below = terminal.lines[1:4]
            is_named = gate.startswith("?[2J?]0;title??gnp…") and gate.endswith("1 running")
            return counts.startswith("4 of 6 done") and is_named and below == ""

        terminal.until(is_shown, "only the gate is left")
        assert "\u202e" not in terminal.text and b"\x1b[2J" not in terminal.written
        assert terminal.emulator.title == ""
        (tmp_path / "go").touch()
        assert terminal.until_end() == 0


def test_what_fails_cannot_move_the_cursor_either(tmp_path: Path) -> None:
    bad = "rule('\\x1b[2J\\u202ebad', run='printf \"\\\\302\\\\2332Jlast\"; exit 3', category='\\x1b[5A')\n"
    (tmp_path / "flow.py").write_text("from shoal import rule\n" + bad)
    with on_terminal(tmp_path, "run", "flow.py", "\x1b[2J\u202ebad") as terminal:
        assert terminal.until_end() == 1
    assert terminal.lines[:2] == ["failed: ?[2J?bad: exit status 3", "    | ?2Jlast"]
    assert terminal.lines[2] == "not everything could be made: 0 tasks done, 1 failed"
    with on_terminal(tmp_path, "status", "flow.py") as terminal:
        assert terminal.until_end() == 0
    assert "  ?[2J?bad: exit status 3" in terminal.lines


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--explain", "--plain"),
        ("plan", "--verbose"),
        ("run", "--dry-run", "--explain"),
        ("simulate",),
        ("clean", "--dry-run", "--verbose"),
    ],
)
def test_no_command_prints_names_that_a_terminal_would_obey(tmp_path: Path, words: tuple[str, ...]) -> None:
    name = "\x1b[2J\u202e\x07out"
    command = f"touch '{name}'"
    (tmp_path / "flow.py").write_text(f"from shoal import rule\nrule({name!r}, run={command!r}, category={name!r})\n")
    if words[0] == "clean":
        shoal(tmp_path, "run", "flow.py", name, "--quiet")
    done = shoal(tmp_path, words[0], "flow.py", name, *words[1:], expect=None)
    said = done.stdout + done.stderr
    assert "?[2J" in said and not any(sign in said for sign in ("\x1b", "\x07", "\u202e"))


def test_complaints_name_files_as_a_terminal_can_show_them(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2J.py").write_text("if True:\n\tthis is no Python\n")
    said = shoal(tmp_path, "run", "\x1b[2J.py", expect=2).stderr
    assert "\x1b" not in said and "?[2J.py:2:" in said and "\n" in said.strip()


def test_colours_only_where_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    with on_terminal(tmp_path, "run", NO_COLOR="1") as without:
        without.until_end()
    assert not re.search(rb"\x1b\[[0-9;]*m", without.written)
    with on_terminal(tmp_path, "run", "--force", NO_COLOR="") as coloured:
        coloured.until_end()
    assert b"\x1b[31m" in coloured.written


@pytest.mark.parametrize("words", [("--plain",), ()])
def test_dumb_terminals_and_plain_runs_get_plain_lines(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    with on_terminal(tmp_path, "run", *words, TERM="xterm" if words else "dumb") as terminal:
        terminal.until_end()
    assert b"\x1b" not in terminal.written
    assert "running 21 tasks" in terminal.everything


@pytest.mark.parametrize(("kind", "why"), [("dumb", "TERM is dumb"), ("", "TERM is not set")])
def test_top_says_why_it_cannot_draw_on_a_terminal(tmp_path: Path, kind: str, why: str) -> None:
    (tmp_path / "Makeflow").write_text(WORKFLOW)
    with on_terminal(tmp_path, "top", "Makeflow", size=(200, 24), TERM=kind) as terminal:
        assert terminal.until_end() == 2
    said = f"shoal: this terminal does not support full-screen display: {why}; 'shoal status' prints the state of a run"
    assert terminal.everything.strip() == said
    assert "'shoal top' needs a terminal" in shoal(tmp_path, "top", "Makeflow", expect=2).stderr


def test_a_terminal_without_other_letters_gets_simpler_ones(tmp_path: Path) -> None:
    gated(tmp_path)
    with on_terminal(tmp_path, "run", "flow.py", "all", "--jobs", "2", PYTHONIOENCODING="ascii") as terminal:
        terminal.until(lambda: "4 of 6 done, 1 running" in terminal.text, "only the gate is left")
        (tmp_path / "go").touch()
        assert terminal.until_end() == 0
    assert terminal.written.isascii()


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
