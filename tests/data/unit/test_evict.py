"""What a full cache gives up, and what the checksums of chunks say about the whole."""

from __future__ import annotations

import zlib
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.data.cache import Candidate, choose, value_per_byte
from shoal.data.transfer_messages import CHUNK_BYTES, chunk_count, chunk_length, combine, whole

NOW = 1000.0


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 1000), st.floats(0, 100, allow_nan=False), st.floats(0, NOW + 10, allow_nan=False)
            ),
            max_size=30,
        )
    )
    return [Candidate(f"object {number}", *row) for number, row in enumerate(rows)]


@given(candidates(), st.integers(-10, 20_000))
def test_enough_is_freed_or_nothing_is_given_up(offered: list[Candidate], need: int) -> None:
    chosen = choose(offered, need, NOW)
    sizes = {one.name: one.size_bytes for one in offered}
    if chosen is None:
        assert sum(sizes.values()) < need
    else:
        assert len(set(chosen)) == len(chosen)
        assert sum(sizes[name] for name in chosen) >= need


@given(candidates(), st.integers(1, 20_000))
def test_none_of_those_given_up_could_stay(offered: list[Candidate], need: int) -> None:
    chosen = choose(offered, need, NOW)
    sizes = {one.name: one.size_bytes for one in offered}
    if chosen is not None:
        freed = sum(sizes[name] for name in chosen)
        assert all(freed - sizes[name] < need for name in chosen)


@given(candidates(), st.integers(1, 20_000))
def test_what_is_spared_is_worth_more_per_byte_or_was_not_needed(offered: list[Candidate], need: int) -> None:
    chosen = choose(offered, need, NOW)
    if chosen is None:
        return
    worth = {one.name: value_per_byte(one, NOW) for one in offered}
    sizes = {one.name: one.size_bytes for one in offered}
    dearest = max((worth[name] for name in chosen), default=0.0)
    cheaper = [one for one in offered if one.name not in chosen and sizes[one.name] and worth[one.name] < dearest]
    # Whatever cheaper object stayed: taken together with the cheap ones it would not have saved the dearest.
    rest = sum(sizes[name] for name in chosen if worth[name] < dearest) + sum(sizes[one.name] for one in cheaper)
    assert not cheaper or rest < need


@given(candidates(), st.integers(1, 20_000), st.randoms(use_true_random=False))
def test_the_decision_does_not_depend_on_the_order_of_the_question(
    offered: list[Candidate], need: int, random: Random
) -> None:
    shuffled = list(offered)
    random.shuffle(shuffled)
    assert choose(offered, need, NOW) == choose(shuffled, need, NOW)


def test_the_old_the_cheap_and_the_large_go_first() -> None:
    old = Candidate("old", 100, 1.0, NOW - 500)
    new = Candidate("new", 100, 1.0, NOW - 5)
    dear = Candidate("dear", 100, 50.0, NOW - 500)
    large = Candidate("large", 1000, 1.0, NOW - 500)
    assert choose([new, old], 100, NOW) == ["old"]
    assert choose([dear, old], 100, NOW) == ["old"]
    assert choose([old, large], 100, NOW) == ["large"]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksums_of_two_texts_give_that_of_both(first: bytes, second: bytes) -> None:
    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_checksums_of_chunks_give_that_of_the_whole() -> None:
    for size in (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17):
        data = bytes(range(251)) * (size // 251 + 1)
        data = data[:size]
        parts = [data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES] for index in range(chunk_count(size))]
        assert [len(part) for part in parts] == [chunk_length(size, index) for index in range(len(parts))]
        assert whole([zlib.crc32(part) for part in parts], size) == zlib.crc32(data)
