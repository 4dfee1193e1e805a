"""What cannot run any more, since it needs what failed: found in any graph, and cheaply in a large one."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from shoal.ledger.records import Record, TasksLinked, encode
from shoal.ledger.views.doomed_tasks import Doomed
from shoal.ledger.workspace import Workspace
from shoal.ui.web import run_page
from shoal.ui.web.watch import Watch
from support.views import ended, linked, planned, started


def walked(children: dict[int, list[int]], failed: list[int], over: set[int]) -> set[int]:
    """The same, task by task."""
    open_ones, found = [task for task in failed if task not in over], set()
    over.update(failed)
    while open_ones:
        for child in children.get(open_ones.pop(), []):
            if child not in over:
                over.add(child)
                found.add(child)
                open_ones.append(child)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_same_are_found_as_by_walking(seed: int) -> None:
    random = Random(seed)
    tasks = random.randrange(2, 400)
    needs = [{task: random.choices(range(-1, tasks), k=random.randrange(4)) for task in range(tasks)} for _ in "ab"]
    children: dict[int, list[int]] = {}
    for task, needed in (pair for each in needs for pair in each.items()):
        for one in needed:
            children.setdefault(one, []).append(task)
    children.pop(-1, None)
    doomed, over = Doomed([linked(each) for each in needs]), set[int]()
    for _ in range(4):
        failed = random.choices(range(tasks + 3), k=random.choice([1, 60]))
        found = doomed.follow(np.array(failed)).tolist()
        assert sorted(found) == sorted(walked(children, failed, over))


def test_a_long_chain_and_many_that_need_one() -> None:
    size = 20_000
    chain = linked({task: [task - 1] for task in range(1, size)})
    wide = linked({size + task: [size - 1] for task in range(100)})
    behind = linked({size + 100 + task: [size + task] for task in range(100)})
    assert sorted(Doomed([chain, wide, behind]).follow(np.array([5])).tolist()) == list(range(6, size + 200))


def test_a_large_graph_takes_little_more_than_its_records() -> None:
    tasks, each = 50_000, 20
    needs = np.random.default_rng(1).integers(0, tasks, tasks * each).astype("<i4")
    numbers, counts = np.arange(tasks, dtype="<i4"), np.full(tasks, each, "<i4")
    record = TasksLinked(numbers.tobytes(), counts.tobytes(), needs.tobytes())
    tracemalloc.start()
    try:
        Doomed([record])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 15 * tasks * each, "and not 30 and more for each dependency"


def test_single_dependencies_are_looked_at_only_if_they_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flow.py").write_text("")
    workspace = Workspace(str(tmp_path / "flow.py"))
    workspace.make()
    records: list[Record] = [started(3), planned(["a"] * 3), linked({1: [0], 2: [0, 1]}), ended(0, 0.0, 1.0)]
    Path(workspace.ledger).write_bytes(b"".join(map(encode, records)))
    watch = Watch(workspace)
    watch.refresh()
    monkeypatch.setattr(run_page, "MOST_DEPENDENCIES", 3)
    found = run_page.slow_parts(watch)
    assert found["critical"] is not None and found["time"]["ready"]
    monkeypatch.setattr(run_page, "MOST_DEPENDENCIES", 2)
    found = run_page.slow_parts(watch)
    assert found["critical"] is None and not found["time"]["ready"]
