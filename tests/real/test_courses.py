"""What is seen of attempts over time: told by both launchers, in the ledger, and of long ones only."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger.records import TaskCourse, TaskEnded, decode, frames
from shoal.model.course import unpack
from shoal.report.finding import courses_of, ends_of
from support.command import shoal
from support.launching import PATIENCE, Launching, launching

GROWING = "python3 -c 'import time; time.sleep(0.4); x = b\"x\" * (40 << 20); time.sleep(1.0)'"


def rows_until_the_end(launcher: Launching, tasks: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    deadline = time.monotonic() + PATIENCE
    while sum(row[0] == "ended" for row in rows) < tasks:
        assert time.monotonic() < deadline
        if select.select([launcher.client.descriptor], [], [], 1.0)[0]:
            rows += launcher.client.collect() or []
    return [row for row in rows if row[0] in ("course", "ended")]


@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_launcher_tells_the_course_of_long_attempts_before_their_end(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LAUNCHER", kind)
    with launching(tmp_path, f"course{kind}") as launcher:
        launcher.start(GROWING, "sleep 0.3")
        rows = rows_until_the_end(launcher, 2)
    assert [row[:2] for row in rows] == [("ended", 2), ("course", 1), ("ended", 1)]
    points = unpack(rows[1][3])
    assert 3 <= len(points) <= 60
    assert points[0].memory < 40 << 20 < max(point.memory for point in points)
    ended = rows[2]
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
    long = next(record.task for record in ends if record.ended - record.started > 1)
    assert [record.task for record in courses] == [long]
    assert courses_of(str(ledger), long, 1) == courses
    assert courses_of(str(ledger), long, 2) == courses_of(str(ledger), long, 9) == []
    for task in {record.task for record in ends}:
        assert ends_of(str(ledger), task, 1) + ends_of(str(ledger), task, 2) == [r for r in ends if r.task == task]
