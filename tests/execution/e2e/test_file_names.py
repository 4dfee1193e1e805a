"""`shoal run` and other commands with one file under several names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.command import shoal

RULES = """
import os
from shoal import file
file("./a", run="echo a >> {out}")
file(os.path.abspath("b"), needs=["a", ".//a"], run="cat {needs} > {out}")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The workflow's directory, to which a link leads as well."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "flow.py").write_text(RULES)
    (tmp_path / "link").symlink_to("project")
    return directory


@pytest.mark.parametrize("way", ["project", "link"])
def test_target_given_as_an_absolute_path_runs_its_task(project: Path, way: str) -> None:
    target = os.path.join(os.path.dirname(project), way, "b")
    assert "2 tasks done" in shoal(project, "run", "flow.py", target).stdout
    assert (project / "b").read_text() == "a\na\n"
    assert shoal(project, "why", target, "flow.py").stdout.startswith("'b' is up to date")


def test_makeflow_knows_a_file_by_one_name(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text(f"./b: {tmp_path}/a\n\tcat a > b\n\na:\n\techo 1 > a\n")
    assert "2 tasks done" in shoal(tmp_path, "run", "Makeflow", f"{tmp_path}/b").stdout
    assert (tmp_path / "b").read_text() == "1\n"


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    for name in ('"x\\0y"', '"a/" * 2000 + "z"'):
        (tmp_path / "flow.py").write_text(f"from shoal import file\nfile({name}, run='true')\n")
        refused = shoal(tmp_path, "run", expect=2)
        assert refused.stderr.startswith("shoal: flow.py:2: the file name ")
        assert len(refused.stderr.splitlines()) == 1


def test_lost_backslashes_are_reported_and_not_by_the_stand_in(tmp_path: Path) -> None:
    (tmp_path / "Makeflow").write_text("a:\n\techo 'b\\\\n' | tr -d '\\n' > a\n")
    note = "Makeflow:2: Makeflow removes backslashes also inside single quotes: the command gets 'n', not '\\n'; write"
    assert note in shoal(tmp_path, "plan").stderr
    assert note in shoal(tmp_path, "run").stderr
    assert "backslashes" not in shoal(tmp_path, "makeflow", "-l", "other", "Makeflow").stderr


@pytest.mark.parametrize("value", [r"X=tr -d '\n'", r"export X += tr -d '\\n'"])
def test_lost_backslashes_of_a_variable_are_reported(tmp_path: Path, value: str) -> None:
    (tmp_path / "Makeflow").write_text(f"{value}\na:\n\techo b | $(X) > a\n")
    told = shoal(tmp_path, "run").stderr
    assert "Makeflow:1: Makeflow removes backslashes also inside single quotes, in the value of a variable" in told


def test_a_name_that_leads_up_again_is_no_second_name(tmp_path: Path) -> None:
    """What it means depends on links; as another file it would be stale when the first one is made."""
    (tmp_path / "flow.py").write_text(
        "from shoal import file\nfile('e', run='true')\nfile('d/f', needs='d/../e', run='true')\n"
        "file('d/../g', run='echo g > {out}')\nfile('h', needs='../x', run='true')\n"
    )
    refused = shoal(tmp_path, "plan", "flow.py", "d/f", expect=2)
    assert "flow.py:3: 'd/../e' may be another name of 'e'; write the file's name in one way" in refused.stderr
    assert "1 task would run" in shoal(tmp_path, "plan", "flow.py", "d/../g").stdout
