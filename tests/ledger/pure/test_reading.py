"""A ledger is read once, whatever is in it: long records, garbage, what is not whole yet; another one in its place is
read anew."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from shoal.ledger import bulk_reader
from shoal.ledger.bulk_reader import Frames, LedgerTail, frames_of
from shoal.ledger.records import NetSaved, Record, RunEnded, encode, frames
from support.views import ended, planned, started


def over(outcome: str) -> RunEnded:
    return RunEnded(5.0, outcome, 1, 0, 0)


def payloads_of(tail: LedgerTail) -> list[bytes]:
    return [payload for piece in tail.pieces() for payload in piece]


def whole(data: bytes) -> list[bytes]:
    """One by one, all at once."""
    return [payload for _, payload in frames(data, [])]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were searched, each time that some were."""
    found: list[int] = []

    def counted(data: bytes, *more: int) -> tuple[Frames, int]:
        found.append(len(data))
        return frames_of(data, *more)

    monkeypatch.setattr(bulk_reader, "frames_of", counted)
    return found


def test_a_long_record_is_not_searched_again_with_each_piece(tmp_path: Path, searched: list[int]) -> None:
    path = tmp_path / "ledger"
    records: list[Record] = [started(1), NetSaved(os.urandom(20 << 20)), ended(0, 1.0, 2.0)]
    path.write_bytes(data := b"".join(map(encode, records)))
    tail = LedgerTail(str(path))
    assert payloads_of(tail) == whole(data)
    assert tail.offset == len(data) and sum(searched) < 5 << 20


@pytest.mark.parametrize("rubbish", [bytes(20 << 20), encode(NetSaved(bytes(20 << 20)))[:-1]], ids=["zeros", "torn"])
def test_what_is_no_record_is_searched_once_until_the_ledger_grows(
    tmp_path: Path, searched: list[int], rubbish: bytes
) -> None:
    path = tmp_path / "ledger"
    first = encode(started(1)) + encode(planned(["a"]))
    path.write_bytes(first + rubbish)
    tail = LedgerTail(str(path))
    assert payloads_of(tail) == whole(first)
    assert sum(searched) < 30 << 20
    searched.clear()
    assert payloads_of(tail) == [] and searched == []
    with path.open("ab") as file:
        file.write(last := encode(over("failed")))
    assert payloads_of(tail) == whole(last)
    assert tail.offset == path.stat().st_size


def test_what_looks_like_a_record_within_one_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reader, "PIECE_BYTES", 100)
    outer = encode(NetSaved(b"x" * 150 + encode(over("failed")) + b"y" * 150))
    path = tmp_path / "ledger"
    path.write_bytes(data := encode(started(1)) + outer + encode(over("ok")))
    assert payloads_of(LedgerTail(str(path))) == whole(data)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_of_any_size_of_a_damaged_ledger_that_grows_have_all_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    choose = random.Random(seed)
    monkeypatch.setattr(bulk_reader, "PIECE_BYTES", choose.choice([13, 40, 150, 1000]))
    data = bytearray()
    for number in range(30):
        frame = encode(ended(number, 1.0, 2.0)) if choose.random() < 0.8 else encode(NetSaved(bytes(300)))
        data += frame if choose.random() < 0.9 else frame[: choose.randrange(len(frame))]
        data += choose.choice(
            [b"", b"", b"", bytes(choose.randrange(200)), b"\xf5SHL", b"\xf5", b"\xf5SHL\x01\0\0\0\0"]
        )
    for _ in range(choose.randrange(4)):
        data[choose.randrange(len(data))] = choose.randrange(256)
    path = tmp_path / "ledger"
    path.touch()
    tail, found, at = LedgerTail(str(path)), list[bytes](), 0
    with path.open("ab", buffering=0) as file:
        while at < len(data):
            step = choose.choice([1, 30, 200, 2000])
            file.write(data[at : at + step])
            at += step
            assert not tail.was_replaced()
            found += payloads_of(tail)
    assert found == whole(bytes(data))


def test_another_ledger_under_the_number_of_the_first_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(encode(started(1)) + encode(over("ok")))
    tail = LedgerTail(str(path))
    assert not tail.was_replaced() and len(payloads_of(tail)) == 2
    before = path.stat().st_ino
    path.write_bytes(data := encode(started(7)) + encode(planned(["a"] * 7)) + encode(over("failed")))
    assert path.stat().st_ino == before and len(data) > tail.offset
    assert tail.was_replaced()
    assert payloads_of(tail) == whole(data)
    assert not tail.was_replaced()


def test_a_ledger_that_was_seen_to_be_gone_is_another_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    tail = LedgerTail(str(path))
    assert not tail.was_replaced(), "it is not there yet"
    path.write_bytes(data := encode(started(1)) + encode(over("ok")))
    assert not tail.was_replaced() and payloads_of(tail) == whole(data)
    path.unlink()
    assert not tail.was_replaced() and payloads_of(tail) == []
    path.write_bytes(data)
    assert tail.was_replaced() and payloads_of(tail) == whole(data)


def test_a_ledger_whose_first_record_is_half_there_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    data = encode(started(1))
    path.write_bytes(data[:5])
    tail = LedgerTail(str(path))
    assert not tail.was_replaced() and payloads_of(tail) == []
    path.write_bytes(data)
    assert not tail.was_replaced() and payloads_of(tail) == whole(data)
