"""Processes that a killed run left behind: known by mark, pid and start time, and ended before the next run starts."""

from __future__ import annotations

import os
import select
import signal
import time

from shoal.engine.history import History
from shoal.engine.workspace import Workspace
from shoal.runner.proc import boot_identity, group_members, marked_processes, start_ticks, started_at
from shoal.runner.table import read_table

_PATIENCE = 10.0


def end_leftovers(workspace: Workspace, history: History) -> int:
    """Ends what the last run left running and waits until it is gone; returns how many processes that were.

    A process is ours if its environment carries the run's mark, or if the run's table has its pid and it was started at
    that very moment, or if it belongs to such a process's group.
    """
    run = history.last_run
    if run is None or history.last_end is not None or run.boot != boot_identity():
        return 0
    ended = 0
    table = read_table(workspace.processes)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        pids = _ours(table, run.run)
        if not pids:
            break
        ended += sum(_end(pid, ticks) for pid, ticks in pids)
    return ended


def _ours(table: list[tuple[int, float]], run: str) -> list[tuple[int, int]]:
    """Pids with their start times, so that a pid that is used anew in the meantime is not taken for ours."""
    found = dict.fromkeys(marked_processes(run.encode()))
    for pid, moment in table:
        if started_at(pid, moment):
            found[pid] = None
            found.update(dict.fromkeys(group_members(pid)))
    found.pop(os.getpid(), None)
    moments = [(pid, start_ticks(pid)) for pid in found]
    return [(pid, ticks) for pid, ticks in moments if ticks is not None]


def _end(pid: int, ticks: int) -> bool:
    """Kills one process through a descriptor, so that a reused pid cannot be hit, and waits for its end."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, signal.SIGKILL)
        return True
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(_PATIENCE * 1000)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
