"""The orders, rule by rule: which task comes out next, and what a removal or another lane changes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from shoal.core.policies.order import ORDERS, OrderQueue, RankOverlap, TaskColumns


def queue_of(
    order: str,
    tasks: int = 0,
    *,
    rank: Sequence[int] = (),
    input_bytes: Sequence[int] = (),
    upward_length: Sequence[float] = (),
    lane: Sequence[int] = (),
    cores: int = 2,
    seed: int = 0,
) -> OrderQueue:
    """A queue into which tasks 0, 1, 2, ... were pushed in this order."""
    columns = TaskColumns(list(lane) or [0] * 100, rank, input_bytes, upward_length)
    queue = ORDERS[order](columns, cores, Random(seed))
    for task in range(tasks):
        queue.push(task)
    return queue


def drain(queue: OrderQueue, lanes: Sequence[int] = (0,)) -> list[int]:
    """Everything in these lanes, in the order it comes out."""
    out = []
    while present := [lane for lane in lanes if queue.queued_in(lane)]:
        out.append(queue.pop(present))
    return out


def test_fifo_is_oldest_first() -> None:
    assert drain(queue_of("fifo", 4)) == [0, 1, 2, 3]


def test_lifo_is_newest_first() -> None:
    assert drain(queue_of("lifo", 4)) == [3, 2, 1, 0]


def test_the_oldest_and_the_newest_are_found_over_all_lanes_that_fit() -> None:
    assert drain(queue_of("fifo", 6, lane=[0, 1, 0, 2, 1, 0]), [0, 1]) == [0, 1, 2, 4, 5]
    assert drain(queue_of("lifo", 6, lane=[0, 1, 0, 2, 1, 0]), [0, 1]) == [5, 4, 2, 1, 0]


def test_hrf_is_highest_rank_first_and_oldest_first_among_equals() -> None:
    assert drain(queue_of("hrf", 5, rank=[1, 3, 2, 3, 1])) == [1, 3, 2, 0, 4]


def test_data_is_largest_input_first() -> None:
    assert drain(queue_of("data", 4, input_bytes=[5, 70, 0, 70])) == [1, 3, 0, 2]


def test_critical_is_longest_path_first() -> None:
    assert drain(queue_of("critical", 3, upward_length=[0.5, 9.0, 2.0])) == [1, 2, 0]


def test_lifo_hrf_is_lifo_while_the_highest_rank_can_fill_the_cores() -> None:
    queue = queue_of("lifo+hrf", 6, rank=[2, 2, 2, 1, 1, 1], cores=2)
    assert drain(queue)[:3] == [5, 4, 3]


def test_lifo_hrf_takes_the_newest_of_the_highest_rank_when_it_cannot_fill_the_cores() -> None:
    queue = queue_of("lifo+hrf", 5, rank=[2, 2, 1, 1, 1], cores=2)
    assert drain(queue) == [1, 0, 4, 3, 2]


def test_lifo_hrf_turns_when_the_number_of_cores_changes() -> None:
    queue = queue_of("lifo+hrf", 5, rank=[2, 2, 1, 1, 0], cores=1)
    assert queue.pop([0]) == 4
    queue.serve(2)
    assert queue.pop([0]) == 1


def test_a_removed_task_no_longer_counts_for_its_rank() -> None:
    queue = queue_of("lifo+hrf", 4, rank=[2, 2, 2, 1], cores=2)
    queue.remove(2)
    assert drain(queue) == [1, 0, 3]


def test_lifo_hrf_counts_the_highest_rank_over_all_lanes_but_takes_only_from_those_that_fit() -> None:
    queue = queue_of("lifo+hrf", 4, rank=[3, 1, 2, 0], lane=[1, 0, 0, 0], cores=2)
    assert drain(queue) == [2, 1, 3]
    assert drain(queue, [1]) == [0]


def test_rank_overlap_ends_with_the_highest_rank_largest_input_first() -> None:
    queue = queue_of("rank-overlap", 4, rank=[1, 2, 2, 0], input_bytes=[9, 1, 5, 7], cores=2)
    assert drain(queue) == [2, 1, 0, 3]


def test_rank_overlap_gives_ranks_turns_by_how_short_their_tasks_are() -> None:
    rank = [1] * 400 + [0] * 400
    queue = queue_of("rank-overlap", 800, rank=rank, lane=[0] * 800, input_bytes=[0] * 800, cores=2)
    queue.learn(0, 4.0)
    queue.learn(400, 1.0)
    taken = [rank[queue.pop([0])] for _ in range(300)]
    # Weights 1/4 and 1/1: four in five turns are of rank 0, in any stretch of them.
    assert all(abs(taken[at : at + 20].count(0) - 16) <= 1 for at in range(280))


def test_rank_overlap_gives_unknown_ranks_the_mean_of_the_known_weights() -> None:
    rank = [2] * 300 + [1] * 300 + [0] * 300
    queue = queue_of("rank-overlap", 900, rank=rank, lane=[0] * 900, input_bytes=[0] * 900, cores=2)
    queue.learn(0, 1.0)
    queue.learn(300, 1.0 / 3.0)
    taken = [rank[queue.pop([0])] for _ in range(300)]
    # Weights 1, 3 and their mean 2: a third of the turns are of the rank nothing is known of.
    assert taken.count(0) == pytest.approx(100, abs=2)


def test_rank_overlap_takes_the_newest_inside_the_rank_whose_turn_it_is() -> None:
    queue = queue_of("rank-overlap", 6, rank=[1, 0, 1, 0, 1, 0], input_bytes=[0] * 6, cores=2)
    assert queue.pop([0]) in (4, 5)


def test_rank_overlap_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    rank = [task % 4 for task in range(60)]
    runs = [drain(queue_of("rank-overlap", 60, rank=rank, input_bytes=[0] * 60, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_column_that_is_not_known_makes_all_tasks_equal(order: str) -> None:
    queue = queue_of(order, 5)
    queue.learn(0, 1.0)
    assert sorted(drain(queue)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_only_lanes_that_are_named_are_served(order: str) -> None:
    queue = queue_of(order, 6, rank=[5, 0, 4, 1, 3, 2], input_bytes=[1] * 6, upward_length=[1.0] * 6, lane=[0, 1] * 3)
    assert sorted(drain(queue, [1])) == [1, 3, 5]
    assert sorted(queue.lanes()) == [0]
    assert queue.waiting() == [0, 2, 4]


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_removed_task_never_comes_out_and_may_come_back(order: str) -> None:
    queue = queue_of(order, 5, rank=[1, 1, 2, 0, 0], input_bytes=[0] * 5, upward_length=[0.0] * 5)
    queue.remove(2)
    queue.remove(0)
    assert len(queue) == 3
    queue.push(2)
    assert queue.waiting() == [1, 3, 4, 2]
    assert sorted(drain(queue)) == [1, 2, 3, 4]


def test_ranks_that_are_over_leave_nothing_behind() -> None:
    queue = queue_of("rank-overlap", 60, rank=[task // 6 for task in range(60)], lane=[0, 1] * 30, cores=4)
    assert isinstance(queue, RankOverlap)
    drain(queue, [0, 1])
    assert not queue.rank_stacks
    assert not queue.largest
