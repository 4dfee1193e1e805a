"""Ledgers read in bulk give the same view as their records one by one, whatever is in them."""

from array import array
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.ledger.bulk_reader import LedgerTail, frames_of, read_into
from shoal.ledger.records import (
    CategoriesDeclared,
    CoresAsked,
    Record,
    RunStarted,
    TaskCourse,
    TaskEnded,
    TasksPlanned,
    TaskStarted,
    Usage,
    decode,
    encode,
    frames,
)
from shoal.ledger.views.attempts import EndColumns, columns_of, ends_in
from shoal.ledger.views.run import RunView

amounts = st.one_of(st.integers(0, 300), st.integers(0, 1 << 20), st.integers(0, 1 << 50))
moments = st.one_of(st.just(0.0), st.floats(0, 2e9), st.integers(0, 5))
texts = st.one_of(st.just(""), st.text(max_size=40), st.sampled_from(["x" * 31, "y" * 32, "z" * 300]))
usages = st.builds(Usage, *([amounts] * 12))
ended = st.builds(
    TaskEnded,
    task=st.integers(0, 70_000),
    attempt=st.integers(1, 400),
    outcome=st.one_of(st.just("ok"), st.sampled_from(["failed", "lost", "no"]), texts),
    final=st.booleans(),
    status=st.integers(-70_000, 70_000),
    started=moments,
    ended=moments,
    user=moments,
    system=moments,
    max_rss=amounts,
    output_at=amounts,
    output_size=amounts,
    message=texts,
    place=st.binary(max_size=20),
    content=st.sampled_from([b"", b"\xf5SHL", bytes(300)]),
    inputs=st.binary(min_size=16, max_size=16),
    outputs=st.lists(st.tuples(amounts, amounts), max_size=20),
    value=st.one_of(st.none(), st.binary(max_size=300), st.just(bytes(70_000))),
    usage=usages,
    memory_limit=amounts,
    node=st.integers(0, 300),
)
asked = st.dictionaries(st.integers(0, 70_000), st.integers(-1, 50_000), max_size=6)


def same(one: EndColumns, other: EndColumns) -> bool:
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in ((getattr(one, name), getattr(other, name)) for name in EndColumns.__struct_fields__)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(ended, min_size=1, max_size=30))
def test_columns_from_bytes_are_those_of_the_records(records: list[TaskEnded]) -> None:
    found, end = frames_of(data := b"".join(map(encode, records)))
    assert end == len(data)
    columns = ends_in(found.data, found.begins, found.ends)
    unusual = any(len(record.outputs) > 15 for record in records)
    assert (columns is None) == unusual
    if columns is not None:
        assert same(columns, columns_of(records))


@settings(max_examples=60, deadline=None)
@given(st.lists(ended, min_size=1, max_size=6), st.data())
def test_damage_and_what_follows_it_are_told_apart_as_ever(records: list[TaskEnded], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(encode, records)))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    kept = list(frames(cut, []))
    found, end = frames_of(cut)
    sound = found.payloads(found.valid_rows(np.arange(len(found))))
    assert sound == [payload for _, payload in kept]
    assert end >= (kept[-1][0] if kept else 0), "what is damaged at the end is not looked at again"


def cores_asked(cores: dict[int, int]) -> CoresAsked:
    return CoresAsked(array("i", cores).tobytes(), array("i", cores.values()).tobytes())


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(ended, max_size=10), st.booleans(), st.lists(st.integers(0, 70_000), max_size=5), asked, st.data())
def test_a_ledger_in_bulk_is_the_ledger_one_by_one(
    tmp_path: Path, drawn: list[TaskEnded], again: bool, going: list[int], others: dict[int, int], data: st.DataObject
) -> None:
    begin = RunStarted("r", 1.0, 1, 1, "b", "h", "v", [], [], 5, 5)
    records: list[Record] = [begin, TasksPlanned([0, 1, 2, 3], list("abcd"), list("xxyz"))]
    records.append(CategoriesDeclared(["x", "y", "z"], [[("cores", 30_000)], [], [("cores", 5_000)]]))
    others |= {one.task: data.draw(st.integers(-1, 50_000)) for one in drawn[::2]}
    records += [cores_asked(others), cores_asked(dict(list(others.items())[:1]))] if others else []
    for one in drawn * 30:
        started = TaskStarted(one.task, one.attempt, 1.0, 1, 0.0, 0)
        records += [started, TaskCourse(one.task, one.attempt, b"x" * 40), one]
    records += [begin, *drawn] if again else []
    records += [TaskStarted(task, 401, 3.0, 1, 0.0, 0) for task in going]
    path = tmp_path / "ledger"
    path.write_bytes(b"".join(map(encode, records)))
    bulk, single = RunView(), RunView()
    read_into(bulk, LedgerTail(str(path)))
    for _, payload in frames(path.read_bytes(), []):
        record = decode(payload)
        assert record is not None
        single.take(record)
    single.settle()
    for name in ("task", "node", "category", "final", "number", "started", "ended", "cpu", "memory", "limit", "made"):
        assert np.array_equal(getattr(bulk.attempts, name), getattr(single.attempts, name)), name
    assert [bulk.attempts.messages[code] for code in bulk.attempts.message] == [
        single.attempts.messages[code] for code in single.attempts.message
    ]
    assert np.array_equal(bulk.held(), single.held())
    if not again:
        usual = single.cores_of_categories()[single.attempts.category]
        mine = [others.get(int(task)) for task in single.attempts.task]
        expected = [
            own if each is None else 1.0 if each < 0 else each / 10_000 for each, own in zip(mine, usual, strict=True)
        ]
        assert single.held().tolist() == expected
    assert (bulk.runs, bulk.last_time, bulk.running) == (single.runs, single.last_time, single.running)


def test_what_began_behind_an_end_runs_until_it_has_ended_itself(tmp_path: Path) -> None:
    end = TaskEnded(3, 1, "failed", False, 1, 1.0, 2.0, 0.0, 0.0, 0, 0, 0, "m", b"", b"", b"", [], None)
    started = [TaskStarted(3, 1, 1.0, 1, 0.0, 0), TaskStarted(3, 2, 2.0, 1, 0.0, 0)]
    path = tmp_path / "ledger"
    records: list[Record] = [started[0], end, started[1]]
    path.write_bytes(b"".join(map(encode, records)))
    view, tail = RunView(), LedgerTail(str(path))
    read_into(view, tail)
    assert view.running == {3: started[1]}
    with path.open("ab") as file:
        file.write(encode(msgspec.structs.replace(end, attempt=2)))
    read_into(view, tail)
    assert view.running == {} and len(view.attempts) == 2
