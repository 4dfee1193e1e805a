"""Where a rule's function runs, with which variables, and what happens to one that cannot be sent to a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import shoal
from support.ledgers import final_records

FLOW = """
import os
from functools import partial
from shoal import sh, task

def note(name):
    with open(os.environ.get("MARK", "unset") + "-" + name, "w") as file:
        file.write(os.environ["HOME"])

@task("acting", env={"MARK": "a", "HOME": "/nowhere"}, cwd="inside")
def acting(t):
    note("acting")
    sh("echo $MARK > said")

task("called", needs="acting", run=partial(note, "called"), env={"MARK": "b"}, cwd="inside")
task("plain", needs="called", run=partial(note, "plain"))
"""


def test_functions_run_in_their_directory_with_their_variables(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "flow.py").write_text(FLOW)
    shoal(tmp_path, "run", "flow.py", "--quiet", "--jobs", "1", expect=0)
    assert (inside / "a-acting").read_text() == "/nowhere"
    assert (inside / "said").read_text() == "a\n"
    assert (inside / "b-called").read_text() != "/nowhere", "variables of another call are gone"
    assert (tmp_path / "unset-plain").exists(), "the directory of another call is left"


def test_a_function_whose_directory_is_missing_fails(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from shoal import task\ntask('a', run=print, cwd='not-there')\n")
    said = shoal(tmp_path, "run", "flow.py", expect=1)
    assert "not-there" in said.stdout + said.stderr


def test_a_function_that_cannot_be_sent_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
from functools import partial
from shoal import task
task("bad", run=partial(print, (number for number in range(3))))
task("good", run=partial(print, "fine"))
""")
    said = shoal(tmp_path, "run", "flow.py", expect=1)
    assert "cannot be sent to a worker process" in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr
    outcomes = {record.task: record.outcome for record in final_records(tmp_path / "flow.py")}
    assert sorted(outcomes.values()) == ["failed", "ok"]


@pytest.mark.parametrize(
    ("statement", "about"),
    [
        ("task('a\\ud800', run='true')", "name of the task"),
        ("task('a', run='echo \\ud800')", "the command"),
        ("file('o\\ud800', run='true')", "file name"),
        ("task('a', run='true', env={'A': '\\ud800'})", "env"),
        ("task('a', run='true', cwd='\\ud800')", "cwd"),
        ("task('a', run='true', category='\\ud800')", "category"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path, statement: str, about: str) -> None:
    (tmp_path / "flow.py").write_text(f"from shoal import file, task\n{statement}\n")
    said = shoal(tmp_path, "run", "flow.py", expect=2)
    assert about in said.stderr and "surrogate" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_message_with_half_of_a_surrogate_pair_is_shown(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("""
from shoal import task

@task("a")
def a(t):
    raise ValueError("odd \\ud800 one")
""")
    said = shoal(tmp_path, "run", "flow.py", expect=1)
    assert "ValueError: odd" in said.stdout + said.stderr
