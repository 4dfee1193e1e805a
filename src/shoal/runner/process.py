"""Commands as processes: started by `posix_spawn`, reaped with `wait4`, ended as a whole tree.

There is no thread and no Python between spawn and exec. Each task is the leader of its own process group. What is left
of the group when its leader exits is ended with it; a task that is killed also loses what escaped from the group, found
by the mark in its environment.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from time import CLOCK_MONOTONIC, clock_gettime
from typing import Any, NamedTuple

from shoal.policy.retry import Outcome
from shoal.runner.command import SHELL, CommandResolver, in_directory, task_environment
from shoal.runner.output import Slots
from shoal.runner.proc import MARK_NAME, kill_process, marked_processes, signal_group
from shoal.runner.table import ProcessTable

KILL_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
_BOOT_CLOCK = 7 if sys.platform == "linux" else CLOCK_MONOTONIC
"""CLOCK_BOOTTIME, which `/proc` counts by."""
_RSS_UNIT = 1 if os.uname().sysname == "Darwin" else 1024
_BLOCK = 512
"""Bytes that `ru_inblock` and `ru_oublock` count as one."""
_DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and what is ignored stays so across an exec."""


class Running(NamedTuple):
    """A process that was started and has not been reaped."""

    task: int
    attempt: int
    slot: int
    started: float
    pid: int
    boot_time: float


class ProcessEnd(NamedTuple):
    """A process that has ended; its output still lies in its slot."""

    running: Running
    outcome: Outcome
    status: int
    ended: float
    user: float
    system: float
    max_rss: int
    message: str
    counts: tuple[int, int, int, int]
    """Bytes read from and written to disks, context switches, major page faults."""


