"""The processes of the command: finding them, looking at them, reaping them, ending them. Linux's `/proc`.

The monitor is a subreaper, so whatever the command starts stays below it: an orphan becomes our child, also if it left
its process group or session. Where the system has no subreapers, an orphan is lost from sight.
"""

from __future__ import annotations

import os
import signal
import time

from shoal.monitor.spawn import Command
from shoal.monitor.usage import Ended, Process, Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FOREIGN_SECONDS = 10.0
"""How long it is believed that a process is not ours; its number will not go to one of ours in that time."""
_END_SECONDS = 10.0
_TELLS_SHARES = os.path.exists("/proc/self/smaps_rollup")


def read_file(path: str) -> bytes:
    """The content of a file below `/proc`; nothing if it is gone or not for us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 16384)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _all_names() -> list[str]:
    """What there is in `/proc`; where there is none, only what `wait4` tells is known."""
    try:
        return os.listdir("/proc")
    except OSError:
        return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def figures(data: bytes) -> dict[bytes, int]:
    """The numbers of a file with lines of `Name: number ...`."""
    found = {}
    for line in data.splitlines():
        name, _, rest = line.partition(b":")
        first = rest.split(None, 1)[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found


class Tree:
    """All processes below this one."""

    def __init__(self) -> None:
        self.ended = Ended()
        self.total = 0
        """How many processes were ever seen."""
        self.status: int | None = None
        """What `wait4` said of the command itself."""
        self.root_peak_below = 0
        """Bytes that the command's own peak was not above, if that is all that `wait4` can tell."""
        self._own = os.getpid()
        self._root = 0
        self._floor = 0
        self._head_start = 0.0
        self._seen: set[int] = set()
        self._earlier: set[int] = set()
        self._foreign: set[int] = set()
        self._foreign_until = time.monotonic() + _FOREIGN_SECONDS

    def prepare(self) -> None:
        """To be called before the command is started: whatever is there now is not ours, and need not be looked at.

        Not even if it is below us: a shell that becomes the monitor may have started something before.
        """
        names = _all_names()
        if _has_children():
            found = self._look(names)
            self._earlier = {process.pid for process in found.values() if process.parent == self._own}
        self._foreign.update(int(name) for name in names if name.isdigit())

    def begin(self, command: Command) -> None:
        self._root, self._floor, self._head_start = command.pid, command.floor, command.head_start
        self._count(command.pid)

    def _count(self, pid: int) -> None:
        if pid not in self._seen:
            self._seen.add(pid)
            self.total += 1

    def glance(self) -> Sample:
        """Looks only at the command itself, which has just begun and may be gone before more could be looked at."""
        processes = list(self._look([str(self._root)]).values())
        for process in processes:
            _look_closer(process)
        return Sample(processes, self.ended)

    def processes(self) -> list[Process]:
        """Our processes that are alive, parents before their children."""
        found = self._look(_all_names())
        children: dict[int, list[Process]] = {}
        for process in found.values():
            children.setdefault(process.parent, []).append(process)
        ours: list[Process] = []
        waiting = [process for process in children.get(self._own, []) if process.pid not in self._earlier]
        while waiting:
            process = waiting.pop()
            ours.append(process)
            waiting += children.get(process.pid, [])
        pids = {process.pid for process in ours}
        self._foreign.update(pid for pid in found if pid not in pids)
        for pid in pids:
            self._count(pid)
        return ours

    def _look(self, names: list[str]) -> dict[int, Process]:
        now = time.monotonic()
        if now > self._foreign_until:
            self._foreign = set()
            self._foreign_until = now + _FOREIGN_SECONDS
        foreign, found = self._foreign, {}
        for name in names:
            if not name.isdigit():
                continue
            pid = int(name)
            if pid in foreign:
                continue
            words = read_file(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(words) > 21 and words[0] not in (b"Z", b"X"):
                cpu = (int(words[11]) + int(words[12]) + int(words[13]) + int(words[14])) / _TICKS
                found[pid] = Process(pid, int(words[1]), cpu, int(words[20]), int(words[21]) * _PAGE)
        return found

    def sample(self, known_peak: float) -> Sample:
        """Looks at everything; shared pages are told apart only if the sum would be above `known_peak` bytes."""
        processes = self.processes()
        for process in processes:
            _look_closer(process)
        sample = Sample(processes, self.ended)
        if len(processes) > 1 and sample.resident > max(known_peak, sample.peak):
            sample.resident = min(sample.resident, _without_double_counting(processes))
        return sample

    def reap(self) -> bool:
        """Takes in all that have ended; True once the command itself has."""
        while True:
            try:
                peeked = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if peeked is None:
                break
            self._take_in(peeked.si_pid)
        return self.status is not None

    def _take_in(self, pid: int) -> None:
        """Reaps a zombie, after asking for what only a zombie still tells."""
        traffic = figures(read_file(f"/proc/{pid}/io"))
        _, status, spent = os.wait4(pid, 0)
        if pid in self._earlier:
            self._earlier.discard(pid)
            return
        self._count(pid)
        self._seen.discard(pid)  # the number may be given out again
        ended = self.ended
        ended.cpu += spent.ru_utime + spent.ru_stime
        ended.switches += spent.ru_nvcsw + spent.ru_nivcsw
        ended.read += traffic.get(b"rchar", 0)
        ended.written += traffic.get(b"write_bytes", 0)
        peak = spent.ru_maxrss * 1024
        if pid == self._root:
            self.status = status
            if peak <= self._floor:
                self.root_peak_below, peak = peak, 0
            ended.cpu -= min(ended.cpu, self._head_start)
        ended.peak = max(ended.peak, peak)

    def end(self) -> None:
        """Ends everything below us. It is stopped first, so that nothing is started while we are at it."""
        deadline = time.monotonic() + _END_SECONDS
        stopped: set[int] = set()
        while time.monotonic() < deadline:
            pids = [process.pid for process in self.processes() if process.pid not in stopped]
            if not pids:
                break
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            stopped.update(pids)
        while (pids := [process.pid for process in self.processes()]) and time.monotonic() < deadline:
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], 0.01)
            self.reap()
        self.reap()


def _look_closer(process: Process) -> None:
    status = figures(read_file(f"/proc/{process.pid}/status"))
    process.peak = max(process.resident, status.get(b"VmHWM", 0) * 1024)
    process.swap = status.get(b"VmSwap", 0) * 1024
    process.switches = status.get(b"voluntary_ctxt_switches", 0) + status.get(b"nonvoluntary_ctxt_switches", 0)
    traffic = figures(read_file(f"/proc/{process.pid}/io"))
    process.read = traffic.get(b"rchar", 0)
    process.written = traffic.get(b"write_bytes", 0)


def _without_double_counting(processes: list[Process]) -> int:
    """Bytes of the tree with each shared page divided among those who share it; not below the largest process.

    Asked twice: what a process had that has ended meanwhile may have been counted again, as the part of the others.
    """
    first = sum(map(_share, processes))
    second = [_share(process) for process in processes]
    gone = sum(process.resident for process, share in zip(processes, second, strict=True) if not share)
    return max(min(first, sum(second)) - gone, max(process.resident for process in processes))


def _share(process: Process) -> int:
    """Bytes of memory, with a part of what is shared; nothing if the process has just ended."""
    if not _TELLS_SHARES:
        return process.resident
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:
            return figures(file.read()).get(b"Pss", 0) * 1024
    except PermissionError:
        return process.resident
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
