"""Random damage to a ledger: every record that was not touched survives, in order."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.ledger.records import Damage, TaskStarted, decode, encode, frames

COUNT = 40


@settings(max_examples=300, deadline=None)
@given(
    start=st.integers(0, 2000),
    length=st.integers(1, 600),
    kind=st.sampled_from(["zero", "flip", "cut", "remove"]),
    mask=st.integers(1, 255),
)
@example(start=156, length=8, kind="zero", mask=1)  # length and checksum of a frame become zero
def test_only_records_that_were_touched_are_lost(start: int, length: int, kind: str, mask: int) -> None:
    parts = [encode(TaskStarted(number, 1, 0.5, number, 0.25, 0)) for number in range(COUNT)]
    data = b"".join(parts)
    begin = start % len(data)
    end = len(data) if kind == "cut" else min(len(data), begin + length)
    middle = {
        "zero": bytes(end - begin),
        "flip": bytes(byte ^ mask for byte in data[begin:end]),
        "cut": b"",
        "remove": b"",
    }[kind]
    damaged = data[:begin] + middle + data[end:]
    offsets = [sum(map(len, parts[:number])) for number in range(COUNT + 1)]
    untouched = [n for n in range(COUNT) if offsets[n + 1] <= begin or offsets[n] >= end]
    damage: list[Damage] = []
    kept = list(frames(damaged, damage))
    survivors = [decode(payload) for _, payload in kept]
    numbers = [record.task for record in survivors if isinstance(record, TaskStarted)]
    assert len(numbers) == len(survivors)
    assert [number for number in numbers if number in untouched] == untouched
    assert numbers == sorted(set(numbers))
    if damaged != data and len(numbers) < COUNT and kind != "cut" and kind != "remove":
        assert damage
