"""The course of an attempt: memory, CPU time and traffic over time; of one that runs, how it is at this moment.

What has ended was written down by whoever ran it. A task that runs on this machine is looked at from here.
"""

from __future__ import annotations

import os
import time
from typing import Any

from shoal.engine.workspace import Workspace
from shoal.ledger.records import TaskStarted
from shoal.model.course import Point, unpack
from shoal.report.finding import courses_of
from shoal.runner.proc import all_pids
from shoal.runner.sampler import Process, read_process, traffic_of
from shoal.web.watch import Watch

_TICKS = os.sysconf("SC_CLK_TCK")
_SAME_SECONDS = 1.0
"""A process that was started at about the moment that is recorded is the one that is meant."""


def course_data(workspace: Workspace, watch: Watch, task: int, attempt: int | None) -> dict[str, Any]:
    """The course of an attempt, the last one unless another is named; without points if nothing is known of it."""
    with watch.lock:
        running = watch.view.running.get(task) if watch.live else None
        run = watch.view.number
    if running is not None and attempt in (None, running.attempt):
        seen = look_at(running, time.time())
        return _told(running.attempt, [] if seen is None else [seen], going=True)
    found = [record for record in courses_of(workspace.ledger, task, run) if attempt in (None, record.attempt)]
    return _told(found[-1].attempt, unpack(found[-1].points), going=False) if found else _told(attempt, [], going=False)


def _told(attempt: int | None, points: list[Point], *, going: bool) -> dict[str, Any]:
    return {"attempt": attempt, "going": going, "points": [[round(value, 3) for value in point] for point in points]}


def look_at(running: TaskStarted, now: float) -> Point | None:
    """How the processes of a task are at this moment; None if they are not there to be seen."""
    first = read_process(running.pid) if running.pid > 0 else None
    if first is None or abs(first.start / _TICKS - running.boot_time) > _SAME_SECONDS:
        return None
    tree = _tree(first)
    traffic = [traffic_of(process.pid) for process in tree]
    return Point(
        max(0.0, now - running.time),
        sum(process.resident for process in tree),
        sum(process.cpu for process in tree),
        sum(read for read, _ in traffic),
        sum(written for _, written in traffic),
    )


def _tree(first: Process) -> list[Process]:
    """A task has a process group of its own; what has left that is found by descent."""
    others = {pid: process for pid in all_pids() if (process := read_process(pid)) is not None}
    found = {first.pid: first}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {pid: one for pid, one in others.items() if one.group == first.pid or one.parent in found}
    return [process for process in found.values() if process.is_alive]
