"""Dividing many tasks among nodes by what they read, and gathering tasks that read the same."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.policies.placement import (
    LEAST_PER_NODE,
    MOST_ADVERTISED,
    MOST_REMEMBERED,
    Gathering,
    divide,
    is_worth_dividing,
)
from shoal.core.work import Work, assemble
from shoal.sim.workloads.published import all_pairs

FILES = 12


def work_of(reads: Sequence[Sequence[int]], sizes: Sequence[int] | None = None) -> Work:
    return assemble("w", [1.0] * len(reads), reads, [()] * len(reads), sizes or [100] * FILES)


def held_by(work: Work, home: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Holdings of every task, when each file is on one node."""
    found = []
    for task in range(len(work)):
        amounts: dict[int, int] = {}
        for file in work.inputs_of(task):
            amounts[home[file]] = amounts.get(home[file], 0) + work.file_bytes[file]
        found.append(tuple(amounts.items()))
    return found


def fetched(work: Work, shares: dict[int, list[int]], home: Sequence[int]) -> int:
    """Files that come to a node that did not have them."""
    return sum(
        len({file for task in tasks for file in work.inputs_of(task) if home[file] != node})
        for node, tasks in shares.items()
    )


reads = st.lists(st.lists(st.integers(0, FILES - 1), min_size=1, max_size=3, unique=True), min_size=1, max_size=40)


@given(reads, st.integers(1, 7), st.lists(st.integers(0, 6), min_size=FILES, max_size=FILES))
def test_every_task_goes_to_exactly_one_node_in_fair_shares(
    reads: list[list[int]], nodes: int, home: list[int]
) -> None:
    work = work_of(reads)
    shares = divide(work, range(len(reads)), held_by(work, home), range(nodes), work.file_bytes.__getitem__)
    assert sorted(task for tasks in shares.values() for task in tasks) == list(range(len(reads)))
    assert all(len(tasks) <= len(reads) / nodes + 3 for tasks in shares.values())  # rounding, once per halving


def test_all_pairs_are_divided_as_a_grid() -> None:
    side, nodes = 24, 8
    work = all_pairs(side, nodes=nodes)
    home = [file % nodes for file in range(2 * side)]
    shares = divide(work, range(side * side), held_by(work, home), range(nodes), work.file_bytes.__getitem__)
    grid = nodes * (side // 2 + side // 4 - 2 * side // nodes)
    assert fetched(work, shares, home) <= 1.05 * grid
    assert [len(tasks) for tasks in shares.values()] == [side * side // nodes] * nodes


def test_only_enough_tasks_with_scattered_data_are_divided() -> None:
    nodes = 4
    scattered = [((0, 100), (1, 100))] * (LEAST_PER_NODE * nodes)
    assert is_worth_dividing(scattered, nodes)
    assert not is_worth_dividing(scattered[1:], nodes)
    assert not is_worth_dividing([((2, 200),)] * len(scattered), nodes)
    assert not is_worth_dividing([((2, 200), (1, 20))] * len(scattered), nodes)
    assert not is_worth_dividing([()] * len(scattered), nodes)
    assert not is_worth_dividing(scattered, 1)


def test_unknown_sizes_are_taken_to_be_like_those_made_here() -> None:
    gathering = Gathering(work_of([[0, 1, 2]], [0, 700, *[0] * (FILES - 2)]))
    assert gathering.weight(0) == 702
    gathering.made(5, 100)
    gathering.made(6, 300)
    gathering.made(2, 50)
    assert [gathering.size(file) for file in (0, 1, 2)] == [150, 700, 50]


@given(reads, st.sets(st.integers(0, FILES - 1)), st.integers(0, 50))
def test_gathering_takes_as_many_as_asked_for_and_first_what_misses_nothing(
    reads: list[list[int]], near: set[int], count: int
) -> None:
    work = work_of(reads)
    found = Gathering(work).choose(range(len(reads)), near, count) if count else []
    assert len(found) == min(count, len(reads)) == len(set(found))
    complete = [set(reads[task]) <= near for task in found]
    assert complete == sorted(complete, reverse=True)


def test_gathering_grows_a_block_around_what_is_near() -> None:
    side = 9
    work = all_pairs(side)
    near = {0, 1, 2, side, side + 1, side + 2}
    found = Gathering(work).choose(range(side * side), near, 16)
    assert len({task // side for task in found}) == 4
    assert len({task % side for task in found}) == 4


def test_a_small_file_is_fetched_before_a_large_one() -> None:
    work = work_of([[0, 1], [0, 2]], [100, 1000, 10, *[0] * (FILES - 3)])
    assert Gathering(work).choose([0, 1], {0}, 1) == [1]


def test_what_starts_here_is_near_and_the_oldest_is_forgotten_first() -> None:
    tasks = MOST_REMEMBERED + 5
    work = assemble("w", [1.0] * tasks, [[task] for task in range(tasks)], [()] * tasks, [1] * tasks)
    gathering = Gathering(work, [0])
    for task in range(1, tasks):
        gathering.started(task)
    assert len(gathering.near) == MOST_REMEMBERED
    assert 0 not in gathering.near
    assert gathering.advertised() == tuple(range(tasks - MOST_ADVERTISED, tasks))
