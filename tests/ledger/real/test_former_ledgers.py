"""Ledgers that Shoal 0.1.0 wrote before its modules had their present names: they load, and say what they said."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from support.command import shoal

FORMER = Path(__file__).parents[1] / "former"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which `shoal run flow.py total bad.txt` and `shoal run net.py` were run."""
    shutil.copytree(FORMER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "state").rename(tmp_path / ".shoal")
    for path in tmp_path.glob("*.txt"):
        path.rename(path.with_suffix(""))
    return tmp_path


def test_finished_work_of_a_former_ledger_is_up_to_date(folder: Path) -> None:
    told = shoal(folder, "plan", "flow.py", "total", "--check", "content").stdout
    assert "nothing to do: 5 tasks are up to date" in told


def test_the_failed_task_of_a_former_ledger_is_explained_and_runs_again(folder: Path) -> None:
    assert "exit status 3" in shoal(folder, "why", "bad.txt", "flow.py").stdout
    again = shoal(folder, "run", "flow.py", "total", "bad.txt", "--check", "content", "--plain", expect=1)
    assert "bad.txt: exit status 3" in again.stdout + again.stderr


def test_status_report_and_output_read_a_former_ledger(folder: Path) -> None:
    told = json.loads(shoal(folder, "status", "flow.py", "--json").stdout)
    assert (told["done"], told["failed"]) == (5, 1)
    assert shoal(folder, "output", "total", "flow.py").stdout == "lines in all: 10\n"
    report = json.loads(shoal(folder, "report", "flow.py@1", "--json").stdout)
    assert report["run"]["outcome"] == "failed" and report["summary"][0].startswith("5 tasks done, 1 failed")


def test_a_net_goes_on_from_a_former_ledger(folder: Path) -> None:
    again = shoal(folder, "run", "net.py", expect=None)
    assert "not this one" in again.stdout + again.stderr
    assert "found" in shoal(folder, "status", "net.py").stdout


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("shoal.flow.net.words", "Failure"),
        ("shoal.memory.handle", "Allocation"),
        ("shoal.model.task", "Call"),
        ("shoal.plan.decide", "Reason"),
        ("shoal.runner.call_errors", "CallExitError"),
        ("shoal.schedulers.pool", "Pool"),
    ],
)
def test_what_was_pickled_under_a_former_name_is_found(former: str, name: str) -> None:
    found = pickle.loads(f"c{former}\n{name}\n.".encode())
    assert found.__name__ == name and not found.__module__.startswith(former)


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        __import__("shoal.nothing")
