"""The outbox: order kept, bounded, oldest dropped first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.messaging.envelope import Outbox

puts = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=30)), max_size=60)


@given(puts, st.integers(1, 200), st.integers(1, 100))
def test_what_comes_out_is_the_newest_that_fits_in_order(
    found: list[tuple[int, bytes]], limit: int, envelope: int
) -> None:
    outbox = Outbox(limit)
    dropped = sum(outbox.put(packed, serial) for serial, packed in found)
    assert outbox.bytes <= limit or len(outbox) == 1
    taken: list[tuple[int, bytes]] = []
    while outbox:
        serial, messages = outbox.first(envelope)
        assert messages and (len(messages) == 1 or sum(map(len, messages)) <= envelope)
        outbox.sent(len(messages))
        taken += [(serial, message) for message in messages]
    assert taken == found[dropped:]
    assert outbox.bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1), st.integers(1, 200))
def test_nothing_is_dropped_while_there_is_room(found: list[bytes], limit: int) -> None:
    outbox = Outbox(limit)
    size = 0
    for packed in found:
        size += len(packed)
        if size > limit:
            break
        assert outbox.put(packed) == 0


def test_a_message_larger_than_the_outbox_takes_the_place_of_all_others() -> None:
    outbox = Outbox(10)
    outbox.put(b"1")
    outbox.put(b"2")
    assert outbox.put(bytes(50)) == 2
    assert outbox.first(5) == (0, [bytes(50)])


def test_an_envelope_holds_answers_to_one_question_only() -> None:
    outbox = Outbox(100)
    for serial, packed in [(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")]:
        outbox.put(packed, serial)
    assert outbox.first(100) == (1, [b"a", b"b"])
