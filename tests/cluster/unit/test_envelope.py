"""Envelopes: what goes in comes out, and whatever else comes in is a bad frame."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.messaging.envelope import HEADER_BYTES, NAME_LENGTH, BadFrame, Envelope, OtherVersion
from support.wire import Message, Note, Tally, codec

texts = st.text(max_size=30)
notes = st.builds(Note, texts, st.binary(max_size=200), st.integers(-(2**63), 2**64 - 1))
tallies = st.builds(Tally, st.lists(st.integers(-(2**63), 2**64 - 1)), st.dictionaries(texts, st.floats(width=64)))
messages = st.lists(notes | tallies, max_size=5)
headers = st.tuples(texts, texts, st.integers(0, 2**63))
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=4),
)
CODEC = codec()


def frame(found: list[Message], version: int = 1) -> bytes:
    return CODEC.encode(Envelope(version, "c", "s", 7, found))


def check_only_bad_frame(data: bytes) -> None:
    try:
        envelope = CODEC.decode(data)
    except BadFrame:
        return
    assert all(isinstance(message, (Note, Tally)) for message in envelope.messages)


@given(headers, messages)
def test_what_goes_in_comes_out(header: tuple[str, str, int], found: list[Message]) -> None:
    cluster, sender, serial = header
    packed = [CODEC.packed(message) for message in found]
    envelope = CODEC.decode(CODEC.frame(cluster, sender, serial, packed))
    # Floats that are not numbers equal nothing, so the bytes are compared.
    assert CODEC.encode(envelope) == CODEC.encode(Envelope(1, cluster, sender, serial, found))


@given(st.binary(max_size=400))
def test_random_bytes_are_a_bad_frame(data: bytes) -> None:
    check_only_bad_frame(data)


@given(anything)
def test_well_formed_msgpack_of_any_shape_is_a_bad_frame_or_proper(value: object) -> None:
    check_only_bad_frame(msgspec.msgpack.encode(value))


@given(st.lists(anything, max_size=4))
def test_any_fields_behind_a_proper_header_are_a_bad_frame_or_proper(value: list[object]) -> None:
    check_only_bad_frame(msgspec.msgpack.encode([1, "c", "s", 1, value]))
    check_only_bad_frame(msgspec.msgpack.encode([1, "c", "s", 1, [["Note", *value]]]))
    check_only_bad_frame(msgspec.msgpack.encode([1, "c", "s", 1, [["Tally", *value]]]))


@given(messages.filter(bool), st.data())
def test_a_truncated_frame_is_a_bad_frame(found: list[Message], data: st.DataObject) -> None:
    whole = frame(found)
    with pytest.raises(BadFrame):
        CODEC.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(messages, st.data())
def test_a_frame_with_some_bytes_changed_raises_nothing_else(found: list[Message], data: st.DataObject) -> None:
    changed = bytearray(frame(found))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    check_only_bad_frame(bytes(changed))


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,  # arrays in arrays
        b"\x95\x01\xa1c\xa1s\x01" + b"\x91" * 100_000,
        b"\x95\x01\xa1c\xa1s\x01\x91\x92\xa4Note" + b"\x81\xa0" * 100_000,
        b"\x95\x01\xa1c\xa1s\x01\xdd\xff\xff\xff\xff",  # four thousand million messages announced
        b"\x95\x01\xa1c\xa1s\x01\x91\x92\xa5Tally\xdd\xff\xff\xff\xff",
        b"\x95\x01\xa1c\xa1s\x01\x91\x92\xa4Note\xa2\xff\xfe",  # not UTF-8
        b"\x95\x01\xa1\xff\xa1s\x01\x90",
        b"\x95\x01\xa1c\xa1s\xff\x90",  # a negative serial
        pickle.dumps(Note),
        b"",
    ],
)
def test_frames_made_to_hurt_are_bad_frames(data: bytes) -> None:
    with pytest.raises(BadFrame):
        CODEC.decode(data)


def test_bytes_behind_a_frame_make_it_bad() -> None:
    with pytest.raises(BadFrame):
        CODEC.decode(frame([Note("a")]) + b"\0")


def test_a_message_of_an_unknown_type_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame):
        CODEC.decode(msgspec.msgpack.encode([1, "c", "s", 1, [["Other", 1]]]))


@given(st.integers(0, 2**64 - 1).filter(lambda version: version != 1), st.integers(0, 2**64 - 1), anything)
def test_of_another_version_only_the_header_is_read(version: int, serial: int, rest: object) -> None:
    data = msgspec.msgpack.encode([version, "c", "s", serial, rest, "a field of its own"])
    with pytest.raises(OtherVersion) as raised:
        CODEC.decode(data)
    assert (raised.value.version, raised.value.serial) == (version, serial)


def test_fields_added_later_do_not_disturb() -> None:
    data = msgspec.msgpack.encode([1, "c", "s", 2, [["Note", "a", b"", 1, "new"]], "new"])
    assert CODEC.decode(data).messages == [Note("a")]


def test_a_frame_may_be_as_large_as_the_limit_and_no_larger() -> None:
    small = codec(limit_bytes=4096)
    largest = Note("", bytes(4096 - HEADER_BYTES - 11))
    assert len(small.frame("c" * 16, "\N{MUSICAL SYMBOL G CLEF}" * NAME_LENGTH, 2**63, [small.packed(largest)])) <= 4096
    with pytest.raises(BadFrame):
        small.packed(Note("", bytes(4096 - HEADER_BYTES)))
    with pytest.raises(BadFrame):
        small.decode(frame([Note("", bytes(4096))]))
