"""The store in memory: readiness, fences, owners, and files that are lost and made again."""

from __future__ import annotations

import pytest

from shoal.core.peer_messages import ReadyTask
from shoal.core.store.memory import GONE, STRIDE, MemoryStore, ReadyBatch, TaskStanding
from shoal.core.work import EVERYWHERE, Work, assemble
from shoal.sim.cluster.files import Activity, ModelledFiles
from shoal.sim.cluster.specification import ClusterSpec, NodeSpec

NOTHING = ReadyBatch([], [])


def work_of(*reads: list[int], homes: dict[int, int] | None = None) -> Work:
    """Task *t* makes file *t* and reads the files named; `homes` are source files, numbered behind the others."""
    tasks, homes = len(reads), homes or {}
    file_home = [EVERYWHERE] * tasks + list(homes.values())
    return assemble(
        "test", [1.0] * tasks, reads, [[task] for task in range(tasks)], [100] * len(file_home), file_home=file_home
    )


def begun(work: Work, nodes: int = 3) -> MemoryStore:
    store = MemoryStore(work, nodes)
    store.begin()
    return store


def ready(placeable: ReadyBatch) -> list[int]:
    return [ticket.task for ticket in placeable.tickets]


def finish(store: MemoryStore, node: int, *tasks: int) -> list[int]:
    """Completes the current generation of tasks; what became ready."""
    return ready(store.complete(node, [(task, store.generation[task] * STRIDE + 1) for task in tasks])[1])


def test_who_completes_the_last_parent_gets_the_child() -> None:
    store = begun(work_of([], [], [0, 1]))
    assert finish(store, 0, 0) == []
    assert finish(store, 1, 1) == [2]
    assert store.owner[2] == 1


def test_a_result_that_is_reported_twice_counts_once() -> None:
    store = begun(work_of([], [], [0, 1]))
    finish(store, 0, 0)
    assert store.complete(0, [(0, 1)]) == ([], NOTHING)
    assert store.complete(0, [(0, 1), (0, 1)]) == ([], NOTHING)
    assert store.left == 2
    assert store.standing[2] == TaskStanding.WAITING


def test_a_child_comes_with_where_its_inputs_are() -> None:
    store = begun(work_of([], [], [0, 1]))
    finish(store, 0, 0)
    _, placeable = store.complete(2, [(1, 1)])
    assert sorted(placeable.holdings[0]) == [(0, 100), (2, 100)]


def test_what_is_left_reaches_zero_whatever_is_lost_and_doubled() -> None:
    store = begun(work_of([], [0], [1]))
    finish(store, 0, 0)
    store.owned([1], 1)
    store.lose(0)
    store.lose(1)
    for _ in range(3):
        finish(store, 2, 0)
        finish(store, 2, 1)
        finish(store, 2, 2)
    assert (store.left, store.ready_count) == (0, 0)


def test_tasks_of_a_lost_node_are_a_later_generation_and_its_word_changes_nothing() -> None:
    store = begun(work_of([]))
    store.owned([0], 1)
    again, _ = store.lose(1)
    assert again.tickets == [ReadyTask(0, STRIDE)]
    assert store.complete(1, [(0, 1)]) == ([], NOTHING)
    assert store.give_up(0, 1) == []
    assert store.hand_back(ReadyTask(0, 1)) is None
    assert store.missing(ReadyTask(0, 1)) == NOTHING
    assert store.standing[0] == TaskStanding.READY
    assert store.complete(2, [(0, STRIDE + 1)])[0] == [0]


def test_a_move_to_a_node_that_is_gone_is_refused_and_the_tasks_are_placed_anew() -> None:
    store = begun(work_of([], []))
    store.owned([0, 1], 0)
    store.lose(1)
    assert store.moved([ReadyTask(0)], 0, 1, 1).tickets == [ReadyTask(0, STRIDE)]
    assert list(store.owner) == [0, 0]  # the giver places it anew


def test_a_parcel_that_is_sent_again_does_not_move_what_has_come_back() -> None:
    store = begun(work_of([]))
    store.owned([0], 0)
    store.moved([ReadyTask(0)], 0, 1, 1)
    store.moved([ReadyTask(0)], 1, 0, 1)
    store.moved([ReadyTask(0)], 0, 1, 1)
    assert store.owner[0] == 0


def test_what_was_promised_by_a_lost_node_is_claimed_by_who_has_not_got_it() -> None:
    store = begun(work_of([], []))
    store.owned([0, 1], 0)
    store.moved([ReadyTask(0), ReadyTask(1)], 0, 1, 1)
    again, promised = store.lose(0)
    assert again == NOTHING
    assert promised == {1: [ReadyTask(0), ReadyTask(1)]}
    assert store.claim(1, [ReadyTask(0)]).tickets == [ReadyTask(0, STRIDE)]