class ProcessRunner:
    """Starts and reaps the processes of one run. Not thread-safe: it belongs to the engine's loop."""

    def __init__(
        self,
        run: str,
        environment: Mapping[str, str],
        slots: Slots,
        table: ProcessTable,
        clock: Callable[[], float],
    ) -> None:
        self.run = run.encode()
        self.clock = clock
        self.slots = slots
        self.table = table
        self.running: dict[int, Running] = {}
        """By pid."""
        self.pid_of: dict[int, int] = {}
        """By task; a task has one attempt at a time."""
        self._environment = task_environment(environment)
        self._resolver = CommandResolver(environment.get("PATH", os.defpath))
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._deadlines: list[tuple[float, int, int]] = []
        self._options: list[dict[str, Any]] = []
        self._own_peak = 0
        self.look_at_own_peak()
        self._killed: dict[int, tuple[Outcome, str]] = {}
        """Pids we asked to end, and what to call it."""

    def start(
        self,
        now: float,
        task: int,
        attempt: int,
        command: str,
        *,
        timeout: float | None = None,
        environment: tuple[tuple[str, str], ...] = (),
        directory: str | None = None,
    ) -> Running | str:
        """Starts a command; a string says why it could not be started."""
        vector = self._resolver.vector(command)
        if directory is not None:
            vector = in_directory(vector, directory)
        variables = self._environment
        variables[MARK_NAME] = b"%s:%d:%d" % (self.run, task, attempt)
        if environment:
            variables = variables | {os.fsencode(name): os.fsencode(value) for name, value in environment}
        slot = self.slots.take()
        try:
            pid = self._spawn(vector, variables, command, slot)
        except OSError as error:
            self.slots.give_back(slot)
            if error.errno in (errno.EAGAIN, errno.ENOMEM):
                return f"the system would not start a process: {error.strerror}"
            return f"cannot start {vector[0]!r}: {error.strerror}"
        boot_time = clock_gettime(_BOOT_CLOCK)
        self.table.enter(slot, pid, boot_time)
        running = Running(task, attempt, slot, now, pid, boot_time)
        self.running[pid] = running
        self.pid_of[task] = pid
        if timeout is not None:
            heappush(self._deadlines, (now + timeout, pid, attempt))
        return running

    def _spawn(self, vector: list[str], environment: dict[bytes, bytes], command: str, slot: int) -> int:
        options = self._spawn_options(slot)
        try:
            return os.posix_spawn(vector[0], vector, environment, **options)
        except OSError as error:
            if error.errno not in (errno.ENOEXEC, errno.ENOENT, errno.EACCES, errno.ENOTDIR):
                raise
        # A script without an interpreter line, or nothing to execute: the shell runs the one and reports the other.
        return os.posix_spawn(SHELL, [SHELL, "-c", command], environment, **options)

    def _spawn_options(self, slot: int) -> dict[str, Any]:
        """Own process group, standard input from nowhere, both outputs into the slot; made once per slot."""
        if slot == len(self._options):
            output = self.slots.descriptors[slot]
            dup = os.POSIX_SPAWN_DUP2
            actions = ((dup, self._null, 0), (dup, output, 1), (dup, output, 2))
            mask: dict[str, Any] = {"setsigmask": (), "setsigdef": _DEFAULTED}
            self._options.append({"file_actions": actions, "setpgroup": 0} | mask)
        return self._options[slot]

    def reap(self, now: float) -> list[ProcessEnd]:
        """All processes that have ended by now, without waiting; adopted orphans are reaped on the way."""
        ends: list[ProcessEnd] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return ends
            if not pid:
                return ends
            if pid in self.running:
                ends.append(self._finish(now, pid, status, usage))

    def _finish(self, now: float, pid: int, status: int, usage: resource.struct_rusage) -> ProcessEnd:
        """What is left of the group of a leader that was just reaped is ended with it.

        While it has members the group's number cannot be given to another, and pids are given out in turn, so nobody
        else can have got it in the microseconds since.
        """
        signal_group(pid, signal.SIGKILL)
        running = self.running.pop(pid)
        del self.pid_of[running.task]
        killed = self._killed.pop(pid, None) if self._killed else None
        if killed is not None:
            self._end_escaped(running)
        code = os.waitstatus_to_exitcode(status) if status else 0
        outcome, message = Outcome.OK, ""
        if killed is not None:
            outcome, message = killed
        elif code < 0:
            outcome, message = Outcome.CRASHED, f"ended by signal {-code} ({signal_name(-code)})"
        elif code:
            outcome, message = Outcome.FAILED, f"exit status {code}"
        return ProcessEnd(
            running,
            outcome,
            code,
            now,
            usage.ru_utime,
            usage.ru_stime,
            self._peak_memory(usage.ru_maxrss),
            message,
            (
                usage.ru_inblock * _BLOCK,
                usage.ru_oublock * _BLOCK,
                usage.ru_nvcsw + usage.ru_nivcsw,
                usage.ru_majflt,
            ),
        )

    def _peak_memory(self, peak: int) -> int:
        """Bytes, or 0 if the task stayed below what `wait4` can tell.

        The kernel starts a spawned child's peak at that of its parent, with which it shares memory until it executes;
        so a figure that is not above our own peak says nothing about the task.
        """
        return peak * _RSS_UNIT if peak > self._own_peak else 0

    def look_at_own_peak(self) -> None:
        """To be called now and then: asking the kernel costs more than reaping a task, and we grow slowly."""
        peak = peak_of_ours()
        self._own_peak = peak + peak // 16

    def _end_escaped(self, running: Running) -> None:
        mark = b"%s:%d:%d\0" % (self.run, running.task, running.attempt)
        for pid in marked_processes(mark):
            if pid != running.pid:
                kill_process(pid)

    def kill(self, task: int, outcome: Outcome, message: str, *, at_once: bool = False) -> None:
        """Asks a task's whole group to end, and ends it after a grace period."""
        pid = self.pid_of.get(task)
        if pid is None:
            return
        self._killed.setdefault(pid, (outcome, message))
        if at_once:
            signal_group(pid, signal.SIGKILL)
            return
        signal_group(pid, signal.SIGTERM)
        signal_group(pid, signal.SIGCONT)
        heappush(self._deadlines, (self.clock() + KILL_GRACE, pid, self.running[pid].attempt))

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def enforce(self, now: float) -> None:
        """Ends what ran out of time; reaping reports it."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, pid, attempt = heappop(self._deadlines)
            running = self.running.get(pid)
            if running is None or running.attempt != attempt:
                continue
            if pid in self._killed:
                signal_group(pid, signal.SIGKILL)
            else:
                self.kill(
                    running.task, Outcome.TIMEOUT, f"ran longer than its time limit ({now - running.started:.1f} s)"
                )

    def close(self) -> None:
        """Ends and reaps whatever still runs."""
        for pid in self.running:
            signal_group(pid, signal.SIGKILL)
        for pid in list(self.running):
            self._killed.setdefault(pid, (Outcome.CANCELLED, "the run ended"))
            _, status, usage = os.wait4(pid, 0)
            self._finish(self.clock(), pid, status, usage)
        os.close(self._null)


def peak_of_ours() -> int:
    """The peak that a child starts with; `getrusage` would tell that of the process that started us, if larger."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(file.read().partition(b"VmHWM:")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
