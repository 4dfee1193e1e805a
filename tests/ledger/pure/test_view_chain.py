"""How much of the longest chain of tasks is done, while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import process_time

import pytest

from shoal.ledger.records import Record, TasksPlanned
from shoal.ledger.views.run import RunView
from shoal.ledger.views.waits import TaskWaits, critical_path
from support.views import ended, linked, planned, started, view_of


def share(view: RunView) -> float:
    path = critical_path(view, TaskWaits(view))
    assert path is not None
    return path.done


def done_of(tasks: int, needs: Mapping[int, Sequence[int]], done: Sequence[int]) -> float:
    """Of tasks that need each other so, if these are done; numbers beyond the tasks are groups."""
    records: list[Record] = [started(tasks), planned(["a"] * tasks), linked(needs)]
    return share(view_of(*records, *(ended(task, 0.0, 1.0) for task in done)))


def test_the_share_that_is_done_grows_with_the_chain_and_shrinks_with_the_plan() -> None:
    view = view_of(started(3), planned(["a"] * 3), linked({1: [0], 2: [1]}))
    shares = []
    steps: list[list[Record]] = [
        [ended(0, 0.0, 1.0)],
        [ended(1, 1.0, 2.0)],
        [TasksPlanned([3, 4], ["t3", "t4"], ["a", "a"]), linked({3: [2], 4: [3]})],
    ]
    for more in steps:
        view.take_all(more)
        shares.append(share(view))
    assert shares == pytest.approx([1 / 3, 2 / 3, 2 / 5])


def test_tasks_beside_the_longest_chain_do_not_count() -> None:
    """The first three are the chain; the others are needed by its last task only."""
    needs = {1: [0], 2: [1, *range(3, 43)], **{task: [-1] for task in range(3, 43)}}
    assert done_of(43, needs, range(3, 23)) == 0.0
    assert done_of(43, needs, [0, *range(3, 23)]) == pytest.approx(1 / 3)


def test_groups_are_no_steps_of_a_chain() -> None:
    assert done_of(2, {0: [-1], 1: [9], 9: [8], 8: [0], 10: [1]}, [0]) == pytest.approx(1 / 2)
    assert done_of(1, {0: [-1], 9: [0]}, [0]) == pytest.approx(1.0)


def test_what_was_up_to_date_is_no_step_of_a_chain() -> None:
    assert done_of(2, {0: [7], 1: [0]}, [0]) == pytest.approx(1 / 2)


@pytest.mark.parametrize(("done", "expected"), [(1, 1 / 15), (7, 7 / 15), (15, 1.0)])
def test_of_tasks_that_need_nothing_the_share_is_that_of_all_of_them(done: int, expected: float) -> None:
    needs = {**{task: [-1] for task in range(15)}, 20: list(range(15))}
    assert done_of(15, needs, range(done)) == pytest.approx(expected)


def test_of_chains_that_are_equally_long_the_mean_counts() -> None:
    """Two chains of three: one is done but for its last task, the other has not begun."""
    needs = {1: [0], 2: [1], 4: [3], 5: [4]}
    assert done_of(6, needs, [0, 1]) == pytest.approx(2 / 6)


def test_the_longest_chain_of_a_large_plan_is_found_quickly() -> None:
    tasks = 100_000
    needs = {task: [task - 1000, (task * 7) % 1000] for task in range(1000, tasks)}
    view = view_of(started(tasks), planned(["a"] * tasks), linked(needs), ended(0, 0.0, 1.0))
    path_of = TaskWaits(view)
    began = process_time()
    critical_path(view, path_of)
    first = process_time() - began
    critical_path(view, path_of)
    assert first < 3.0
    assert process_time() - began - first < 0.5, "the graph is looked at once"
