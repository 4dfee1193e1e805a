"""Time series of tasks: the optional file per task with a row per measurement, and the compact series in the ledger.

The files have the columns of `shoal monitor` (`shoal.compat.resource_monitor.series`); the run sends their header.
`native/series.c` and `native/course.c` do the same.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

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


MOST_POINTS = 60
_POINT = struct.Struct("<5I")
_LARGEST = (1 << 32) - 1
_KIBIBYTE = 1024


class UsagePoint(NamedTuple):
    """Times in seconds, amounts in bytes."""

    age: float
    memory: int
    cpu: float
    read: int
    written: int


def pack(points: Iterable[UsagePoint]) -> bytes:
    """Encodes points for the ledger."""
    return b"".join(_POINT.pack(*map(_cut, _figures(point))) for point in points)


def _figures(point: UsagePoint) -> tuple[float, ...]:
    sizes = (point.memory / _KIBIBYTE, point.read / _KIBIBYTE, point.written / _KIBIBYTE)
    return (point.age * 1000, sizes[0], point.cpu * 100, *sizes[1:])


def _cut(value: float) -> int:
    return max(0, min(_LARGEST, int(value)))


def unpack(data: bytes) -> list[UsagePoint]:
    """Decodes points, without an incomplete one at the end. Makes cumulative values non-decreasing: when processes are
    killed together, the last measurement sees only some of them."""
    whole = data[: len(data) // _POINT.size * _POINT.size]
    found: list[UsagePoint] = []
    cpu = read = written = 0
    for age, memory, *so_far in _POINT.iter_unpack(whole):
        cpu, read, written = map(max, (cpu, read, written), so_far)
        found.append(UsagePoint(age / 1000, memory * _KIBIBYTE, cpu / 100, read * _KIBIBYTE, written * _KIBIBYTE))
    return found


LEAST_SPACING = 0.2
"""Minimum seconds between two points; doubles when there are too many points."""
FIRST_AGE = 0.1
"""Age at the first point: shorter attempts cost nothing."""
LEAST_AGE = 1.0
"""Minimum age of an attempt whose series is reported."""


class UsageSeries:
    """The series of one attempt."""

    def __init__(self) -> None:
        self._points: list[UsagePoint] = []
        self._spacing = LEAST_SPACING
        self._memory = 0

    def is_due(self, age: float, memory: int) -> bool:
        """Records the memory at a measurement; returns whether a new point is due."""
        if not self._points:
            self._memory = memory
            return age >= FIRST_AGE
        self._memory = max(self._memory, memory)
        return age - self._points[-1].age >= 0.9 * self._spacing

    def add(self, age: float, cpu: float, read: int, written: int) -> None:
        """Adds a point; its memory is the maximum since the previous point."""
        points = self._points
        if len(points) == MOST_POINTS:
            pairs = zip(points[::2], points[1::2], strict=True)
            points[:] = [second._replace(memory=max(first.memory, second.memory)) for first, second in pairs]
            self._spacing *= 2
        points.append(UsagePoint(age, self._memory, cpu, read, written))
        self._memory = 0

    def end(self, age: float, cpu: float, read: int, written: int) -> bytes:
        """Returns the encoded series; empty for short attempts. The memory at the end is unknown by then."""
        if not self._points or age < LEAST_AGE:
            return b""
        self._memory = max(self._memory, self._points[-1].memory)
        self.add(age, cpu, read, written)
        return pack(self._points)
