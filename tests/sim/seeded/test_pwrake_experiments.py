"""Pwrake's evaluation reproduced at a small scale: what is exact about the orders, and the signs of the rest."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


@cache
def table(name: str) -> dict[str, list[str]]:
    """The rows that a run of the smallest size prints, by their first cell; of equal ones the last."""
    command = [sys.executable, str(EXPERIMENTS / f"{name}.py"), "--size", "tiny"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in ran.stderr, ran.stderr
    rows = [line.strip("| ").split(" | ") for line in ran.stdout.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows}


def test_fifo_has_the_consumer_half_of_all_chains_later_and_lifo_directly_behind() -> None:
    rows = table("pwrake_orders")
    assert rows["FIFO: places from A_i to B_i, least"] == ["at least 10", "10", "met"]
    assert rows["FIFO: places from A_i to B_i, most"] == ["at most 10", "10", "met"]
    assert rows["LIFO: tasks between A_i and B_i, most"] == ["at most 0", "0", "met"]


def test_the_end_leaves_a_core_idle_for_one_b_with_fifo_and_for_both_with_lifo() -> None:
    rows = table("pwrake_orders")
    assert rows["fifo: idle core seconds at the end, most"][1:] == ["1", "met"]
    assert rows["lifo: idle core seconds at the end, most"][1:] == ["3", "met"]


def test_highest_rank_first_removes_the_trailing_tasks() -> None:
    rows = table("pwrake_orders")
    for order in ("hrf", "lifo+hrf"):
        assert rows[f"{order}: makespan with a long tail, of the least possible"][1:] == ["100.0%", "met"]
    idle = {order: float(rows[order][1]) for order in ("fifo", "lifo", "lifo+hrf")}
    assert idle == {"fifo": 30, "lifo": 30, "lifo+hrf": 0}


def test_lifo_hrf_is_never_worse_than_lifo_by_more_than_one_a() -> None:
    behind = next(cells for name, cells in table("pwrake_orders").items() if name.startswith("LIFO+HRF behind LIFO"))
    assert float(behind[1]) <= 1


def test_copyfile_is_faster_with_locality_and_with_hits_in_the_page_cache() -> None:
    rows = table("pwrake_copyfile")
    assert [cells[-1] for name, cells in rows.items() if "saves" in name] == ["met", "met"]
    on = "on: a queue per node, Pwrake's candidates; "
    assert float(rows[on + "lifo"][2]) > float(rows[on + "fifo"][2]) == 0  # from memory
    assert float(rows[on + "lifo"][4]) == float(rows[on + "fifo"][4]) == 0  # over the network


def test_montage_takes_less_task_time_with_locality_in_every_order() -> None:
    locality = table("pwrake_montage")["locality, cumulative"]
    saved = [float(each.removesuffix(" %")) for each in locality[1].split(", ")]
    assert len(saved) == 4
    assert max(saved) < 0
