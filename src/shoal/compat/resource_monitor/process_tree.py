"""Starts the command of the monitor, and samples, reaps and kills its process tree; records its open files.

The tree consists of all descendants of the monitor. The monitor is a subreaper, so it becomes the parent of orphans,
even if they have left their process group or session. On systems without subreapers, orphans are not measured.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import time
from collections.abc import Iterable

from shoal.compat.resource_monitor.summary import MEGABYTE
from shoal.errors import InputError
from shoal.execution.processes.process_table import dead_child, is_open_for_writing, kill_process, open_files
from shoal.execution.processes.sampler import (
    OrphanEvidence,
    Owner,
    ReapedTime,
    TreeProcess,
    Trees,
    TreeUsage,
    end_processes,
    look_at,
    read_detail,
    read_process,
    reap_child,
)

SHELL = "/bin/sh"
_PARENT_DEATH_SIGNAL = 1
_PAGE_BYTES = 4096
_PAGE_COUNTERS = 3
"""Number of page counters of a process: anonymous pages, pages of files, and shared pages."""


def find_program(name: str) -> str:
    """Returns the path of the program that will be executed."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(place, name) for place in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if "/" in name and os.path.exists(name):
        raise InputError(f"{name!r} cannot be executed", remedy="check its type and its permissions")
    raise InputError(f"program {name!r} not found", remedy="check its spelling and PATH")


def program_type(path: str) -> str:
    """Returns `dynamic`, `static`, the interpreter line of a script, or `unknown`."""
    try:
        with open(path, "rb") as file:
            head = file.read(_PAGE_BYTES)
    except OSError:
        return "unknown"
    if head.startswith(b"#!"):
        return head.partition(b"\n")[0].decode("utf-8", "replace").strip()
    if not head.startswith(b"\x7fELF"):
        return "unknown"
    return "dynamic" if _names_a_loader(head) else "static"


def _names_a_loader(head: bytes) -> bool:
    """Whether an ELF file has a program header of the type `PT_INTERP` (3)."""
    wide, little = head[4] == 2, head[5] == 1

    def value(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], "little" if little else "big")

    table = value(32, 8) if wide else value(28, 4)
    size, count = (value(54, 2), value(56, 2)) if wide else (value(42, 2), value(44, 2))
    return any(value(table + index * size, 4) == 3 for index in range(count))


def _slack(processors: int) -> int:
    """Returns the bytes by which the reported peak of the forked copy can still grow without additional memory.

    The kernel counts pages per processor and adds them to the total in batches. So the total is off by at most one
    batch per processor involved: the one that forked, and the one on which the copy runs.
    """
    batch = max(32, 2 * processors)
    return _PAGE_COUNTERS * batch * min(processors, 2) * os.sysconf("SC_PAGE_SIZE")


class StartedCommand:
    """A started command, with what the forked copy of the monitor used before it became the command.

    Peaks in `wait4` below `peak_floor` bytes may be those of the copy; `cpu_before` seconds of CPU time are those of
    the copy.
    """

    def __init__(self, pid: int, peak_floor: int, cpu_before: float) -> None:
        self.pid = pid
        self.peak_floor = peak_floor
        self.cpu_before = cpu_before


def start(path: str, words: list[str], mask: Iterable[int]) -> StartedCommand:
    """Starts the program and returns after `exec`; `mask` are the signals that the program blocks."""
    libc = ctypes.CDLL(None)
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _exec_program(path, words, mask, libc, parent, writer)
    os.close(writer)
    reported = b""
    while chunk := os.read(reader, 64):
        reported += chunk
    os.close(reader)
    numbers = [int(word) for word in reported.split()]
    if len(numbers) != 2:
        os.waitpid(pid, 0)
        raise InputError(f"cannot start {words[0]!r}: {os.strerror(numbers[-1] if numbers else errno.EIO)}")
    return StartedCommand(pid, numbers[0] * 1024 + _slack(os.cpu_count() or 1), numbers[1] / 1e6)


def _exec_program(
    path: str, words: list[str], mask: Iterable[int], libc: ctypes.CDLL, parent: int, writer: int
) -> None:
    """Executes the program in the forked child; never returns.

    Before that, sends the child's peak memory and CPU time, or the errno of a failed `exec`, through the pipe `writer`.
    """
    try:
        libc.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and programs inherit ignored signals
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            # Fails, but touches every page that the call of `execv` below needs, so that the peak includes them.
            os.execv("", words)
        except OSError:
            pass
        spent = resource.getrusage(resource.RUSAGE_SELF)
        os.write(writer, b"%d %d" % (spent.ru_maxrss, (spent.ru_utime + spent.ru_stime) * 1e6))
        try:
            os.execv(path, words)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv(SHELL, [SHELL, path, *words[1:]])  # a script without an interpreter line
    except OSError as error:
        os.write(writer, b" %d" % (error.errno or errno.EIO))
    finally:
        os._exit(127)


_COMMAND: Owner = (0, 0)
_ALL_OURS = OrphanEvidence({}, [(0.0, _COMMAND)])
"""There is only one command, so every descendant process belongs to it."""
_END_SECONDS = 10.0
_END_PAUSE = 0.01


