"""Single records are found in a ledger as they stand there, whatever else looks like them."""

from __future__ import annotations

from pathlib import Path

from shoal.ledger.bulk_reader import LedgerTail, ends_of, last_run, read_into
from shoal.ledger.records import NetBegun, Record, RunStarted, TaskEnded, TasksPlanned, encode
from shoal.ledger.views.run import RunView
from shoal.ledger.workspace import Workspace
from shoal.ui.web.watch import Watch


def begin(name: str) -> RunStarted:
    return RunStarted(name, 5.0, 1, 1, "b", "h", "v", ["\x93run"], [], 3, 3)


def end(task: int, message: str = "") -> TaskEnded:
    identity = b"\xa3end" + bytes([task % 256]) + b"\xa3run"
    return TaskEnded(task, 1, "ok", True, 0, 1.0, 2.0, 0.0, 0.0, 0, 0, 0, message, identity, b"", b"", [], None)


def write(path: Path, *records: Record) -> str:
    path.write_bytes(b"".join(map(encode, records)))
    return str(path)


def test_ends_are_those_of_one_task_in_one_run(tmp_path: Path) -> None:
    first, second = [end(1), end(200), end(70_000)], [end(200, "m"), end(2), end(200)]
    path = write(tmp_path / "ledger", begin("a"), *first, begin("b"), *second)
    assert ends_of(path, 200, 1) == [first[1]]
    assert ends_of(path, 200, 2) == [second[0], second[2]]
    assert ends_of(path, 70_000, 1) == [first[2]]
    assert ends_of(path, 70_000, 2) == ends_of(path, 1, 3) == ends_of(str(tmp_path / "none"), 1, 1) == []


def test_a_damaged_record_is_not_found_and_the_others_are(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    write(path, begin("a"), end(1), end(1, "second"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"second", b"sec0nd"))
    assert ends_of(str(path), 1, 1) == [end(1)]


def test_reading_from_the_last_run_is_reading_all(tmp_path: Path) -> None:
    net = NetBegun("mill", "d", None)
    plan = TasksPlanned([0, 1], ["\xf5SHL", "\x9c\u00a3run"], ["x", "y"])
    path = write(
        tmp_path / "ledger", begin("a"), net, plan, end(0), begin("b"), end(1), begin("c"), plan, end(0), end(1)
    )
    found = last_run(path)
    assert (found.earlier, found.net) == (2, net)
    whole, rest, tail = RunView(), RunView(), LedgerTail(path)
    tail.offset, rest.runs = found.offset, found.earlier
    read_into(whole, LedgerTail(path))
    read_into(rest, tail)
    assert (rest.runs, rest.start, rest.attempts.task.tolist()) == (whole.runs, whole.start, [0, 1])
    assert last_run(write(tmp_path / "one", begin("a"), end(0))).offset == 0


def test_the_progress_of_reading_a_large_ledger_is_shown(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("")
    workspace = Workspace(str(tmp_path / "flow.py"))
    Path(workspace.ledger).parent.mkdir(parents=True)
    size = Path(write(Path(workspace.ledger), begin("a"), *[end(task % 200) for task in range(30_000)])).stat().st_size
    watch, told = Watch(workspace), list[int]()
    watch.reading = told.append
    watch.refresh()
    assert len(told) >= 3 and told == sorted(told) and told[-1] == size
    assert len(watch.view.attempts) == 30_000
