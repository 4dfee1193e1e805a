"""Finds and kills processes of Shoal by mark, pid and start time, and never any other; reads their entries in `/proc`.

Every task carries `SHOAL_TASK=<run>:<task>:<attempt>` in its environment. On Linux `/proc` shows it even for processes
that left their group by a double fork. Without `/proc` only process groups can be killed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import stat
import struct
from collections.abc import Iterator

MARK_NAME = b"SHOAL_TASK"
_TICKS = os.sysconf("SC_CLK_TCK")
_SUBREAPER = 36


def become_subreaper() -> bool:
    """Makes this process the parent of orphans of our tasks, so that they can be seen and reaped. Linux only."""
    try:
        return bool(ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def read_small(path: str) -> bytes:
    """Returns the content of a file below `/proc`; empty if it is gone or not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = chunk = os.read(descriptor, 1 << 16)
        while chunk:  # one read returns at most a page of a list
            chunk = os.read(descriptor, 1 << 16)
            text += chunk
        return text
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def figures(data: bytes) -> dict[bytes, int]:
    """Parses the numbers of a file with lines of `Name: number ...`."""
    found = {}
    for line in data.splitlines():
        name, _, rest = line.partition(b":")
        first = rest.split(None, 1)[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found


def all_pids() -> list[int]:
    """Returns all pids of this machine; none without `/proc`."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def marks_of(pid: int, run: bytes) -> Iterator[tuple[int, int]]:
    """Yields task and attempt from the mark in a process's environment, if it belongs to this run."""
    wanted = MARK_NAME + b"=" + run + b":"
    for entry in read_small(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(wanted):
            task, _, attempt = entry[len(wanted) :].partition(b":")
            if task.isdigit() and attempt.isdigit():
                yield int(task), int(attempt)


def boot_identity() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def started_at(pid: int, boot_time: float, tolerance: float = 0.1) -> bool:
    """Returns whether the process with this pid was started at `boot_time` seconds after boot."""
    ticks = start_ticks(pid)
    return ticks is not None and abs(ticks / _TICKS - boot_time) <= tolerance


def marked_processes(mark: bytes) -> list[int]:
    """Returns the pids whose environment contains `SHOAL_TASK=` followed by `mark`, except this process."""
    found = []
    wanted = MARK_NAME + b"=" + mark
    own = os.getpid()
    for pid in all_pids():
        if pid == own:
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        at = environment.find(wanted)
        if at == 0 or (at > 0 and environment[at - 1] == 0):
            found.append(pid)
    return found


def group_members(group: int) -> list[int]:
    """Returns the pids of a process group."""
    return _processes_with(2, group)


def _processes_with(field: int, value: int) -> list[int]:
    """Returns pids of living processes by a field of their `stat`, counted from the state."""
    found = []
    for pid in all_pids():
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if fields and int(fields[field]) == value and fields[0] != b"Z":
            found.append(pid)
    return found


def children_of_ours() -> list[int]:
    """Returns the pids of our children, including adopted orphans; not every kernel provides a list of them."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return _processes_with(1, own)


def dead_child(group: int | None = None) -> int | None:
    """Returns a child, or one in this process group, that has ended and can be reaped; None if there is none."""
    kind, number = (os.P_ALL, 0) if group is None else (os.P_PGID, group)
    try:
        dead = os.waitid(kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return dead.si_pid if dead is not None else None


def open_files(pid: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the regular files that a process has open, by the path of their descriptor below `/proc`."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, found


def is_open_for_writing(descriptor: str) -> bool:
    """Returns whether the descriptor at this path below `/proc` is open for writing."""
    flags = read_small(descriptor.replace("/fd/", "/fdinfo/")).partition(b"flags:")[2].split(None, 1)
    return bool(flags) and bool(int(flags[0], 8) & os.O_ACCMODE)


def signal_group(group: int, number: int) -> bool:
    """Sends a signal to a process group of ours; returns False if it is gone."""
    try:
        os.killpg(group, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False


def kill_process(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


_ENTRY = struct.Struct("<Qd")
_ENTRIES = 4096
"""Slots beyond this are not listed; their processes are still found by their marks."""


class ProcessTable:
    """The process table of the current run: a mapped file of pids and start times."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, _ENTRY.size * _ENTRIES)
            # Disk space is allocated now: a later write into a hole of a full disk would kill this process by a signal.
            os.pwrite(descriptor, bytes(_ENTRY.size * _ENTRIES), 0)
            self._map = mmap.mmap(descriptor, _ENTRY.size * _ENTRIES)
        finally:
            os.close(descriptor)

    def enter(self, slot: int, pid: int, boot_time: float) -> None:
        if slot < _ENTRIES:
            _ENTRY.pack_into(self._map, slot * _ENTRY.size, pid, boot_time)

    def close(self) -> None:
        self._map.close()


def read_table(path: str) -> list[tuple[int, float]]:
    """Returns pids and start times (seconds since boot) of the last run's processes; most of them ended long ago."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return []
    whole = len(data) - len(data) % _ENTRY.size
    return [(pid, moment) for pid, moment in _ENTRY.iter_unpack(data[:whole]) if 0 < pid < 1 << 31]
