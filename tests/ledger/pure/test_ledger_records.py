"""Frames of the ledger: whatever happens to the bytes, whole records come back and nothing else does."""

from __future__ import annotations

import msgspec
import pytest

from shoal.ledger.records import Damage, RunEnded, RunStarted, TasksPlanned, TaskStarted, decode, encode, frames


def records(count: int) -> list[bytes]:
    return [encode(TaskStarted(number, 1, 1.5, 100 + number, 2.5, 0)) for number in range(count)]


def tasks(data: bytes, damage: list[Damage]) -> list[int]:
    found = []
    for _, payload in frames(data, damage):
        record = decode(payload)
        assert isinstance(record, TaskStarted)
        found.append(record.task)
    return found


def test_whole_ledger_is_read_without_damage() -> None:
    damage: list[Damage] = []
    assert tasks(b"".join(records(5)), damage) == [0, 1, 2, 3, 4]
    assert damage == []


def test_flipped_byte_costs_only_its_own_record() -> None:
    parts = records(5)
    broken = bytearray(parts[2])
    broken[len(broken) // 2] ^= 0xFF
    damage: list[Damage] = []
    assert tasks(b"".join([*parts[:2], bytes(broken), *parts[3:]]), damage) == [0, 1, 3, 4]
    assert damage == [Damage(len(parts[0]) + len(parts[1]), len(parts[2]))]


def test_flipped_length_does_not_swallow_what_follows() -> None:
    parts = records(4)
    for position in range(4, 8):
        broken = bytearray(parts[1])
        broken[position] ^= 0x41
        damage: list[Damage] = []
        assert tasks(b"".join([parts[0], bytes(broken), *parts[2:]]), damage) == [0, 2, 3]
        assert len(damage) == 1


def test_cut_tail_is_reported_as_damage() -> None:
    data = b"".join(records(3))
    damage: list[Damage] = []
    assert tasks(data[:-5], damage) == [0, 1]
    assert damage == [Damage(len(data) - len(records(3)[2]), len(records(3)[2]) - 5)]


def test_a_mark_inside_a_payload_is_not_taken_for_a_frame() -> None:
    inner = encode(RunEnded(1.0, "\xf5SHL", 1, 2, 3))
    damage: list[Damage] = []
    assert [decode(payload) for _, payload in frames(inner + inner, damage)] == [decode(inner[12:])] * 2
    assert damage == []


def test_record_of_a_newer_version_is_skipped_not_fatal() -> None:
    assert decode(b"\x93\xa3new\x01\x02") is None


def test_name_that_is_no_utf8_is_stored_all_the_same() -> None:
    record = TasksPlanned([1], ["caf\udce9"], ["cat"])
    assert decode(encode(record)[12:]) == TasksPlanned([1], ["caf\N{REPLACEMENT CHARACTER}"], ["cat"])


@pytest.mark.parametrize("name", ["r/x\udcff.txt", "plain", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_targets_come_back_as_they_were(name: str) -> None:
    start = RunStarted("r", 1.0, 1, 1, "b", "h", "v", [name, "other"], [], 1, 1)
    assert decode(encode(start)[12:]) == start
    again = decode(encode(decode(encode(start)[12:]) or start)[12:])  # as a ledger that is made smaller holds it
    assert again == start


def test_half_of_a_surrogate_pair_in_a_target_does_not_stop_the_ledger() -> None:
    start = RunStarted("r", 1.0, 1, 1, "b", "h", "v", ["a\ud800", "x\udcff"], [], 1, 1)
    found = decode(encode(start)[12:])
    assert isinstance(found, RunStarted)
    assert found.targets == ["a?", "x\udcff"]


def test_targets_of_older_ledgers_can_be_read() -> None:
    start = RunStarted("r", 1.0, 1, 1, "b", "h", "v", ["x\N{REPLACEMENT CHARACTER}"], [], 1, 1)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(start)[12:])[:13])
    assert decode(older) == start
