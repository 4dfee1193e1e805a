"""Single tasks for live pages: lists by state, category and name, and details of one task from the ledger."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from shoal.execution.processes.process_table import all_pids
from shoal.execution.processes.sampler import TreeProcess, read_process, traffic_of
from shoal.execution.processes.usage_series import UsagePoint, unpack
from shoal.ledger.bulk_reader import courses_of, ends_of
from shoal.ledger.records import NONE_REQUESTED, TasksLinked, TaskStarted
from shoal.ledger.views.attempts import Array, Ints
from shoal.ledger.views.timeline import node_name
from shoal.ledger.workspace import Workspace
from shoal.ui.web.watch import Watch, WatchedRun

STATES = ("not started", "running", "done", "failed", "cancelled", "cannot run")
NOT_RUN = "not run"
"""In a finished run, this state replaces 'not started' and 'cannot run'."""
MOST_LISTED, MOST_LINKS, MOST_OUTPUT = 200, 50, 1 << 16


def states_of(watch: Watch) -> Array:
    """By task number: its index in `STATES`; 255 for numbers without a task. After a killed run, no task counts as
    running."""
    view = watch.view
    view.settle()
    rows = view.attempts
    size = max(view.highest, int(rows.task.max(initial=-1)), max(view.running, default=-1)) + 1
    known = view.category_of(np.arange(size)) >= 0
    found: Array = np.where(known, 0, 255).astype(np.uint8)
    found[rows.task[rows.final & (rows.outcome == 0)]] = 2
    found[rows.task[rows.final & (rows.outcome != 0)]] = 3
    cancelled = np.array(sorted(view.unwanted), np.int64)
    cancelled = cancelled[cancelled < size]
    found[cancelled[known[cancelled]]] = 4
    if watch.live:
        found[np.flatnonzero(view.are_doomed())] = STATES.index("cannot run")
        found[list(view.running)] = 1
    return found


def state_names(watch: Watch) -> tuple[str, ...]:
    """The names of the states: `STATES`, with another first name if the run is over."""
    return STATES if watch.live else (NOT_RUN, *STATES[1:])


def list_tasks(watch: Watch, *, state: str, category: str, search: str, after: int, limit: int) -> dict[str, Any]:
    """Tasks in order of their numbers, after the number `after`; `next` is where the following page begins, if any."""
    view, names = watch.view, state_names(watch)
    states = states_of(watch)
    wanted = states != 255
    if state:
        wanted &= states == (0 if state in (STATES[0], NOT_RUN) else STATES.index(state))
    if category:
        codes = view.category_of(np.arange(len(states)))
        wanted &= codes == (view.categories.index(category) if category in view.categories else -2)
    if search:
        wanted &= view.names.may_have(search, len(wanted))
    wanted[: after + 1] = False
    numbers = np.flatnonzero(wanted)
    limit = max(1, min(limit, MOST_LISTED))
    found: list[dict[str, Any]] = []
    rest = 0
    for at, task in enumerate(numbers.tolist()):
        if len(found) == limit:
            rest = len(numbers) - at
            break
        name = view.names.of(task)
        if not search or search.lower() in name.lower():
            found.append({"task": task, "name": name[:300], "state": names[states[task]]})
    codes = view.category_of(np.array([row["task"] for row in found], np.int64))
    for row, code in zip(found, codes.tolist(), strict=True):
        row["category"] = view.categories[code] if code >= 0 else None
    return {
        "tasks": found,
        "next": found[-1]["task"] if rest and found else None,
        "matching": _matching(search, numbers),
    }


def _matching(search: str, numbers: Ints) -> int | None:
    """Number of matching tasks; None if counting would need all names."""
    return None if search else len(numbers)


def task_data(watch: Watch, task: int) -> dict[str, Any] | None:
    """Everything that the model knows about one task; None if the run has no such task."""
    view = watch.view
    states = states_of(watch)
    if not 0 <= task < len(states) or states[task] == 255:
        return None
    code = int(view.category_of(np.array([task]))[0])
    rows = view.attempts
    needs, needed_by = _linked(view, task)
    return {
        "task": task,
        "name": view.names.of(task),
        "category": view.categories[code] if code >= 0 else None,
        "state": state_names(watch)[states[task]],
        "declared": _declared(view, task, code),
        "attempts": [_attempt(view, at) for at in np.flatnonzero(rows.task == task).tolist()],
        "running": _running(watch, task),
        "needs": _named(watch, states, needs),
        "needed_by": _named(watch, states, needed_by),
    }


def _declared(view: WatchedRun, task: int, code: int) -> dict[str, int]:
    """Resources that its category declares, with the cores that the task itself declares."""
    found = dict(view.declared.get(view.categories[code], {})) if code >= 0 else {}
    for asked in view.special_cores.among(np.array([task]))[1].tolist():
        if asked == NONE_REQUESTED:
            found.pop("cores", None)
        else:
            found["cores"] = asked
    return found


def _attempt(view: WatchedRun, at: int) -> dict[str, Any]:
    rows = view.attempts
    return {
        "attempt": int(rows.number[at]),
        "outcome": rows.outcomes[int(rows.outcome[at])],
        "final": bool(rows.final[at]),
        "message": rows.messages[int(rows.message[at])],
        "node": node_name(view, int(rows.node[at])),
        "started": round(float(view.after(rows.started[at])), 6),
        "ended": round(float(view.after(rows.ended[at])), 6),
        "cpu": round(float(rows.cpu[at]), 6),
        "memory": int(rows.memory[at]),
        "memory_limit": int(rows.limit[at]),
        "made": int(rows.made[at]),
    }


def _running(watch: Watch, task: int) -> dict[str, Any] | None:
    record = watch.view.running.get(task)
    if record is None or not watch.live:
        return None
    since = round(max(0.0, record.time - watch.view.origin), 6)
    node = node_name(watch.view, record.node)
    return {"attempt": record.attempt, "since": since, "pid": record.pid or None, "node": node}


def _linked(view: WatchedRun, task: int) -> tuple[list[int], list[int]]:
    """The tasks that this task depends on, and its dependents."""
    needs: dict[int, None] = {}
    needed_by: dict[int, None] = {}
    for record in view.links:
        children, counts, parents = _columns(record)
        ends = np.cumsum(counts)
        for at in np.flatnonzero(children == task).tolist():
            needs |= dict.fromkeys(parents[ends[at] - counts[at] : ends[at]].tolist())
        where = np.searchsorted(ends, np.flatnonzero(parents == task), side="right")
        needed_by |= dict.fromkeys(children[where].tolist())
    needs.pop(-1, None)
    return list(needs), list(needed_by)


def _columns(record: TasksLinked) -> tuple[Ints, Ints, Ints]:
    return (
        np.frombuffer(record.tasks, "<i4"),
        np.frombuffer(record.counts, "<i4"),
        np.frombuffer(record.needs, "<i4"),
    )


def _named(watch: Watch, states: Array, tasks: list[int]) -> dict[str, Any]:
    names = state_names(watch)
    shown = [
        {"task": task, "name": watch.view.names.of(task)[:300], "state": names[states[task]]}
        for task in tasks
        if task < len(states) and states[task] != 255
    ]
    return {"count": len(tasks), "tasks": shown[:MOST_LINKS]}


def output_of(workspace: Workspace, watch: Watch, task: int, attempt: int | None) -> bytes | None:
    """The end of an attempt's output, by default of the last attempt; None if there is none."""
    with watch.lock:
        running = watch.view.running.get(task) if watch.view.end is None and watch.is_last else None
        run = watch.view.number
    if running is not None and running.slot >= 0 and attempt in (None, running.attempt):
        path = os.path.join(workspace.running, str(running.slot))
        try:
            return _tail(path, 0, os.stat(path).st_size)
        except OSError:
            return None
    found = [record for record in ends_of(workspace.ledger, task, run) if attempt in (None, record.attempt)]
    if not found:
        return None
    if not found[-1].output_size:
        return b""
    return _tail(workspace.output, found[-1].output_at, found[-1].output_size)


