"""Merging of looks at the process tree into the figures of the summary. Pure.

Why several sources: a look at `/proc` misses what happens between two looks, while what `wait4` tells of an ended
process is exact but comes late and says nothing of processes that ran at the same time. Figures that only grow (CPU
time, bytes, context switches) are the sum of what ended processes left behind and what the living ones show; the kernel
adds the share of a reaped child to its parent, so nothing between two looks is lost. Peaks are the largest of the sums
over the tree at each look, of the largest own peak of any process seen alive (`VmHWM`), and of `ru_maxrss` of those
that have ended.
"""

from __future__ import annotations

from shoal.compat.resource_monitor.fields import MEGABYTE
from shoal.execution.processes.sampler import CoresWindow, TreeLook

CORES_WINDOW = 180.0
"""Cores are CPU time per wall time over so many seconds; a shorter burst does not count as a need."""


class CommandUsage:
    """The figures of one command from its start on, with the moments of their peaks."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.values: dict[str, float] = {"start": start}
        self.peak_times: dict[str, float] = {"start": 0.0}
        self._cores = CoresWindow(start, CORES_WINDOW, idle_before=True)

    def note(self, name: str, value: float, now: float) -> None:
        """Raises a figure, if it is higher than ever before."""
        if value > self.values.get(name, 0.0):
            self.values[name] = value
            self.peak_times[name] = now - self.start

    def take(self, look: TreeLook, now: float) -> None:
        """Merges a look at the tree."""
        note = self.note
        note("end", now, now)
        note("wall_time", now - self.start, now)
        note("cpu_time", look.cpu, now)
        note("memory", max(look.resident, look.peak) / MEGABYTE, now)
        note("virtual_memory", look.virtual / MEGABYTE, now)
        note("swap_memory", look.swap / MEGABYTE, now)
        note("bytes_read", look.read / MEGABYTE, now)
        note("bytes_written", look.written / MEGABYTE, now)
        note("context_switches", look.switches, now)
        note("max_concurrent_processes", look.processes, now)
        self._cores.note(now, look.cpu)
        note("cores", self._cores.most, now)

    def finish(self, end: float) -> None:
        """Closes the account; `cores` is not below the average over the whole time."""
        wall = end - self.start
        self.note("end", end, end)
        self.note("wall_time", wall, end)
        average = self.values.get("cpu_time", 0.0) / wall if wall > 0 else 0.0
        self.note("cores_avg", average, end)
        self.note("cores", average, end)