class Tree:
    """All descendant processes that the command has started."""

    def __init__(self) -> None:
        self.spent = ReapedTime(block=0)
        self.total = 0
        """Number of processes seen so far."""
        self.status: int | None = None
        """Wait status of the command itself."""
        self.root_peak_below = 0
        """Upper bound of the command's own peak in bytes, if `wait4` gives only a bound."""
        self._trees = Trees()
        self._command = StartedCommand(0, 0, 0.0)
        self._seen: set[int] = set()

    def prepare(self) -> None:
        """Excludes the existing child processes; called before the command is started."""
        self._trees.exclude_present()

    def begin(self, command: StartedCommand) -> None:
        self._command = command
        self._count(command.pid)

    def _count(self, pid: int) -> None:
        if pid not in self._seen:
            self._seen.add(pid)
            self.total += 1

    def look_at_command(self) -> TreeUsage:
        """Samples the command's own process only: it has just started, and may end before a full sample is complete."""
        process = read_process(self._command.pid)
        return self._look_at([process] if process is not None and process.is_alive else [])

    def _look_at(self, processes: list[TreeProcess], known_peak: float = 0.0) -> TreeUsage:
        for process in processes:
            read_detail(process)
        return look_at(processes, self.spent, known_peak)

    def processes(self, *, thoroughly: bool = False) -> list[TreeProcess]:
        """Returns the living processes of the command."""
        ours = self._trees.scan({}, {}, _ALL_OURS, thoroughly=thoroughly).get(_COMMAND, [])
        for process in ours:
            self._count(process.pid)
        return ours

    def look(self, known_peak: float) -> TreeUsage:
        """Samples all processes. Shared pages are determined only if the sum exceeds `known_peak` bytes: it is slow."""
        return self._look_at(self.processes(), known_peak)

    def reap(self) -> bool:
        """Reaps all ended processes; returns True after the command itself has ended."""
        while (pid := dead_child()) is not None:
            self._reap_process(pid)
        return self.status is not None

    def _reap_process(self, pid: int) -> None:
        is_ours, command = pid not in self._trees.excluded, self._command
        peak_floor = command.peak_floor // 1024 if pid == command.pid else 0
        status, usage = reap_child(pid, self.spent if is_ours else ReapedTime(), peak_floor)
        self._trees.forget_orphan(pid)
        if is_ours:
            self._count(pid)
            self._seen.discard(pid)  # the system may reuse the pid
        if pid == command.pid:
            self.status = status
            if usage.ru_maxrss <= peak_floor:
                self.root_peak_below = usage.ru_maxrss * 1024
            self.spent.user -= min(self.spent.user + self.spent.system, command.cpu_before)

    def end(self) -> None:
        """Kills all processes of the command. Stops them first, so that none can start another one meanwhile."""
        deadline = time.monotonic() + _END_SECONDS
        stopped: set[int] = set()
        while time.monotonic() < deadline:
            pids = {process.pid for process in self.processes(thoroughly=True)} - stopped
            if not pids:
                break
            for pid in pids:
                kill_process(pid, signal.SIGSTOP)
            stopped |= pids
        end_processes(lambda: self.processes(thoroughly=True) or None, deadline - time.monotonic(), self._reap_soon)
        self.reap()

    def _reap_soon(self) -> None:
        signal.sigtimedwait([signal.SIGCHLD], _END_PAUSE)
        self.reap()


class OpenedFile:
    """The sizes of one file that was seen open, and whether it was written."""

    __slots__ = ("device", "first_size", "last_size", "written")

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.first_size = size
        self.last_size = size
        self.written = False


class OpenedFiles:
    """All files that were seen open, in the order in which they were seen."""

    def __init__(self) -> None:
        self.files: dict[str, OpenedFile] = {}

    def look(self, processes: list[TreeProcess]) -> None:
        for process in processes:
            for descriptor, about in open_files(process.pid):
                self._note(descriptor, about)

    def _note(self, descriptor: str, about: os.stat_result) -> None:
        try:
            path = os.readlink(descriptor)
        except OSError:
            return
        if not path.startswith("/"):
            return
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = OpenedFile(about.st_dev, about.st_size)
        file.last_size = about.st_size
        file.written |= is_open_for_writing(descriptor)

    def listed(self) -> dict[str, list[tuple[str, int]]]:
        """Returns read and written files with sizes in MB, for the summary."""
        kinds: dict[str, list[tuple[str, int]]] = {"input_files": [], "output_files": []}
        for path, file in self.files.items():
            size = -(-file.last_size // MEGABYTE)
            kinds["output_files" if file.written else "input_files"].append((path, size))
        return kinds

    def table(self) -> str:
        """Returns the text of the `.files` file, without the original's counts of opens, closes, reads and writes."""
        lines = [f"{'#path':15}", f"#{'device':>21} {'size_initial(B)':>20} {'size_final(B)':>20}"]
        for path, file in self.files.items():
            lines += [f"{path:15}", f"{file.device:22} {file.first_size:20} {file.last_size:20}"]
        return "\n".join(lines) + "\n"