def _tail(path: str, begin: int, size: int) -> bytes | None:
    keep = min(size, MOST_OUTPUT)
    try:
        with open(path, "rb") as file:
            file.seek(begin + size - keep)
            return file.read(keep)
    except OSError:
        return None


_TICKS = os.sysconf("SC_CLK_TCK")
_SAME_SECONDS = 1.0
"""Tolerance for recognising a process by its recorded start time."""


def usage_series(workspace: Workspace, watch: Watch, task: int, attempt: int | None) -> dict[str, Any]:
    """The usage series of an attempt, by default the last one; without points if nothing is known of it."""
    with watch.lock:
        running = watch.view.running.get(task) if watch.live else None
        run = watch.view.number
    if running is not None and attempt in (None, running.attempt):
        seen = sample_usage(running, time.time())
        return _usage_data(running.attempt, [] if seen is None else [seen], going=True)
    found = [record for record in courses_of(workspace.ledger, task, run) if attempt in (None, record.attempt)]
    return (
        _usage_data(found[-1].attempt, unpack(found[-1].points), going=False)
        if found
        else _usage_data(attempt, [], going=False)
    )


def _usage_data(attempt: int | None, points: list[UsagePoint], *, going: bool) -> dict[str, Any]:
    return {"attempt": attempt, "going": going, "points": [[round(value, 3) for value in point] for point in points]}


def sample_usage(running: TaskStarted, now: float) -> UsagePoint | None:
    """Current resource use of a task's processes; None if they cannot be read."""
    first = read_process(running.pid) if running.pid > 0 else None
    if first is None or abs(first.start / _TICKS - running.boot_time) > _SAME_SECONDS:
        return None
    tree = _tree(first)
    traffic = [traffic_of(process.pid) for process in tree]
    return UsagePoint(
        max(0.0, now - running.time),
        sum(process.resident for process in tree),
        sum(process.cpu for process in tree),
        sum(read for read, _ in traffic),
        sum(written for _, written in traffic),
    )


def _tree(first: TreeProcess) -> list[TreeProcess]:
    """Processes of a task: its process group, and descendants that have left the group."""
    others = {pid: process for pid in all_pids() if (process := read_process(pid)) is not None}
    found = {first.pid: first}
    size = 0
    while size < len(found):
        size = len(found)
        found |= {pid: one for pid, one in others.items() if one.group == first.pid or one.parent in found}
    return [process for process in found.values() if process.is_alive]
