"""Directories of more levels than a function of Python's library can go down, as outputs of tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.execution.files.trees import remove_tree
from support.command import shoal, start, wait_until

LEVELS = 1500
FLOW = f'from shoal import file\nfile("made", needs="source", run="{sys.executable} act.py")\n'
DEEP = """
import os
os.makedirs("made", exist_ok=True)
with open("source") as source:
    text = source.read()
os.chdir("made")
for _ in range({levels}):
    os.mkdir("{name}")
    os.chdir("{name}")
with open("bottom", "w") as file:
    file.write(text)
"""
FAILING = DEEP + "raise SystemExit(1)\n"
SHALLOW = 'import os\nos.mkdir("made")\nopen("made/x", "w").close()\n'
NAMES = ["d", "level"]
"""The path to the bottom is shorter, and longer, than PATH_MAX."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "source").write_text("one\n")
    yield tmp_path
    remove_tree(str(tmp_path))  # pytest's own removal calls itself for each level


def act(project: Path, text: str, name: str = "d") -> None:
    (project / "act.py").write_text(text.replace("{levels}", str(LEVELS)).replace("{name}", name))


def change(project: Path, source: str) -> None:
    (project / "source").write_text(source)


def open_bottom(top: Path) -> int:
    here = os.open(top, os.O_RDONLY)
    for _ in range(LEVELS):
        (name,) = (each for each in os.listdir(here) if each in NAMES)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    return here


def at_the_bottom(top: Path, file: str = "bottom") -> str:
    here = open_bottom(top)
    with open(os.open(file, os.O_RDONLY, dir_fd=here)) as opened:
        text = opened.read()
    os.close(here)
    return text


def write_at_the_bottom(top: Path, file: str, text: str) -> None:
    here = open_bottom(top)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=here), "w") as opened:
        opened.write(text)
    os.close(here)


def run(project: Path, *words: str, expect: int = 0) -> str:
    done = shoal(project, *(words or ("run", "flow.py")), expect=expect)
    return done.stdout + done.stderr


def is_settled(project: Path) -> bool:
    records = project / ".shoal" / "flow.py"
    return not (records / "aside").exists() and not (records / "attempts").exists()


@pytest.mark.parametrize("name", NAMES)
def test_deep_output_is_made_again_and_cleaned(project: Path, name: str) -> None:
    act(project, DEEP, name)
    run(project)
    assert "nothing to do" in run(project)
    change(project, "two\n")
    run(project)
    assert at_the_bottom(project / "made") == "two\n"
    assert is_settled(project)
    run(project, "clean", "flow.py", "--dry-run")
    run(project, "clean", "flow.py")
    assert not (project / ".shoal").exists()
    assert sorted(os.listdir(project)) == ["act.py", "flow.py", "source"]


@pytest.mark.parametrize("name", NAMES)
def test_failures_beside_a_deep_output_lose_nothing(project: Path, name: str) -> None:
    act(project, DEEP, name)
    run(project)
    act(project, FAILING, name)
    for source in ("two\n", "three\n"):
        change(project, source)
        run(project, expect=1)
        assert at_the_bottom(project / "made") == "one\n"
        assert is_settled(project)
        assert at_the_bottom(project / ".shoal/flow.py/partial/made") == source
    act(project, DEEP, name)
    run(project)
    assert at_the_bottom(project / "made") == "three\n"
    run(project, "clean", "flow.py")
    assert sorted(os.listdir(project)) == ["act.py", "flow.py", "source"]


@pytest.mark.parametrize("check", ["time", "content"])
@pytest.mark.parametrize("name", NAMES)
def test_file_that_was_changed_at_the_bottom_is_not_lost(project: Path, name: str, check: str) -> None:
    act(project, DEEP, name)
    run(project, "run", "flow.py", "--check", check)
    write_at_the_bottom(project / "made", "bottom", "mine\n")
    assert "has changed since it was made" in run(project, "clean", "flow.py")
    assert at_the_bottom(project / "made") == "mine\n"


@pytest.mark.parametrize("name", NAMES)
def test_file_that_was_changed_at_the_bottom_does_not_become_part_of_the_new_output(project: Path, name: str) -> None:
    act(project, DEEP, name)
    run(project)
    write_at_the_bottom(project / "made", "bottom", "mine\n")
    change(project, "two\n")
    act(project, SHALLOW)
    run(project)
    assert is_settled(project)
    assert os.listdir(project / "made") == ["x"]
    assert at_the_bottom(project / ".shoal/flow.py/replaced/made") == "mine\n"


def test_own_file_at_the_bottom_stays(project: Path) -> None:
    act(project, DEEP)
    run(project)
    write_at_the_bottom(project / "made", "mine", "")
    change(project, "two\n")
    act(project, DEEP.replace("    os.mkdir", "    os.path.isdir('d') or os.mkdir"))
    run(project)
    assert at_the_bottom(project / "made") == "two\n"
    assert at_the_bottom(project / "made", "mine") == ""
    assert is_settled(project)
    run(project, "clean", "flow.py")
    assert at_the_bottom(project / "made", "mine") == ""


def test_own_file_that_is_too_deep_stops_its_task_only(project: Path) -> None:
    """What has been made beside it cannot be put aside."""
    act(project, DEEP, "level")
    run(project)
    write_at_the_bottom(project / "made", "mine", "")
    change(project, "two\n")
    for _ in range(2):
        assert "cannot move its previous outputs aside: File name too long" in run(project, expect=1)
        assert at_the_bottom(project / "made") == "one\n"
        assert is_settled(project)
    here = open_bottom(project / "made")
    os.unlink("mine", dir_fd=here)
    os.close(here)
    run(project)
    assert at_the_bottom(project / "made") == "two\n"


@pytest.mark.parametrize("name", NAMES)
def test_deep_output_comes_back_after_a_kill(project: Path, name: str) -> None:
    act(project, DEEP, name)
    run(project)
    change(project, "two\n")
    act(project, DEEP + "import time\nopen(top + '/begun', 'w').close()\ntime.sleep(600)\n", name)
    (project / "act.py").write_text(f"top = {str(project)!r}\n" + (project / "act.py").read_text())
    process = start(project, "run", "flow.py")
    wait_until((project / "begun").exists, "the task has begun")
    process.kill()
    process.wait()
    act(project, "raise SystemExit(1)")
    run(project, expect=1)
    assert at_the_bottom(project / "made") == "one\n"
    assert at_the_bottom(project / ".shoal/flow.py/interrupted/made") == "two\n"
    assert is_settled(project)
