"""The processes of the command, as the launcher's sampler sees them: all that descends from the monitor.

The monitor is a subreaper, so whatever the command starts stays below it: an orphan becomes our child, also if it left
its process group or session. Where the system has no subreapers, an orphan is lost from sight.
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
_COUNTED_APART = 3
"""Kinds of pages that the kernel counts apart: anonymous, of files, shared."""


def find_program(name: str) -> str:
    """The path that will be executed."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(place, name) for place in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for path in candidates:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if "/" in name and os.path.exists(name):
        raise InputError(f"{name!r} cannot be executed", remedy="is it a program, and may you execute it?")
    raise InputError(f"there is no program {name!r}", remedy="is it spelled right, and in PATH?")


def program_type(path: str) -> str:
    """`dynamic`, `static`, the interpreter line of a script, or `unknown`."""
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
    """Bytes by which the peak of the copy may still grow after its last word without its using more.

    The kernel counts pages on each processor apart and adds them up when there is a batch of them, so that a total is
    off by at most a batch for each processor that counted: the one that forked, and the one that the copy runs on.
    """
    batch = max(32, 2 * processors)
    return _COUNTED_APART * batch * min(processors, 2) * os.sysconf("SC_PAGE_SIZE")


class StartedCommand:
    """A started command.

    Below `floor` bytes its peak in `wait4` says nothing, and `head_start` seconds of its CPU time were ours.
    """

    def __init__(self, pid: int, floor: int, head_start: float) -> None:
        self.pid = pid
        self.floor = floor
        self.head_start = head_start


def start(path: str, words: list[str], mask: Iterable[int]) -> StartedCommand:
    """Starts the program and returns when it has been loaded; `mask` are the signals that it blocks."""
    libc = ctypes.CDLL(None)
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(path, words, mask, libc, parent, writer)
    os.close(writer)
    told = b""
    while chunk := os.read(reader, 64):
        told += chunk
    os.close(reader)
    numbers = [int(word) for word in told.split()]
    if len(numbers) != 2:
        os.waitpid(pid, 0)
        raise InputError(f"cannot start {words[0]!r}: {os.strerror(numbers[-1] if numbers else errno.EIO)}")
    return StartedCommand(pid, numbers[0] * 1024 + _slack(os.cpu_count() or 1), numbers[1] / 1e6)


def _become(path: str, words: list[str], mask: Iterable[int], libc: ctypes.CDLL, parent: int, writer: int) -> None:
    """The rest of the copy's life; it never comes back."""
    try:
        libc.prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the program would inherit that
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            os.execv("", words)  # fails, and touches every page that the one below needs before the peak is read
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
"""There is only one command, so each process below us is one of its own."""
_END_SECONDS = 10.0
_END_PAUSE = 0.01


class Tree:
    """All processes below this one that are there on account of the command."""

    def __init__(self) -> None:
        self.spent = ReapedTime(block=0)
        self.total = 0
        """How many processes were ever seen."""
        self.status: int | None = None
        """What `wait4` said of the command itself."""
        self.root_peak_below = 0
        """Bytes that the command's own peak was not above, if that is all that `wait4` can tell."""
        self._trees = Trees()
        self._command = StartedCommand(0, 0, 0.0)
        self._seen: set[int] = set()

    def prepare(self) -> None:
        """To be called before the command is started: whatever is there now is not ours."""
        self._trees.exclude_present()

    def begin(self, command: StartedCommand) -> None:
        self._command = command
        self._count(command.pid)

    def _count(self, pid: int) -> None:
        if pid not in self._seen:
            self._seen.add(pid)
            self.total += 1

    def glance(self) -> TreeUsage:
        """Looks only at the command itself, which has just begun and may be gone before more could be looked at."""
        process = read_process(self._command.pid)
        return self._look_at([process] if process is not None and process.is_alive else [])

    def _look_at(self, processes: list[TreeProcess], known_peak: float = 0.0) -> TreeUsage:
        for process in processes:
            read_detail(process)
        return look_at(processes, self.spent, known_peak)

    def processes(self, *, thoroughly: bool = False) -> list[TreeProcess]:
        """Our processes that are alive."""
        ours = self._trees.scan({}, {}, _ALL_OURS, thoroughly=thoroughly).get(_COMMAND, [])
        for process in ours:
            self._count(process.pid)
        return ours

    def look(self, known_peak: float) -> TreeUsage:
        """Looks at everything; shared pages are told apart only if the sum would be above `known_peak` bytes."""
        return self._look_at(self.processes(), known_peak)

    def reap(self) -> bool:
        """Takes in all that have ended; True once the command itself has."""
        while (pid := dead_child()) is not None:
            self._take_in(pid)
        return self.status is not None

    def _take_in(self, pid: int) -> None:
        is_ours, command = pid not in self._trees.excluded, self._command
        floor = command.floor // 1024 if pid == command.pid else 0
        status, usage = reap_child(pid, self.spent if is_ours else ReapedTime(), floor)
        self._trees.forget_orphan(pid)
        if is_ours:
            self._count(pid)
            self._seen.discard(pid)  # the number may be given out again
        if pid == command.pid:
            self.status = status
            if usage.ru_maxrss <= floor:
                self.root_peak_below = usage.ru_maxrss * 1024
            self.spent.user -= min(self.spent.user + self.spent.system, command.head_start)

    def end(self) -> None:
        """Ends everything below us. It is stopped first, so that nothing is started while we are at it."""
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
    """What is known of one file."""

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
        """What was read and what was written, with sizes in MB, for the summary."""
        kinds: dict[str, list[tuple[str, int]]] = {"input_files": [], "output_files": []}
        for path, file in self.files.items():
            size = -(-file.last_size // MEGABYTE)
            kinds["output_files" if file.written else "input_files"].append((path, size))
        return kinds

    def table(self) -> str:
        """The text of the `.files` file; opens, closes, reads and writes are not counted."""
        lines = [f"{'#path':15}", f"#{'device':>21} {'size_initial(B)':>20} {'size_final(B)':>20}"]
        for path, file in self.files.items():
            lines += [f"{path:15}", f"{file.device:22} {file.first_size:20} {file.last_size:20}"]
        return "\n".join(lines) + "\n"
