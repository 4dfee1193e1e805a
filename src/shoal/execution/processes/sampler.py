"""Measures process trees by `/proc` and `wait4`, for the launcher in Python and `shoal monitor`.

A process belongs to the task it descends from. A process that was orphaned before it was first seen becomes a child of
this process, the subreaper. Its task is found by its process group, by an earlier sighting below its task, by the mark
in its environment, by the output file that it holds, or because no other task ran when it began. Without `/proc` only
the results of `wait4` are known. `native/tree.c` does the same.

The monitor starts once per command, so this module does not import `typing`, which would take a sixth of its start-up
time.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf

from shoal.execution.processes.process_table import (
    all_pids,
    children_of_ours,
    figures,
    kill_process,
    marks_of,
    open_files,
    read_small,
)

WINDOW_SECONDS = 1.0
"""Window for the cores of a task in a run; a shorter burst does not count as a need."""
_SHORT = 0.05
"""Over shorter intervals, clock ticks of 10 ms give no meaningful rate."""


class CoresWindow:
    """CPU seconds at the latest measurements, oldest first."""

    def __init__(self, started: float, seconds: float = WINDOW_SECONDS, *, idle_before: bool = False) -> None:
        """With `idle_before` the time before the start counts as idle until the window is full."""
        self._looks: deque[tuple[float, float]] = deque([(started, 0.0)])
        self._seconds = seconds
        self._least = 0.0 if idle_before else seconds
        self.most = 0.0

    @property
    def cpu(self) -> float:
        """Returns the CPU seconds so far."""
        return self._looks[-1][1]

    def note(self, now: float, cpu: float) -> None:
        """Adds a measurement. A process that is reaped between two readings may be missing for a moment."""
        looks = self._looks
        cpu = max(cpu, self.cpu)
        while len(looks) > 1 and looks[1][0] <= now - self._seconds:
            looks.popleft()
        stretch = now - looks[0][0]
        if stretch >= self._least:
            self.most = max(self.most, (cpu - looks[0][1]) / max(stretch, self._seconds))
        looks.append((now, cpu))

    def recent(self) -> float:
        """Returns the cores in use since the last measurement, or since an earlier one if that is too recent."""
        now, cpu = self._looks[-1]
        for moment, earlier in reversed(self._looks):
            if now - moment >= _SHORT:
                return (cpu - earlier) / (now - moment)
        return 0.0


Owner = tuple[int, int]
"""Task and attempt."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_RSS_UNIT = 1 if os.uname().sysname == "Darwin" else 1024
_BLOCK = 512
"""Bytes per unit of `ru_inblock` and `ru_oublock`."""
_FOREIGN_SECONDS = 10.0
"""How long the result is cached that a process is not ours."""
_PEAK_STEP = 1 / 64
"""Separating shared pages is expensive: done only if the plain sum exceeds the known peak by this fraction."""


class ReapedTime:
    """Resource usage of a task's processes that have been reaped."""

    __slots__ = ("block", "faults", "peak", "read", "switches", "system", "user", "written")

    def __init__(self, block: int = _BLOCK) -> None:
        """With a `block` of 0 bytes, I/O is taken from `/proc`, without pages of mapped files."""
        self.block = block
        self.user = self.system = 0.0
        self.peak = self.read = self.written = self.switches = self.faults = 0

    def add(self, usage: resource.struct_rusage, read: int, written: int, least_peak: int) -> None:
        """Adds one process. A peak that is not above `least_peak` says nothing; see `ProcessRunner._own_peak`."""
        self.user += usage.ru_utime
        self.system += usage.ru_stime
        self.read += max(read, usage.ru_inblock * self.block)
        self.written += max(written, usage.ru_oublock * self.block)
        self.switches += usage.ru_nvcsw + usage.ru_nivcsw
        self.faults += usage.ru_majflt
        if usage.ru_maxrss > least_peak:
            self.peak = max(self.peak, usage.ru_maxrss * _RSS_UNIT)

    def join(self, other: ReapedTime) -> None:
        self.user += other.user
        self.system += other.system
        self.read += other.read
        self.written += other.written
        self.switches += other.switches
        self.faults += other.faults
        self.peak = max(self.peak, other.peak)


class OrphanEvidence:
    """Further evidence of which task an orphan belongs to: the output file that it holds, and its start time."""

    def __init__(self, outputs: Mapping[tuple[int, int], Owner], begun: Sequence[tuple[float, Owner]]) -> None:
        self.outputs = outputs
        """By device and inode of the file into which a task writes; each task has its own."""
        self.begun = begun
        """When the tasks began, in seconds since boot."""

    def owner_by_output(self, pid: int) -> Owner | None:
        if not self.outputs:
            return None
        owners = (self.outputs.get((found.st_dev, found.st_ino)) for _, found in open_files(pid))
        return next((owner for owner in owners if owner is not None), None)

    def owner_by_time(self, start: int) -> Owner | None:
        """Returns the only task that existed at that tick."""
        there = [owner for begun, owner in self.begun if begun <= (start + 2) / _TICKS]  # both clocks are rounded
        return there[0] if len(there) == 1 else None


