"""The reproductions in `experiments/` run with one command each and reach their bars at a small scale."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
BARS = {
    "matrix_all_pairs": 5,
    "matrix_bound": 1,
    "matrix_dags": 4,
    "matrix_policies": 1,
    "matrix_stacking": 3,
    "matrix_stealing": 1,
}
"""How many bars each has at this scale."""


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXPERIMENTS / f"{name}.py"), "--size", "tiny", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", BARS)
def test_reaches_its_bars_and_writes_a_table_and_a_plot(name: str, tmp_path: Path) -> None:
    ran = run(name, "--results", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    table = (tmp_path / f"{name}.md").read_text()
    assert table in ran.stdout
    assert table.count("| met |") == BARS[name]
    assert "paper" in table
    plot = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    lines = [line.get("points", "") for line in plot.iter("{http://www.w3.org/2000/svg}polyline")]
    assert any(len(points.split()) > 1 for points in lines)
    assert all(re.fullmatch(r"[-0-9., ]+", points) for points in lines)


def test_a_missed_bar_ends_with_status_1() -> None:
    ran = run("matrix_all_pairs", "--nodes", "1")
    assert ran.returncode == 1
    assert "| FLDS without a cache: efficiency at 2 cores | at most 50.0% | 100.0% | **missed** |" in ran.stdout


def test_node_counts_that_are_none_are_refused_with_a_sentence() -> None:
    for counts in ("0", "4,-1", "many"):
        ran = run("matrix_dags", "--nodes", counts)
        assert ran.returncode == 2
        assert ran.stderr.splitlines()[-1].endswith(f"from 1 on with commas between them, not {counts!r}")
