"""Recovery after a killed run: predicts how files will be restored, and kills leftover processes.

`shoal.execution.files.backups.restore_all` restores the files. Commands that only show what would be done use the
prediction and see the files as they will be after it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator

import msgspec

from shoal.execution.files.backups import is_any_aside
from shoal.execution.files.moves import OutputMoves, entry_of, everything_below, is_there
from shoal.execution.processes.process_table import (
    boot_identity,
    group_members,
    marked_processes,
    read_table,
    start_ticks,
    started_at,
)
from shoal.ledger.attempt_journal import OutputBefore, read_journal
from shoal.ledger.history import History
from shoal.ledger.ownership import DirectoryEntry
from shoal.ledger.records import BY_TIME
from shoal.ledger.workspace import Workspace


class Recovery(msgspec.Struct):
    """What will be moved, by current names; empty if no run was killed. Names are relative to the current directory,
    which is the workflow's."""

    moved: dict[str, str] = {}
    """From the current path of an output to its future path in `interrupted`."""
    back: dict[str, str] = {}
    """From a path to the current path of what will be restored there."""
    replaced: bool = False
    """Whether something will go to `replaced`, because the result that takes its place is accepted."""

    def current_path(self, name: str) -> str:
        """Returns the current path of what will be at `name`, or an empty string if it will have been moved away."""
        if not self.moved and not self.back:
            return name
        at = name
        while True:
            if at in self.back:
                return self.back[at] + name[len(at) :]
            if at in self.moved:
                return ""
            parent = os.path.dirname(at)
            if parent in ("", at):
                return name
            at = parent

    def look(self, name: str) -> os.stat_result | None:
        """Returns the status of what will be at `name`."""
        try:
            return os.lstat(self.current_path(name))
        except OSError:
            # Parent directories of restored files are created.
            return os.lstat(os.curdir) if any(each.startswith(f"{name}/") for each in self.back) else None

    def below(self, directory: str) -> dict[str, DirectoryEntry]:
        """Returns everything that will be below a directory; directories come before their entries."""
        now = self.current_path(directory)
        found = everything_below(now) if os.path.isdir(now) else {}
        if now != directory or not (self.moved or self.back):
            return found
        inside = f"{directory}/"
        gone = {name[len(inside) :] for name in self.moved if name.startswith(inside)}
        for name in list(found):
            if name in gone or os.path.dirname(name) in gone:
                gone.add(name)
                del found[name]
        for name, place in self.back.items():
            if name.startswith(inside):
                found |= _with_parents(name[len(inside) :], place)
        return dict(sorted(found.items()))


def _with_parents(name: str, place: str) -> dict[str, DirectoryEntry]:
    """Returns the entry of a restored file or directory, its parent directories and everything in it."""
    found = {name: entry_of(place, BY_TIME)}
    if found[name].kind == "directory":
        found |= {os.path.join(name, each): entry for each, entry in everything_below(place).items()}
    while name := os.path.dirname(name):
        found[name] = DirectoryEntry("directory", 0, 0, "")
    return found


def predict_recovery(workspace: Workspace, history: History) -> Recovery:
    """Predicts what `restore_all` would do. `history` must have been read while the journal of the killed run
    existed."""
    asides = OutputMoves(workspace, after_kill=True)
    ahead = Recovery()
    ended = history.ended_last or {}
    known: set[str] = set()
    for place, entry in read_journal(workspace.attempts).items():
        for before in entry.outputs:
            known |= {os.fsdecode(unit.aside) for unit in before.units}
            if ended.get(place):
                ahead.replaced |= any(_kept(before))
                continue
            if place not in ended or is_any_aside(before):
                _predict(ahead, asides, before)
    for before in asides.strays():
        if os.fsdecode(before.units[0].aside) not in known:
            _predict(ahead, asides, before)
    return ahead


def _predict(ahead: Recovery, asides: OutputMoves, before: OutputBefore) -> None:
    output = os.fsdecode(before.path)
    ahead.moved |= {name: asides.place_after_kill(output, name) for name in asides.half_made(before)}
    for unit in before.units:
        place = os.fsdecode(unit.aside)
        if place and is_there(place):
            ahead.back[os.fsdecode(unit.path)] = place


def _kept(before: OutputBefore) -> Iterator[bool]:
    for unit in before.units:
        place = os.fsdecode(unit.aside)
        if place and is_there(place):
            yield unit.keep or any(is_there(os.path.join(place, os.fsdecode(name))) for name in unit.changed)


_PATIENCE = 10.0


def end_leftovers(workspace: Workspace, history: History) -> int:
    """Kills processes that the last run left behind and waits until they are gone; returns their number.

    A process belongs to the run if its environment carries the run's mark, if its pid and exact start time are in the
    run's process table, or if it belongs to such a process's group.
    """
    run = history.last_run
    if run is None or history.last_end is not None or run.boot != boot_identity():
        return 0
    ended = 0
    table = read_table(workspace.processes)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        pids = _leftover_processes(table, run.run)
        if not pids:
            break
        ended += sum(_end(pid, ticks) for pid, ticks in pids)
    return ended


def _leftover_processes(table: list[tuple[int, float]], run: str) -> list[tuple[int, int]]:
    """Returns pids with their start times, so that a pid that the system has reused since is not killed."""
    found = dict.fromkeys(marked_processes(run.encode()))
    for pid, moment in table:
        if started_at(pid, moment):
            found[pid] = None
            found.update(dict.fromkeys(group_members(pid)))
    found.pop(os.getpid(), None)
    moments = [(pid, start_ticks(pid)) for pid in found]
    return [(pid, ticks) for pid, ticks in moments if ticks is not None]


def _end(pid: int, ticks: int) -> bool:
    """Kills one process through a pidfd, so that a reused pid cannot be hit, and waits until it has ended."""
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
