"""Time series on request, for the launcher in Python: a file per task that was looked at, a row per look.

The columns are those of `shoal monitor` (`shoal.compat.resource_monitor.series`); their names come from the engine.
`native/series.c` does the same.
"""

from __future__ import annotations

import os

from shoal.execution.processes.sampler import Peaks, TreeLook

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


def row(now: float, look: TreeLook, cores: float, load: float) -> str:
    """The columns that every series has; memory is rounded up to whole mebibytes, traffic down."""
    sizes = [-(-size // _MEBIBYTE) for size in (look.virtual, look.resident, look.swap)]
    words = [f"{now:.6f}", f"{look.cpu:.6f}", f"{cores:.3f}", look.processes, *sizes]
    words += [look.read // _MEBIBYTE, look.written // _MEBIBYTE, 0, 0, "0.000", int(load)]
    return " ".join(map(str, words))


class Series:
    """All series of one launcher."""

    def __init__(self, directory: str, header: str) -> None:
        self._directory = directory
        self._header = header
        self._titles: dict[int, tuple[int, int, str]] = {}
        """Task, attempt and command, by the pid of its first process."""
        self._open: dict[int, int] = {}

    def start(self, pid: int, task: int, attempt: int, command: str) -> None:
        """A task was started; its file is made when it is looked at."""
        self._titles[pid] = (task, attempt, command)

    def add(self, pid: int, now: float, peaks: Peaks, read: int, written: int) -> None:
        """A row: how the tree is at this moment, with what it has read and written."""
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
        """The task is over."""
        self._titles.pop(pid, None)
        descriptor = self._open.pop(pid, -1)
        if descriptor >= 0:
            os.close(descriptor)


def _write(descriptor: int, text: str) -> None:
    """A disk without room costs rows, not the run."""
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass


def header(with_footprint: bool) -> str:
    names = COLUMNS + FOOTPRINT if with_footprint else COLUMNS
    return f"{_HEADER}#{' '.join(names)}\n"
