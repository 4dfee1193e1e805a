"""Layouts of allocations: every byte has its holders, no node gets more than fits, ranges are found."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.errors import InputError
from shoal.resources.memory_layout import (
    PAGE,
    SPREADS,
    AllocationExtent,
    AllocationRecord,
    FullError,
    bytes_held,
    check_range,
    lay_out,
    merged,
    partition_of,
    parts_of,
    preferences,
    with_holders,
)

MB = 1 << 20


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 40 * MB),
    room=st.lists(st.integers(0, 16 * MB), min_size=1, max_size=6),
    spread=st.sampled_from(SPREADS),
    block=st.sampled_from([None, PAGE * 16, MB]),
    replicas=st.integers(1, 3),
)
def test_extents_cover_all_bytes_once_within_the_room_of_distinct_nodes(
    size: int, room: list[int], spread: str, block: int | None, replicas: int
) -> None:
    there = dict(enumerate(room))
    assume(replicas <= len(room))
    try:
        extents = lay_out(size, there, spread=spread, block_bytes=block, replicas=replicas)
    except FullError:
        return
    assert [extent.begin for extent in extents] == [0, *(extent.end for extent in extents[:-1])]
    assert extents[-1].end == size
    used = dict.fromkeys(there, 0)
    for extent in extents:
        assert len(set(extent.holders)) == replicas
        assert extent.begin < extent.end
        for holder in extent.holders:
            used[holder] += extent.end - extent.begin
    assert all(used[node] <= there[node] for node in there)


def test_even_shares_are_equal_up_to_a_page() -> None:
    extents = lay_out(100 * MB, dict.fromkeys(range(4), 50 * MB))
    assert [extent.holders for extent in extents] == [(0,), (1,), (2,), (3,)]
    lengths = [extent.end - extent.begin for extent in extents]
    assert max(lengths) - min(lengths) < 4 * PAGE


def test_a_node_with_little_room_gets_little_and_the_others_the_rest() -> None:
    extents = lay_out(90 * MB, {0: 10 * MB, 1: 100 * MB, 2: 100 * MB})
    assert [extent.end - extent.begin for extent in extents] == [10 * MB, 40 * MB, 40 * MB]


def test_shares_in_proportion_follow_the_room() -> None:
    extents = lay_out(30 * MB, {0: 10 * MB, 1: 20 * MB, 2: 30 * MB}, spread="free")
    assert [extent.end - extent.begin for extent in extents] == [5 * MB, 10 * MB, 15 * MB]


def test_blocks_are_dealt_in_turns() -> None:
    extents = lay_out(5 * MB, {7: 9 * MB, 8: 9 * MB}, spread="turns", block_bytes=MB)
    assert [extent.holders for extent in extents] == [(7,), (8,), (7,), (8,), (7,)]


def test_turns_go_on_behind_the_node_that_got_the_last_block() -> None:
    room = dict.fromkeys((3, 5, 9), 100 * MB)
    first: list[int] = []
    after = None
    for _ in range(24):
        (extent,) = lay_out(MB, room, spread="turns", block_bytes=MB, after=after)
        first.append(after := extent.holders[0])
    assert first == [3, 5, 9] * 8
    assert lay_out(MB, {3: MB, 9: MB}, spread="turns", after=5)[0].holders == (9,), "that node has gone meanwhile"
    assert lay_out(MB, {3: MB, 5: 0, 9: MB}, spread="turns", after=3)[0].holders == (9,), "that node is full"


def test_all_of_it_lies_here_if_that_is_asked_for() -> None:
    assert lay_out(MB, {1: 2 * MB, 2: 9 * MB}, spread="here", here=1) == (AllocationExtent(0, MB, (1,)),)


def test_a_request_that_is_too_large_gets_an_error_with_a_remedy() -> None:
    with pytest.raises(
        FullError, match=r"10 MiB of shared memory are asked for, and 3 MiB are free on 2 nodes; .*--shared-memory"
    ):
        lay_out(10 * MB, {0: MB, 1: 2 * MB})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"size": 0}, "at least 1 byte"),
        ({"size": MB, "replicas": 3}, "3 replicas need as many nodes, and there are 2 nodes"),
        ({"size": MB, "spread": "wide"}, "spread cannot be 'wide'"),
        ({"size": MB, "block_bytes": 100}, "multiple of 4096"),
        ({"size": 1 << 40, "spread": "turns", "block_bytes": PAGE}, "more than 16384 blocks"),
    ],
)
def test_an_impossible_layout_is_one_sentence(words: dict[str, object], sentence: str) -> None:
    size = words.pop("size")
    with pytest.raises(InputError, match=sentence):
        lay_out(size, {0: 1 << 50, 1: 1 << 50}, **words)  # type: ignore[arg-type]


def test_a_range_is_cut_at_the_borders_of_extents() -> None:
    extents = (AllocationExtent(0, 10, (0,)), AllocationExtent(10, 15, (1,)), AllocationExtent(15, 40, (0,)))
    assert [(part.index, part.begin, part.end) for part in parts_of(extents, 8, 20)] == [
        (0, 8, 10),
        (1, 10, 15),
        (2, 15, 20),
    ]
    assert [(part.index, part.begin, part.end) for part in parts_of(extents, 10, 15)] == [(1, 10, 15)]
    assert parts_of(extents, 7, 7) == []


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 4), (0, 11), (11, 11)])
def test_a_range_out_of_bounds_is_one_sentence(begin: int, end: int) -> None:
    with pytest.raises(InputError, match=r"out of bounds: allocation 'a' .* has 10 bytes"):
        check_range(AllocationRecord("r", "id", 10, (AllocationExtent(0, 10, (0,)),), "a"), begin, end)


def test_a_partition_names_the_nodes_that_are_there_and_joins_what_is_adjacent() -> None:
    extents = (AllocationExtent(0, 10, (0, 1)), AllocationExtent(10, 20, (1, 2)), AllocationExtent(20, 30, (0, 9)))
    told = partition_of(extents, {0: "a", 1: "b", 2: "c"})
    assert told == {"a": [(0, 10), (20, 30)], "b": [(0, 20)], "c": [(10, 20)]}


def test_hosts_are_preferred_by_the_bytes_that_they_hold() -> None:
    partition = {"a": [(0, 10), (30, 40)], "b": [(10, 30)], "c": [(40, 50)]}
    needs = [(5, 12), (35, 40)]
    assert bytes_held(partition, needs) == {"a": 10, "b": 2, "c": 0}
    assert preferences(partition, needs) == ["a", "b"]


def test_what_two_nodes_found_out_about_different_extents_is_put_together() -> None:
    first = AllocationRecord(
        "r", "id", 20, (AllocationExtent(0, 10, (0, 1)), AllocationExtent(10, 20, (1, 2))), replicas=2
    )
    one, other = with_holders(first, 0, (1, 3)), with_holders(first, 1, (2, 4))
    both = merged(one, other)
    assert [extent.holders for extent in both.extents] == [(1, 3), (2, 4)]
    assert merged(both, first) is both