class TreeUsage:
    """A whole tree at one moment: CPU seconds so far, number of processes, bytes of memory; further values if
    requested."""

    __slots__ = ("cpu", "peak", "processes", "read", "resident", "swap", "switches", "virtual", "written")

    def __init__(
        self, cpu: float = 0.0, processes: int = 0, virtual: int = 0, resident: int = 0, swap: int = 0
    ) -> None:
        self.cpu = cpu
        self.processes = processes
        self.virtual = virtual
        self.resident = resident
        self.swap = swap
        self.peak = self.switches = self.read = self.written = 0


class TreeProcess:
    """One process at one moment; memory and I/O in bytes.

    CPU time is in seconds and includes reaped children; `read_detail` fills in what is 0 at first.
    """

    __slots__ = (
        *("cpu", "group", "parent", "peak", "pid", "read", "resident"),
        *("start", "state", "swap", "switches", "virtual", "written"),
    )

    def __init__(
        self, pid: int, parent: int, group: int, state: bytes, start: int, virtual: int, resident: int, cpu: float
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.state = state
        self.start = start
        self.virtual = virtual
        self.resident = resident
        self.cpu = cpu
        self.peak = self.swap = self.switches = self.read = self.written = 0

    @property
    def is_alive(self) -> bool:
        return self.state not in (b"Z", b"X")


class Peaks:
    """The maxima of a tree, and its last measurement."""

    __slots__ = ("all", "cores", "last", "most", "read", "resident", "swap", "virtual", "written")

    def __init__(self, started: float) -> None:
        self.resident = self.virtual = self.swap = self.most = self.all = self.read = self.written = 0
        self.cores = CoresWindow(started)
        self.last = TreeUsage()

    def take(self, now: float, processes: list[TreeProcess], buried: float) -> int:
        """Adds a measurement of the tree; returns its current bytes. `buried` is CPU time of reaped orphans."""
        own, virtual, resident = _memory_of(processes, self.resident * (1 + _PEAK_STEP))
        swap = sum(_swapped(process.pid) for process in own) if _swap_exists() else 0
        self.resident = max(self.resident, resident)
        self.virtual = max(self.virtual, virtual)
        self.swap = max(self.swap, swap)
        self.most = max(self.most, len(processes))
        if processes:
            self.cores.note(now, buried + sum(process.cpu for process in processes))
        self.last = TreeUsage(self.cores.cpu, len(processes), virtual, resident, swap)
        return resident


def look_at(processes: list[TreeProcess], spent: ReapedTime, known: float = inf) -> TreeUsage:
    """Adds up processes, with the values of `read_detail`, and the usage of reaped ones.

    Shared pages are separated only if the plain sum is above `known` bytes and above the peak of each process.
    """
    peak = max([spent.peak, *(max(process.resident, process.peak) for process in processes)])
    own, virtual, resident = _memory_of(processes, max(known, peak))
    cpu = spent.user + spent.system + sum(process.cpu for process in processes)
    look = TreeUsage(cpu, len(processes), virtual, resident, sum(process.swap for process in own))
    look.peak = peak
    look.switches = spent.switches + sum(process.switches for process in processes)
    look.read = spent.read + sum(process.read for process in processes)
    look.written = spent.written + sum(process.written for process in processes)
    return look


def _memory_of(processes: list[TreeProcess], known: float) -> tuple[list[TreeProcess], int, int]:
    """Returns the processes with memory of their own, and virtual and resident bytes of the tree.

    Shared pages are separated only if the plain sum is above `known`.
    """
    sizes = {process.pid: (process.virtual, process.resident) for process in processes}
    # A child that still shares its parent's memory is about to call exec, and has no memory of its own.
    own = [process for process in processes if sizes.get(process.parent) != (process.virtual, process.resident)]
    resident = sum(process.resident for process in own)
    if len(own) > 1 and resident > known:
        resident = _without_double_counting(own)
    return own, sum(process.virtual for process in own), resident


@cache
def _swap_exists() -> bool:
    return figures(read_small("/proc/meminfo")).get(b"SwapTotal", 0) > 0


def _swapped(pid: int) -> int:
    return figures(read_small(f"/proc/{pid}/status")).get(b"VmSwap", 0) * 1024


def _without_double_counting(processes: list[TreeProcess]) -> int:
    """Returns the bytes of a tree with each shared page divided among the processes that share it; at least those of
    the largest process.

    Measures twice, because in a tree that is just forking, pages that become shared between two readings would be
    counted twice. So would those of a process that ends, whose share passes to the others.
    """
    first = sum(map(_share, processes))
    second = [_share(process) for process in processes]
    gone = sum(process.resident for process, share in zip(processes, second, strict=True) if not share)
    return max(min(first, sum(second)) - gone, max(process.resident for process in processes))


def _share(process: TreeProcess) -> int:
    """Returns bytes with each shared page divided among the processes that share it."""
    shares = figures(read_small(f"/proc/{process.pid}/smaps_rollup"))
    if b"Pss" not in shares:  # no permission, or it has just ended and has no memory any more
        return figures(read_small(f"/proc/{process.pid}/status")).get(b"VmRSS", 0) * 1024
    return shares[b"Pss"] * 1024


def read_process(pid: int) -> TreeProcess | None:
    """Returns a process, which may be a zombie; None if there is none."""
    words = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(words) < 22:
        return None
    memory = (int(words[20]), int(words[21]) * _PAGE)
    cpu = sum(map(int, words[11:15])) / _TICKS
    return TreeProcess(pid, int(words[1]), int(words[2]), words[0], int(words[19]), *memory, cpu)


def read_detail(process: TreeProcess) -> None:
    """Reads the process's peak, swapped memory, context switches and I/O, which takes two more files."""
    status = figures(read_small(f"/proc/{process.pid}/status"))
    process.peak = status.get(b"VmHWM", 0) * 1024
    process.swap = status.get(b"VmSwap", 0) * 1024
    process.switches = status.get(b"voluntary_ctxt_switches", 0) + status.get(b"nonvoluntary_ctxt_switches", 0)
    process.read, process.written = traffic_of(process.pid)


class Trees:
    """Assigns the processes below this one to tasks."""

    def __init__(self, run: bytes = b"") -> None:
        """With a `run`, the mark of its tasks in a process's environment shows which task it belongs to."""
        self._run = run
        self._own = os.getpid()
        self._known: dict[int, tuple[int, Owner | None]] = {}
        """Start and owner of processes seen at the last scan; owner None: a child of ours of unknown task."""
        self._foreign: set[int] = set()
        self._foreign_until = 0.0
        self._orphans: dict[int, Owner | None] = {}
        """Children of ours that were no task's first process at the last scan."""
        self.excluded: set[int] = set()
        """Children of ours that belong to no task."""
        self.scanned_at = 0.0
        """When the last scan was done, by the monotonic clock."""
        self.is_unsettled = False
        """After a thorough scan: the owner of some process cannot be determined yet."""

    def exclude_present(self) -> None:
        """Excludes all present children: a shell that called exec to become this program may have started some before.

        Call it before the first task starts. It also saves the first scans from reading other programs' processes.
        """
        self._foreign.update(all_pids())
        self._foreign_until = time.monotonic() + _FOREIGN_SECONDS
        self.excluded.update(children_of_ours())

    def scan(
        self,
        leaders: Mapping[int, Owner],
        peaks: Mapping[Owner, Peaks],
        signs: OrphanEvidence,
        *,
        thoroughly: bool = False,
    ) -> dict[Owner, list[TreeProcess]]:
        """Returns the living processes of each task and counts new ones; a thorough scan uses no cached owners."""
        self.scanned_at = now = time.monotonic()
        if thoroughly or now > self._foreign_until:
            self._foreign.clear()
            self._foreign_until = now + _FOREIGN_SECONDS
        found: dict[int, TreeProcess] = {}
        for pid in all_pids():
            if (pid not in self._foreign or pid in leaders) and (process := read_process(pid)) is not None:
                found[pid] = process
        owners: dict[int, Owner | None] = {}
        below: set[int] = set()
        for process in found.values():
            self._settle(process, found, owners, below, leaders, signs)
        trees: dict[Owner, list[TreeProcess]] = {}
        for pid, owner in owners.items():
            process = found[pid]
            if owner is not None and process.is_alive:
                trees.setdefault(owner, []).append(process)
                if owner in peaks and self._known.get(pid, (0, None)) != (process.start, owner):
                    peaks[owner].all += 1
        children = {pid for pid in owners if found[pid].parent == self._own}
        ours = {pid for pid, owner in owners.items() if owner is not None} | children
        self._foreign.update(pid for pid in found if pid not in ours)
        self._known = {pid: (found[pid].start, owners[pid]) for pid in owners if pid in ours}
        self._orphans = {pid: owners[pid] for pid in children if pid not in leaders}
        self.is_unsettled = thoroughly and any(
            owner is None and self._is_undetermined(found[pid], found) for pid, owner in owners.items()
        )
        return trees

    def may_have_orphans(self, leaders: Mapping[int, Owner], gone: int) -> bool:
        """Returns whether a task may have orphans after its first process, which is still among the leaders, and its
        group have ended. The kernel's list of our children answers that cheaply."""
        known = self._orphans
        return leaders[gone] in known.values() or any(
            pid not in leaders and pid not in known for pid in children_of_ours()
        )

    def forget_orphan(self, pid: int) -> None:
        """Removes an orphan that has been reaped."""
        self._orphans.pop(pid, None)
        self.excluded.discard(pid)

    def _is_undetermined(self, process: TreeProcess, found: Mapping[int, TreeProcess]) -> bool:
        """Returns whether its owner cannot be determined yet: it is calling exec, or lost its parent between two
        readings."""
        if not process.is_alive:
            return False
        if process.parent != self._own:
            return process.parent > 1 and process.parent not in found
        # It may have called exec since we read its mark.
        return not read_small(f"/proc/{process.pid}/cmdline") or any(marks_of(process.pid, self._run))

    def _settle(
        self,
        process: TreeProcess,
        found: Mapping[int, TreeProcess],
        owners: dict[int, Owner | None],
        below: set[int],
        leaders: Mapping[int, Owner],
        signs: OrphanEvidence,
    ) -> None:
        """Finds the owner of a process and of its ancestors; `below` are our descendants."""
        path: list[TreeProcess] = []
        at: TreeProcess | None = process
        owner: Owner | None = None
        while at is not None and at.pid not in owners and len(path) < len(found):
            path.append(at)
            owner = self._owner_of(at, leaders, signs)
            if owner is not None or at.parent == self._own:
                below.add(at.pid)
                break
            at = found.get(at.parent)
        if owner is None and at is not None:
            owner = owners.get(at.pid)
        is_below = at is not None and at.pid in below
        for one in path:
            owners[one.pid] = owner
        if is_below:
            below.update(one.pid for one in path)
        if owner is None and is_below:  # below an orphan without any evidence of its task
            for one in path:
                own = self._mark(one.pid) or signs.owner_by_output(one.pid)
                above: TreeProcess | None = one
                while own is not None and above is not None and owners.get(above.pid) is None and above.pid in below:
                    owners[above.pid] = own
                    above = found.get(above.parent)

    def _owner_of(self, process: TreeProcess, leaders: Mapping[int, Owner], signs: OrphanEvidence) -> Owner | None:
        """Returns the owner, as far as it can be determined without the parent."""
        leader = leaders.get(process.pid) or leaders.get(process.group)
        if leader is not None:
            return leader
        start, owner = self._known.get(process.pid, (0, None))
        if start == process.start and owner is not None and any(owner == each for _, each in signs.begun):
            return owner
        if process.parent != self._own or process.pid in self.excluded:
            return None
        # Read each time: during exec a process has no environment.
        found = self._mark(process.pid) or signs.owner_by_output(process.pid)
        return found or (signs.owner_by_time(process.start) if process.is_alive else None)

    def _mark(self, pid: int) -> Owner | None:
        return next(iter(marks_of(pid, self._run)), None) if self._run else None

    def owner_of_orphan(self, pid: int, leaders: Mapping[int, Owner]) -> Owner | None:
        """Returns the owner of an orphan that has ended and is our child now."""
        process = read_process(pid)
        if process is None:
            return None
        start, owner = self._known.get(pid, (0, None))
        if process.group in leaders:
            return leaders[process.group]
        if start == process.start and owner is not None:
            return owner
        return next(iter(leaders.values())) if len(leaders) == 1 else None


def traffic_of(pid: int) -> tuple[int, int]:
    """Returns bytes read and written by a process and the children it reaped; a zombie still shows them."""
    traffic = figures(read_small(f"/proc/{pid}/io"))
    return traffic.get(b"rchar", 0), traffic.get(b"write_bytes", 0)


def reap_child(
    pid: int, spent: ReapedTime, least_peak: int, *, with_traffic: bool = True
) -> tuple[int, resource.struct_rusage]:
    """Reaps a dead child and adds its usage to `spent`. Reads its I/O counters first: only a zombie still has them."""
    read, written = traffic_of(pid) if with_traffic else (0, 0)
    _, status, usage = os.wait4(pid, 0)
    spent.add(usage, read, written, least_peak)
    return status, usage


def end_processes(find: Callable[[], list[TreeProcess] | None], seconds: float, wait: Callable[[], object]) -> bool:
    """Kills what `find` returns, repeatedly with a `wait` in between, until it returns None.

    Once is not enough: the children of each killed process may become ours. Returns False if `seconds` did not suffice.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = find()
        if left is None:
            return True
        for process in left:
            kill_process(process.pid)
        wait()
    return False


def mebibytes(amount: int) -> str:
    """Formats an amount of memory or disk for a message."""
    return f"{amount / (1 << 20):.1f}".removesuffix(".0") + " MiB"