@pytest.mark.parametrize("what", ["done", "moved on", "moved there and back", "handed back"])
def test_what_somebody_has_dealt_with_since_cannot_be_claimed(what: str) -> None:
    store = begun(work_of([]))
    store.owned([0], 0)
    store.moved([ReadyTask(0)], 0, 1, 1)
    store.lose(0)
    match what:
        case "done":
            finish(store, 1, 0)
        case "moved on":
            store.moved([ReadyTask(0)], 1, 2, 1)
        case "moved there and back":
            store.moved([ReadyTask(0)], 1, 2, 1)
            store.moved([ReadyTask(0)], 2, 1, 1)
        case "handed back":
            assert store.hand_back(ReadyTask(0)) == ReadyTask(0, STRIDE)
            store.owned([0], 1)
    assert store.claim(1, [ReadyTask(0)]) == NOTHING


def test_a_task_that_is_handed_back_keeps_what_it_was_charged() -> None:
    store = begun(work_of([]))
    assert store.hand_back(ReadyTask(0, 3, 2, 1)) == ReadyTask(0, STRIDE, 2, 1)


def test_what_is_still_needed_of_a_lost_node_is_made_again_by_lineage() -> None:
    store = begun(work_of([], [0], [1]))
    finish(store, 1, 0)
    finish(store, 1, 1)
    store.owned([2], 0)
    again, _ = store.lose(1)
    assert ready(again) == [0]
    assert store.missing(ReadyTask(2, 1)) == NOTHING
    assert finish(store, 0, 0) == [1]
    assert finish(store, 0, 1) == [2]


def test_what_nobody_needs_any_more_is_not_made_again() -> None:
    store = begun(work_of([], [0]))
    finish(store, 1, 0)
    finish(store, 0, 1)
    assert store.lose(1)[0] == NOTHING
    assert store.left == 0


def test_a_file_with_another_copy_is_not_lost() -> None:
    store = begun(work_of([], [0]))
    finish(store, 1, 0)
    store.owned([1], 0)
    store.copied(0, 2)
    assert store.lose(1)[0] == NOTHING
    assert store.copies(0) == [2]


def test_a_source_file_is_where_it_came_from_when_the_node_that_had_it_is_lost() -> None:
    store = begun(work_of([1], homes={1: 1}))
    assert store.copies(1) == [1]
    store.lose(1)
    assert store.location[1] == EVERYWHERE


def test_what_was_made_by_a_task_that_fails_when_made_again_dooms_its_readers() -> None:
    store = begun(work_of([], [0], [1]))
    finish(store, 1, 0)
    store.owned([1], 0)
    store.lose(1)
    store.give_up(0, STRIDE + 1)
    assert store.missing(ReadyTask(1, 1)) == NOTHING
    assert [TaskStanding(standing).name for standing in store.standing] == ["FAILED", "DOOMED", "DOOMED"]
    assert (store.left, store.ready_count) == (0, 0)


def test_a_lost_node_publishes_no_copies() -> None:
    store = begun(work_of([], [0]))
    finish(store, 0, 0)
    store.lose(2)
    store.copied(0, 2)
    assert store.copies(0) == [0]


def test_cancelling_lists_tasks_of_schedulers_and_ends_their_descendants() -> None:
    store = begun(work_of([], [0], []))
    assert store.cancel([0]) == [0]
    assert [TaskStanding(standing).name for standing in store.standing] == ["FAILED", "DOOMED", "READY"]
    assert store.complete(0, [(0, 1)]) == ([], NOTHING)


def test_a_bounded_cache_lets_go_of_what_was_used_longest_ago_but_never_of_the_last_copy() -> None:
    work = work_of([], [], [0], [1], [0])
    spec = ClusterSpec(nodes=2, node=NodeSpec(cache=150))
    store = begun(work, 2)
    files = ModelledFiles(work, spec, store)
    for node in range(2):
        files.join(node, spec.kind(node))
    finish(store, 0, 0, 1)
    for task in (2, 3):
        reading = Activity(1, task, 1, 0.0, [])
        assert files.fetch(reading)
        files.arrived(reading)
    assert [store.copies(file) for file in (0, 1)] == [[0], [0, 1]]
    store.lose(0)
    again = Activity(1, 4, 1, 0.0, [])
    assert store.location[0] == GONE
    assert not files.fetch(again)
    assert store.copies(1) == [1]


def test_with_shared_files_nothing_is_anywhere_and_a_task_that_misses_an_input_is_placed_anew() -> None:
    store = MemoryStore(work_of([], [0]), 0, shared_files=True)
    store.begin()
    finish(store, 0, 0)
    store.copied(0, 1)
    store.dropped(0, 1)
    assert (store.copies(0), store.holdings(1)) == ([], ())
    assert store.missing(ReadyTask(1, 1), 2).tickets == [ReadyTask(1, STRIDE)]


def test_a_stale_result_leaves_no_entry_even_beside_one_that_counts() -> None:
    store = begun(work_of([], []))
    store.owned([0], 1)
    store.lose(1)
    ended = [(0, 1), (0, STRIDE + 1), (1, 1), (1, 1)]
    assert store.complete(2, ended, [b"stale", b"new", b"one", b"again"])[0] == [0, 1]
    assert store.log(0) == [b"new", b"one"]
