"""What is seen of attempts over time: told by both launchers, in the ledger, and of long ones only."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.execution.processes.usage_series import LEAST_AGE, unpack
from shoal.ledger.bulk_reader import courses_of, ends_of
from shoal.ledger.records import TaskCourse, TaskEnded, TasksPlanned, decode, frames
from support.command import shoal
from support.launching import PATIENCE, Launching, launching

GROWING = """python3 -c '
import time
def wait_for(condition):
    while not any(condition(float(row.split()[5])) for row in open("{series}") if row[0] != "#"):
        time.sleep(0.05)
began = time.time()
while True:
    try:
        wait_for(lambda memory: memory > 0)
        break
    except FileNotFoundError:
        time.sleep(0.01)
x = b"x" * (40 << 20)
wait_for(lambda memory: memory > 40)
time.sleep(max(0.0, began + 1.2 - time.time()))
'"""
"""Takes memory when it has been looked at without, and ends when it has been looked at with it and is a long one."""


def rows_until_the_end(launcher: Launching, tasks: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    deadline = time.monotonic() + PATIENCE
    while sum(row[0] == "ended" for row in rows) < tasks:
        assert time.monotonic() < deadline
        if select.select([launcher.client.descriptor], [], [], 1.0)[0]:
            rows += launcher.client.collect() or []
    return [row for row in rows if row[0] in ("course", "ended")]


@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_launcher_reports_the_series_of_long_attempts_before_their_end(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHER", kind)
    with launching(tmp_path, f"course{kind}", series=str(tmp_path)) as launcher:
        launcher.start(GROWING.format(series=tmp_path / "1.1.series"), "sleep 0.3")
        rows = rows_until_the_end(launcher, 2)
    ends = {row[1]: row for row in rows if row[0] == "ended"}
    lasting = {task for task, row in ends.items() if row[6] - row[5] >= LEAST_AGE}  # on a busy machine maybe both
    assert 1 in {row[1] for row in rows if row[0] == "course"} <= lasting
    at = next(at for at, row in enumerate(rows) if row[:2] == ("course", 1))
    points, ended = unpack(rows[at][3]), rows[at + 1]
    assert ended[:2] == ("ended", 1)
    assert 3 <= len(points) <= 60
    assert points[0].memory < 40 << 20 < max(point.memory for point in points)
    assert points[-1].age == pytest.approx(ended[6] - ended[5], abs=0.01)
    assert points[-1].cpu == pytest.approx(ended[7] + ended[8], abs=0.02)


def test_a_run_keeps_courses_in_its_ledger_and_they_are_found_by_task_and_run(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from shoal import task\ntask('long', run='sleep 1.1')\ntask('short', run='true')\n"
        "task('all', needs=['long', 'short'])\n"
    )
    shoal(tmp_path, "run", "flow.py", "all", "--quiet")
    shoal(tmp_path, "run", "flow.py", "short", "--quiet", "--force")
    ledger = tmp_path / ".shoal" / "flow.py" / "ledger"
    records = [decode(payload) for _, payload in frames(ledger.read_bytes(), [])]
    courses = [record for record in records if isinstance(record, TaskCourse)]
    ends = [record for record in records if isinstance(record, TaskEnded)]
    plan = next(record for record in records if isinstance(record, TasksPlanned))
    long = plan.first[plan.names.index("long")]
    lasting = {record.task for record in ends if record.ended - record.started >= LEAST_AGE}
    assert long in {record.task for record in courses} <= lasting  # on a busy machine the other one may last, too
    of_long = [record for record in courses if record.task == long]
    assert courses_of(str(ledger), long, 1) == of_long[:1]
    assert courses_of(str(ledger), long, 2) == of_long[1:] and courses_of(str(ledger), long, 9) == []
    for task in {record.task for record in ends}:
        assert ends_of(str(ledger), task, 1) + ends_of(str(ledger), task, 2) == [r for r in ends if r.task == task]
