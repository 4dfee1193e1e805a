"""Merging of what was seen: processes into a sample, samples and ends into the figures of the summary. Pure.

Why several sources: a look at `/proc` misses what happens between two looks, while what `wait4` tells of an ended
process is exact but comes late and says nothing of processes that ran at the same time. Figures that only grow (CPU
time, bytes, context switches) are the sum of what ended processes left behind and what the living ones show; the kernel
adds the share of a reaped child to its parent, so nothing between two looks is lost. Peaks are the largest of the sums
over the tree at each look, of the largest own peak of any process seen alive (`VmHWM`), and of `ru_maxrss` of those
that have ended.
"""

from __future__ import annotations

from collections import deque

from shoal.monitor.fields import MEGABYTE

CORES_WINDOW = 180.0
"""Cores are CPU time per wall time over so many seconds; a shorter burst does not count as a need."""


class Process:
    """One process at one moment; memory and traffic in bytes, CPU time in seconds with its reaped children's."""

    __slots__ = ("cpu", "parent", "peak", "pid", "read", "resident", "swap", "switches", "virtual", "written")

    def __init__(self, pid: int, parent: int, cpu: float, virtual: int, resident: int) -> None:
        self.pid = pid
        self.parent = parent
        self.cpu = cpu
        self.virtual = virtual
        self.resident = resident
        self.peak = resident
        self.swap = 0
        self.switches = 0
        self.read = 0
        self.written = 0


class Ended:
    """What all reaped processes left behind."""

    __slots__ = ("cpu", "peak", "read", "switches", "written")

    def __init__(self) -> None:
        self.cpu = 0.0
        self.peak = 0
        self.switches = 0
        self.read = 0
        self.written = 0


class Sample:
    """The whole tree at one moment."""

    __slots__ = ("count", "cpu", "peak", "read", "resident", "swap", "switches", "virtual", "written")

    def __init__(self, processes: list[Process], ended: Ended) -> None:
        own = _with_own_memory(processes)
        self.count = len(processes)
        self.cpu = ended.cpu + sum(process.cpu for process in processes)
        self.switches = ended.switches + sum(process.switches for process in processes)
        self.read = ended.read + sum(process.read for process in processes)
        self.written = ended.written + sum(process.written for process in processes)
        self.virtual = sum(process.virtual for process in own)
        self.resident = sum(process.resident for process in own)
        self.swap = sum(process.swap for process in own)
        self.peak = max([ended.peak, *(process.peak for process in processes)])


def _with_own_memory(processes: list[Process]) -> list[Process]:
    """Leaves out a child that still has its parent's memory: it is about to execute something, and has none itself."""
    sizes = {process.pid: (process.virtual, process.resident) for process in processes}
    return [process for process in processes if sizes.get(process.parent) != (process.virtual, process.resident)]


class Usage:
    """The figures of one command from its start on, with the moments of their peaks."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.values: dict[str, float] = {"start": start}
        self.peak_times: dict[str, float] = {"start": 0.0}
        self._window: deque[tuple[float, float]] = deque([(start, 0.0)])

    def note(self, name: str, value: float, now: float) -> None:
        """Raises a figure, if it is higher than ever before."""
        if value > self.values.get(name, 0.0):
            self.values[name] = value
            self.peak_times[name] = now - self.start

    def take(self, sample: Sample, now: float) -> None:
        """Merges a look at the tree."""
        note = self.note
        note("end", now, now)
        note("wall_time", now - self.start, now)
        note("cpu_time", sample.cpu, now)
        note("memory", max(sample.resident, sample.peak) / MEGABYTE, now)
        note("virtual_memory", sample.virtual / MEGABYTE, now)
        note("swap_memory", sample.swap / MEGABYTE, now)
        note("bytes_read", sample.read / MEGABYTE, now)
        note("bytes_written", sample.written / MEGABYTE, now)
        note("context_switches", sample.switches, now)
        note("max_concurrent_processes", sample.count, now)
        note("cores", self._cores(sample.cpu, now), now)

    def _cores(self, cpu: float, now: float) -> float:
        window = self._window
        while len(window) > 1 and window[1][0] <= now - CORES_WINDOW:
            window.popleft()
        window.append((now, cpu))
        return (cpu - window[0][1]) / max(CORES_WINDOW, now - window[0][0])

    def finish(self, end: float) -> None:
        """Closes the account; `cores` is not below the average over the whole time."""
        wall = end - self.start
        self.note("end", end, end)
        self.note("wall_time", wall, end)
        average = self.values.get("cpu_time", 0.0) / wall if wall > 0 else 0.0
        self.note("cores_avg", average, end)
        self.note("cores", average, end)
