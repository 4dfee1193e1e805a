"""Bounds by hand: small graphs whose answers can be worked out on paper, and regular graphs streamed in pieces."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from shoal.core.resources import Resources
from shoal.core.task import Profile
from shoal.core.work import Work, assemble
from shoal.errors import InputError
from shoal.sim.lower_bound import Capacity, lower_bound
from shoal.sim.matrix_bound import (
    READINGS,
    SHAPES,
    DrawnColumns,
    GivenColumns,
    Network,
    paper_bound,
    streamed_paper_bound,
    streamed_tally,
)
from shoal.sim.workloads import matrix

CONNECTED: dict[str, Callable[[int, int, int], Work]] = {
    "pipeline": matrix.pipeline,
    "fan-out": matrix.fan_out,
    "fan-in": matrix.fan_in,
}


def diamond() -> Work:
    """Task 0 makes file 0 of 1,000 bytes, which tasks 1 to 4 read; task 5 reads what they make, 500 bytes each."""
    return assemble(
        "diamond",
        [2.0, 1.0, 1.0, 1.0, 1.0, 3.0],
        [[], [0], [0], [0], [0], [1, 2, 3, 4]],
        [[0], [1], [2], [3], [4], []],
        [1000, 500, 500, 500, 500],
    )


def test_the_work_decides_on_few_cores_and_the_path_on_many() -> None:
    flat = assemble("flat", [2.0, 1.0, 1.0], [[]] * 3, [[]] * 3, [])
    on_one, on_many = lower_bound(flat, Capacity(1)), lower_bound(flat, Capacity(100))
    assert (on_one.seconds, on_one.decides) == (4.0, "work")
    assert (on_many.seconds, on_many.decides) == (2.0, "path")
    assert on_many.throughput == 1.5


def test_work_behind_a_slow_first_task_cannot_use_the_cores_before_it() -> None:
    found = lower_bound(diamond(), Capacity(1.5))
    assert found.over_cores == pytest.approx(6.0)
    assert found.path == 6.0
    assert found.below == pytest.approx(2.0 + 7.0 / 1.5)
    assert (found.depth, found.decides) == (1, "depth")


def test_tasks_count_with_the_cores_they_hold() -> None:
    work = msgspec.structs.replace(
        assemble("wide", [2.0, 4.0], [[]] * 2, [[]] * 2, []),
        category=array("i", [0, 1]),
        profiles=[Profile("a", Resources.parse({"cores": 4})), Profile("b", Resources.parse({"cores": 0.5}))],
    )
    assert lower_bound(work, Capacity(2)).over_cores == pytest.approx((2 * 4 + 4 * 0.5) / 2)


def test_nodes_of_several_speeds_are_summed_for_the_work_and_the_fastest_counts_for_the_path() -> None:
    capacity = Capacity.of([(2, 1.0), (1, 4.0)])
    assert capacity == Capacity(6.0, 4.0)
    found = lower_bound(diamond(), capacity)
    assert found.over_cores == pytest.approx(9.0 / 6.0)
    assert found.path == pytest.approx(6.0 / 4.0)


def test_what_runs_nothing_is_no_task_and_holds_nothing_up() -> None:
    work = msgspec.structs.replace(
        assemble("group", [2.0, 0.0, 3.0], [[], [0], [1]], [[0], [1], []], [0, 0]),
        category=array("i", [0, 1, 0]),
        profiles=[Profile("a"), Profile("", Resources())],
    )
    found = lower_bound(work, Capacity(1))
    assert (found.tasks, found.seconds) == (2, 5.0)
    assert paper_bound(work, 1, "literal").tasks == 2


def test_no_tasks_take_no_time() -> None:
    empty = assemble("empty", [], [], [], [])
    assert lower_bound(empty, Capacity(2)).seconds == 0.0
    assert paper_bound(empty, 2).seconds == 0.0


def test_the_papers_programme_moves_the_task_to_its_last_parent_or_all_outputs_to_a_fresh_node() -> None:
    work = diamond()
    near = paper_bound(work, 4, "no-wait", Network(bandwidth=1000.0, task_bytes=100.0))
    # Tasks 1 to 4 join task 0: 0.1 s for the task, not 1 s for the file. Task 5 takes a fresh node: the four files come
    # at the same time, and three of them would have to move anyway.
    assert near.seconds == pytest.approx((2.0 + 0.1 + 1.0) + 0.5 + 3.0)
    heavy = paper_bound(work, 4, "no-wait", Network(bandwidth=1000.0, task_bytes=5000.0))
    assert heavy.seconds == pytest.approx((2.0 + 1.0 + 1.0) + 0.5 + 3.0)


def test_two_files_from_one_parent_are_one_parent() -> None:
    work = assemble("pair", [1.0, 1.0], [[], [0, 1]], [[0, 1], []], [500, 500])
    assert paper_bound(work, 1, "no-wait", Network(1000.0, 100.0)).seconds == pytest.approx(1.0 + 0.1 + 1.0)


def test_readings_of_the_wait_differ_as_they_say() -> None:
    flat = assemble("flat", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 7.0, 3.0], [[]] * 8, [[]] * 8, [])
    found = {reading: paper_bound(flat, 2, reading).seconds for reading in READINGS}
    assert found == {"position": 6.0 + 7.0, "per-level": 3.0 + 7.0, "literal": 3.0 + 7.0, "no-wait": 7.0}
    split = diamond()
    fast = Network(bandwidth=1e12)
    assert paper_bound(split, 2, "literal", fast).seconds == pytest.approx(6.0 + 3 * 1.5)
    assert paper_bound(split, 2, "per-level", fast).seconds == pytest.approx(6.0 + 0.5)


def test_an_unknown_reading_is_one_sentence() -> None:
    with pytest.raises(InputError, match="unknown reading 'exact'; use one of position, per-level"):
        paper_bound(diamond(), 2, "exact")


@pytest.mark.parametrize("tasks", [1, 2, 3, 9, 10, 11, 12, 111, 112, 345, 1000, 1111, 1112, 2037])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_streamed_bounds_are_those_of_the_same_tasks_held_in_memory(shape: str, tasks: int) -> None:
    work = matrix.bag(3, tasks) if shape == "bag" else CONNECTED[shape](3, tasks, 10)
    sizes = np.asarray(work.file_bytes if shape != "bag" else [0] * tasks, np.float64)
    for source in (DrawnColumns(3), GivenColumns(np.asarray(work.seconds), sizes)):
        for cores, chunk in ((1, 10**6), (3, 30), (16, 100), (4, 1)):
            known = streamed_tally(shape, tasks, 10, source, chunk)
            expected, found = lower_bound(work, Capacity(cores)), known.bound(Capacity(cores))
            assert (found.tasks, found.depth, found.decides) == (tasks, expected.depth, expected.decides)
            assert msgspec.structs.astuple(found)[1:5] == pytest.approx(msgspec.structs.astuple(expected)[1:5])
            for reading in READINGS:
                paper = streamed_paper_bound(shape, 10, source, known, cores, reading, Network(1e8), chunk)
                assert paper.seconds == pytest.approx(paper_bound(work, cores, reading, Network(1e8)).seconds)


@pytest.mark.parametrize("degree", [2, 3, 7])
@pytest.mark.parametrize("shape", list(CONNECTED))
def test_streamed_bounds_know_other_degrees(shape: str, degree: int) -> None:
    for tasks in (*range(1, 30), 200):
        work = CONNECTED[shape](5, tasks, degree)
        known = streamed_tally(shape, tasks, degree, DrawnColumns(5), 14)
        assert known.bound(Capacity(2)).seconds == pytest.approx(lower_bound(work, Capacity(2)).seconds)
        paper = streamed_paper_bound(shape, degree, DrawnColumns(5), known, 2, chunk=14)
        assert paper.seconds == pytest.approx(paper_bound(work, 2).seconds)
