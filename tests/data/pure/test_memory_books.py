"""The allocation table of one node: its limit, what is freed, and what nothing keeps any more."""

from __future__ import annotations

import pytest

from shoal.data.memory.allocation_table import SETTLING_SECONDS, AllocationTable, FreedError, UnknownError, lacking
from shoal.resources.memory_layout import AllocationExtent, AllocationRecord, FullError, with_holders


def record(identity: str, size: int = 10, *, run: str = "r", kept: str = "run", owner: int = 0) -> AllocationRecord:
    return AllocationRecord(run, identity, size, (AllocationExtent(0, size, (0, 1)),), "", 2, owner, kept)


def test_a_node_takes_no_more_than_its_limit_and_says_how_much_is_left() -> None:
    books = AllocationTable(25)
    books.reserve(record("a"), [0], 0.0)
    books.reserve(record("b"), [0], 0.0)
    with pytest.raises(
        FullError, match="10 B of shared memory are requested, but only 5 B of 25 B are free on this node"
    ):
        books.reserve(record("c"), [0], 0.0)
    assert books.used == 20 and "c" not in books.held
    books.give_up("a")
    assert books.reserve(record("c"), [0], 0.0) == [0]


def test_an_extent_that_is_copied_twice_is_counted_once() -> None:
    books = AllocationTable(100)
    assert books.reserve(record("a"), [0], 0.0) == [0]
    assert books.reserve(record("a"), [0], 0.0) == []
    assert books.used == 10


def test_a_double_free_is_distinguished_from_an_unknown_handle() -> None:
    books = AllocationTable(100)
    books.reserve(record("a"), [0], 0.0)
    books.give_up("a")
    with pytest.raises(FreedError, match="a is already freed"):
        books.expect(record("a"))
    with pytest.raises(UnknownError, match="there is no allocation b"):
        books.expect(record("b"))


def test_what_a_run_allocated_goes_when_the_run_is_over() -> None:
    books = AllocationTable(100)
    books.reserve(record("a"), [0], 0.0)
    books.reserve(record("b", run="other"), [0], 0.0)
    books.runs = ["r", "other"]
    assert books.unkept(1.0, [], {0: None}) == []
    books.runs = ["other"]
    assert books.unkept(2.0, [], {0: None}) == ["a"]


def test_a_run_that_was_not_heard_of_yet_has_time_to_be() -> None:
    books = AllocationTable(100)
    books.reserve(record("a"), [0], 0.0)
    assert books.unkept(1.0, [], {0: None}) == []
    assert books.unkept(SETTLING_SECONDS, [], {0: None}) == ["a"]


def test_a_session_may_be_away_for_a_moment() -> None:
    books = AllocationTable(100)
    books.reserve(record("a", run="s", kept="session"), [0], 0.0)
    assert books.unkept(1.0, ["s"], {0: None}) == []
    assert books.unkept(2.0, [], {0: None}) == []
    assert books.unkept(3.0, ["s"], {0: None}) == []
    assert books.unkept(4.0, [], {0: None}) == []
    assert books.unkept(4.0 + SETTLING_SECONDS, [], {0: None}) == ["a"]


def test_what_a_node_keeps_goes_with_the_node() -> None:
    books = AllocationTable(100)
    books.reserve(record("a", kept="node", owner=3), [0], 0.0)
    assert books.unkept(1.0, [], {0: None, 3: None}) == []
    assert books.unkept(2.0, [], {0: None}) == ["a"]


def test_extents_that_have_lost_a_replica_but_not_all_are_lacking() -> None:
    extents = (AllocationExtent(0, 1, (0, 1)), AllocationExtent(1, 2, (1, 2)), AllocationExtent(2, 3, (2, 3)))
    assert lacking(AllocationRecord("r", "a", 3, extents, replicas=2), [0, 1]) == [1]


def test_an_extent_that_is_being_copied_here_has_come_when_that_is_said() -> None:
    books = AllocationTable(100)
    first = record("a")
    changed = with_holders(first, 0, (0, 2))
    assert books.reserve(changed, [0], 0.0, coming=True) == [0]
    assert books.update(first) == [], "what is old says nothing"
    assert books.held["a"].coming == {0}
    assert books.update(changed) == [0]
    assert books.held["a"].coming == set()
