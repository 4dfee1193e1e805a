"""A few histories of the rebuild oracle; `python -m tests.fuzz.rebuild --seeds A..B` plays more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 600


_RULES = (
    "directories,groups,patterns,functions,links,names,failures,times,kills,damage,content,copies,clean,intruders,"
    "definitions,members,outputs"
)
_CLUSTER = "cluster,members,definitions,functions,directories,failures,kills"


@pytest.mark.parametrize(
    ("seeds", "only"), [("0..19", _RULES), ("0..9", "makeflow,dropin,kills,failures"), ("0..3", _CLUSTER)]
)
def test_no_history_ends_with_other_files_than_a_clean_build(seeds: str, only: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.rebuild", "--seeds", seeds, "--jobs", "2", "--only", only],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("defect", "seed"), [("1", 5), ("2 clean", 210), ("3", 88), ("4", 48)])
def test_a_defect_that_is_put_back_is_found(defect: str, seed: int) -> None:
    """These histories depend on no moment. `python -m tests.fuzz.rebuild.mutants` searches for all defects."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.rebuild.mutants", "--seeds", f"{seed}..{seed}", defect],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
