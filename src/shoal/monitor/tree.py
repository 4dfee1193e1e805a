"""The processes of the command, as the launcher's sampler sees them: all that descends from the monitor.

The monitor is a subreaper, so whatever the command starts stays below it: an orphan becomes our child, also if it left
its process group or session. Where the system has no subreapers, an orphan is lost from sight.
"""

from __future__ import annotations

import signal
import time

from shoal.monitor.spawn import Command
from shoal.runner.proc import dead_child, kill_process
from shoal.runner.sampler import (
    Look,
    Owner,
    Process,
    Signs,
    Spent,
    Trees,
    end_processes,
    look_at,
    read_detail,
    read_process,
    reap_child,
)

_COMMAND: Owner = (0, 0)
_ALL_OURS = Signs({}, [(0.0, _COMMAND)])
"""There is only one command, so each process below us is one of its own."""
_END_SECONDS = 10.0
_END_PAUSE = 0.01


class Tree:
    """All processes below this one that are there on account of the command."""

    def __init__(self) -> None:
        self.spent = Spent(block=0)
        self.total = 0
        """How many processes were ever seen."""
        self.status: int | None = None
        """What `wait4` said of the command itself."""
        self.root_peak_below = 0
        """Bytes that the command's own peak was not above, if that is all that `wait4` can tell."""
        self._trees = Trees()
        self._command = Command(0, 0, 0.0)
        self._seen: set[int] = set()

    def prepare(self) -> None:
        """To be called before the command is started: whatever is there now is not ours."""
        self._trees.exclude_present()

    def begin(self, command: Command) -> None:
        self._command = command
        self._count(command.pid)

    def _count(self, pid: int) -> None:
        if pid not in self._seen:
            self._seen.add(pid)
            self.total += 1

    def glance(self) -> Look:
        """Looks only at the command itself, which has just begun and may be gone before more could be looked at."""
        process = read_process(self._command.pid)
        return self._look_at([process] if process is not None and process.is_alive else [])

    def _look_at(self, processes: list[Process], known_peak: float = 0.0) -> Look:
        for process in processes:
            read_detail(process)
        return look_at(processes, self.spent, known_peak)

    def processes(self, *, thoroughly: bool = False) -> list[Process]:
        """Our processes that are alive."""
        ours = self._trees.scan({}, {}, _ALL_OURS, thoroughly=thoroughly).get(_COMMAND, [])
        for process in ours:
            self._count(process.pid)
        return ours

    def look(self, known_peak: float) -> Look:
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
        status, usage = reap_child(pid, self.spent if is_ours else Spent(), floor)
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
