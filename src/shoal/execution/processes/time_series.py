"""Time series of tasks: the optional file per task with a row per measurement, and the compact series in the ledger.

The files have the columns of `shoal monitor` (`shoal.compat.resource_monitor.series`); the run sends their header.
`native/series.c` and `native/course.c` do the same.
"""

from __future__ import annotations

import os

from shoal.execution.processes.sampler import Peaks, TreeUsage

COLUMNS = (
    "wall_clock",
    "cpu_time",
    "cores",
    "max_concurrent_processes",
    "virtual_memory",
    "memory",
    "swap_memory",
    "bytes_read",
    "bytes_written",
    "bytes_received",
    "bytes_sent",
    "bandwidth",
    "machine_load",
)
FOOTPRINT = ("total_files", "disk")

_HEADER = """\
# wall_clock: seconds since 1970; cpu_time: seconds since the command began; memory, disk and bytes in MB (2^20).
# cpu_time and the bytes grow from row to row; the other columns tell how it was at that moment.
"""

_MEBIBYTE = 1 << 20


def row(now: float, look: TreeUsage, cores: float, load: float) -> str:
    """Formats the columns that every file has; memory is rounded up to whole MiB, I/O down."""
    sizes = [-(-size // _MEBIBYTE) for size in (look.virtual, look.resident, look.swap)]
    words = [f"{now:.6f}", f"{look.cpu:.6f}", f"{cores:.3f}", look.processes, *sizes]
    words += [look.read // _MEBIBYTE, look.written // _MEBIBYTE, 0, 0, "0.000", int(load)]
    return " ".join(map(str, words))


class Series:
    """All files of one launcher."""

    def __init__(self, directory: str, header: str) -> None:
        self._directory = directory
        self._header = header
        self._titles: dict[int, tuple[int, int, str]] = {}
        """Task, attempt and command, by the pid of its first process."""
        self._open: dict[int, int] = {}

    def start(self, pid: int, task: int, attempt: int, command: str) -> None:
        """Registers a started task; its file is created at the first measurement."""
        self._titles[pid] = (task, attempt, command)

    def add(self, pid: int, now: float, peaks: Peaks, read: int, written: int) -> None:
        """Writes a row: the current state of the tree, with its I/O so far."""
        descriptor = self._open.get(pid)
        if descriptor is None:
            descriptor = self._open[pid] = self._begin(*self._titles[pid])
        look = peaks.last
        look.read, look.written = read, written
        _write(descriptor, row(now, look, peaks.cores.recent(), os.getloadavg()[0]) + "\n")

    def _begin(self, task: int, attempt: int, command: str) -> int:
        path = os.path.join(self._directory, f"{task}.{attempt}.series")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError:
            return -1
        about = command.replace("\r", " ").replace("\n", " ")
        _write(descriptor, f"# task {task}, attempt {attempt}: {about}\n{self._header}")
        return descriptor

    def end(self, pid: int) -> None:
        """Closes the file of an ended task."""
        self._titles.pop(pid, None)
        descriptor = self._open.pop(pid, -1)
        if descriptor >= 0:
            os.close(descriptor)


def _write(descriptor: int, text: str) -> None:
    """Writes text; on a full disk rows are dropped, and the run continues."""
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass


def header(with_footprint: bool) -> str:
    names = COLUMNS + FOOTPRINT if with_footprint else COLUMNS
    return f"{_HEADER}#{' '.join(names)}\n"
