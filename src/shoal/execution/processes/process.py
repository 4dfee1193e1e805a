"""Runs commands as processes: starts them with `posix_spawn`, reaps them with `wait4`, kills their whole trees.

There is no thread and no Python code between spawn and exec. Each task is the leader of its own process group. When the
leader exits, the rest of its group is killed, and so are processes that left the group: they are found by descent, by
the mark in their environment and by the output file that they hold (`sampler`). Memory limits are enforced by frequent
measurements; the compiled launcher leaves them to the kernel where it can.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from time import CLOCK_MONOTONIC, clock_gettime, monotonic, sleep, thread_time
from typing import Any, NamedTuple

from shoal.core.policies.retry import AttemptOutcome
from shoal.execution.process_limits import OUT_OF_DESCRIPTORS, given_limit, is_above_given_limit, with_given_limit
from shoal.execution.processes.disk_use import TaskDisk
from shoal.execution.processes.output import OutputSlots
from shoal.execution.processes.pinning import cpus_in, pinned
from shoal.execution.processes.process_table import MARK_NAME, ProcessTable, dead_child, signal_group
from shoal.execution.processes.sampler import (
    OrphanEvidence,
    Owner,
    Peaks,
    ReapedTime,
    TreeProcess,
    Trees,
    end_processes,
    mebibytes,
    reap_child,
    traffic_of,
)
from shoal.execution.processes.shell import LONGEST_WORD, SHELL, CommandResolver, in_directory, task_environment
from shoal.execution.processes.time_series import Series
from shoal.execution.processes.usage_series import UsageSeries

KILL_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
LEAST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two measurements of a task's tree: a tenth of its age, within these bounds."""
LIMIT_PAUSE = 0.02
"""The same for tasks with a memory limit."""
DISK_PAUSE = 0.05
"""The same for tasks with a disk limit."""
_LEAST_SECONDS_FOR_IO = 0.004
"""For a task shorter than this, I/O counters are not read."""
_SHARE_OF_TIME = 25
"""A measurement of 1 ms is followed by 25 ms without one."""
_END_SECONDS = 2.0
"""How long signals are repeated to a process that does not end."""
_GROUP_SECONDS = 0.05
"""How long to wait for the rest of a task's group."""
_BOOT_CLOCK = 7 if sys.platform == "linux" else CLOCK_MONOTONIC
"""CLOCK_BOOTTIME, the clock of `/proc`."""
_DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these signals, and exec keeps ignored signals ignored."""


class Running(NamedTuple):
    """A process that was started and has not been reaped."""

    task: int
    attempt: int
    slot: int
    started: float
    pid: int
    boot_time: float
    begun: float
    """By the clock of `boot_time`; its processes did not begin earlier."""


class ProcessEnd(NamedTuple):
    """A process that has ended; its output is still in its slot."""

    running: Running
    outcome: AttemptOutcome
    status: int
    ended: float
    user: float
    system: float
    max_rss: int
    message: str
    counts: tuple[int, ...]
    """Bytes read and written, context switches, major page faults; of the whole tree: peak resident, virtual and
    swapped memory, maximum number of processes at once, total number of processes; thousandths of cores; bytes and
    files on disk."""
    course: bytes
    """See `shoal.execution.processes.time_series`; empty for short attempts."""


class ProcessRunner:
    """Starts and reaps the processes of one run. Not thread-safe: used by one event loop only."""

    def __init__(
        self,
        run: str,
        environment: Mapping[str, str],
        slots: OutputSlots,
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
        self._deadlines: list[tuple[float, int, int, float]] = []
        """Deadline, pid, attempt and time limit; a limit of 0 marks processes that are already being killed."""
        self._options: list[dict[str, Any]] = []
        self._own_peak = 0
        """The kernel initialises a spawned child's peak with that of its parent, because they share memory until exec.
        So a value that is not above this one says nothing about the task."""
        self.look_at_own_peak()
        self._trees = Trees(self.run)
        self._peaks: dict[Owner, Peaks] = {}
        self._spent: dict[Owner, ReapedTime] = {}
        """Usage of reaped orphans, which is added to the task they came from."""
        self._limits: dict[int, int] = {}
        """Memory limits in bytes by pid; a negative limit is not enforced, but reported when it is exceeded."""
        self.grown: list[tuple[int, int, int, int]] = []
        """Task, attempt and bytes of tasks that exceeded their expected size, and bytes of all tasks together."""
        self._resident: dict[int, int] = {}
        """Bytes by pid, at the last measurement."""
        self._disks: dict[int, TaskDisk] = {}
        """By pid, for tasks with a disk limit."""
        self.series: Series | None = None
        """Time series files, if requested."""
        self._courses: dict[int, UsageSeries] = {}
        """By pid, for tasks that have been measured."""
        self.measures = True
        """Measure tasks without a limit, too."""
        self.pass_streams = False
        """Let tasks write to our own output streams instead of capturing what they write."""
        self._look_at: dict[int, float] = {}
        """When to measure a tree again, by pid."""
        self._killed: dict[int, tuple[AttemptOutcome, str]] = {}
        """Pids that were told to end, with the outcome to report."""

    def start(
        self,
        now: float,
        task: int,
        attempt: int,
        command: str,
        *,
        timeout: float | None = None,
        memory: int = 0,
        disk: int = 0,
        paths: Sequence[str] = (),
        environment: tuple[tuple[str, str], ...] = (),
        directory: str | None = None,
        shell: Sequence[str] = (),
    ) -> Running | str | None:
        """Starts a command. Returns a string with the reason if it cannot be started, None if descriptors are short:
        then it has to wait until another command has ended.

        `shell` are the words of the shell, by default /bin/sh; with an empty one first, every command is run by the
        shell.
        """
        variables = self._environment
        variables[MARK_NAME] = b"%s:%d:%d" % (self.run, task, attempt)
        if environment:
            variables = variables | {os.fsencode(name): os.fsencode(value) for name, value in environment}
        try:
            slot = self.slots.take()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS and (self.running or error.errno == errno.ENFILE):
                return None
            return f"cannot make a file for its output: {error.strerror}"
        # Created before the task begins, so that files changed later count as the task's own.
        task_disk = TaskDisk(disk, paths, self.slots.descriptors[slot]) if disk else None
        begun = clock_gettime(_BOOT_CLOCK)
        try:
            vectors = self._vectors(command, slot, dict(environment).get("PATH"), directory, shell)
        except OSError as error:
            self.slots.give_back(slot)
            return f"cannot write its command, which is long, to a file: {error.strerror}"
        try:
            with pinned(cpus_in(environment)):
                pid = self._spawn(vectors, variables, slot)
        except OSError as error:
            self.slots.give_back(slot)
            if error.errno in (errno.EAGAIN, errno.ENOMEM):
                return f"the system would not start a process: {error.strerror}"
            return f"cannot start {vectors[-1][0]}: {error.strerror}"
        boot_time = clock_gettime(_BOOT_CLOCK)
        self.table.enter(slot, pid, boot_time)
        running = Running(task, attempt, slot, now, pid, boot_time, begun)
        self.running[pid] = running
        self.pid_of[task] = pid
        if timeout is not None:
            heappush(self._deadlines, (now + timeout, pid, attempt, timeout))
        if memory:
            self._limits[pid] = memory
        if task_disk is not None:
            self._disks[pid] = task_disk
        if self.series is not None:
            self.series.start(pid, task, attempt, command)
        return running

    def _vectors(
        self, command: str, slot: int, path: str | None, directory: str | None, shell: Sequence[str]
    ) -> list[list[str]]:
        """Returns argument vectors to try: without a shell, if the command needs none, then with one."""
        if len(command) * 4 >= LONGEST_WORD and len(os.fsencode(command)) + 1 >= LONGEST_WORD:
            in_shell = [*(filter(None, shell) if shell else (SHELL,)), self.slots.write_command(slot, command)]
        else:
            in_shell = [*(filter(None, shell) if shell else (SHELL,)), "-c", command]
        words = None
        if not shell or shell[0]:
            words = self._resolver.words(command, path, elsewhere=directory is not None)
        vectors = [in_shell] if words is None else [words, in_shell]
        return vectors if directory is None else [in_directory(vector, directory) for vector in vectors]

    def _spawn(self, vectors: list[list[str]], environment: dict[bytes, bytes], slot: int) -> int:
        options = self._spawn_options(slot)
        if is_above_given_limit(self.slots.descriptors[slot]):
            vector = with_given_limit(vectors[0])
            return os.posix_spawn(vector[0], vector, environment, **options)
        with given_limit():
            return self._spawn_first(vectors, environment, options)

    @staticmethod
    def _spawn_first(vectors: list[list[str]], environment: dict[bytes, bytes], options: dict[str, Any]) -> int:
        """Spawns the first vector whose executable can be executed."""
        for vector in vectors[:-1]:
            try:
                return os.posix_spawn(vector[0], vector, environment, **options)
            except OSError as error:
                # A script without an interpreter line, or nothing to execute: the shell runs the one and reports the
                # other. It also reports best that a command has too many words.
                if error.errno not in (errno.ENOEXEC, errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.E2BIG):
                    raise
        return os.posix_spawn(vectors[-1][0], vectors[-1], environment, **options)

    def _spawn_options(self, slot: int) -> dict[str, Any]:
        """Returns the options: own process group, standard input from /dev/null, both outputs into the slot. Made once
        per slot."""
        if slot == len(self._options):
            output = self.slots.descriptors[slot]
            dup = os.POSIX_SPAWN_DUP2
            actions = ((dup, self._null, 0), (dup, 1, 1), (dup, 2, 2))
            if not self.pass_streams:
                actions = ((dup, self._null, 0), (dup, output, 1), (dup, output, 2))
            mask: dict[str, Any] = {"setsigmask": (), "setsigdef": _DEFAULTED}
            self._options.append({"file_actions": actions, "setpgroup": 0} | mask)
        return self._options[slot]

    def reap(self, now: float) -> list[ProcessEnd]:
        """Reaps all processes that have ended, without waiting; also reaps adopted orphans."""
        ends: list[ProcessEnd] = []
        while (pid := dead_child()) is not None:
            running = self.running.get(pid)
            if running is None:
                self._reap_orphan(pid)
                continue
            spent = self._spent.pop((running.task, running.attempt), None) or ReapedTime()
            is_worth_it = self.measures and now - running.started > _LEAST_SECONDS_FOR_IO
            status, _ = reap_child(pid, spent, self._own_peak, with_traffic=is_worth_it)
            ends.append(self._finish(now, pid, status, spent))
        return ends

    def _leaders(self) -> dict[int, Owner]:
        return {pid: (running.task, running.attempt) for pid, running in self.running.items()}

    def _scan(self, *, thoroughly: bool = False) -> dict[Owner, list[TreeProcess]]:
        signs = OrphanEvidence(
            {} if self.pass_streams else {self.slots.identity(one.slot): one[:2] for one in self.running.values()},
            [(one.begun, one[:2]) for one in self.running.values()],
        )
        return self._trees.scan(self._leaders(), self._peaks, signs, thoroughly=thoroughly)

    def _reap_orphan(self, pid: int) -> None:
        owner = self._trees.owner_of_orphan(pid, self._leaders())
        spent = ReapedTime() if owner is None else self._spent.setdefault(owner, ReapedTime())
        reap_child(pid, spent, self._own_peak)
        self._trees.forget_orphan(pid)

    def _end_group(self, pid: int) -> bool:
        """Kills the rest of the group of a leader that was just reaped; returns False if a process does not end.

        While the group has members, its number is not reused. If it has none, the number could be reused only after all
        other pids, which is impossible within the microseconds since.
        """
        deadline = monotonic() + _GROUP_SECONDS
        while signal_group(pid, signal.SIGKILL):
            if monotonic() > deadline:
                return False
            dead = dead_child(pid)
            if dead is not None:
                self._reap_orphan(dead)
            else:
                sleep(0.0002)
        return True

    def _finish(self, now: float, pid: int, status: int, spent: ReapedTime) -> ProcessEnd:
        """Kills the rest of a task whose first process was just reaped, and returns how the task ended."""
        is_group_gone = self._end_group(pid)
        running = self.running[pid]
        killed = self._killed.pop(pid, None) if self._killed else None
        leaders = self._leaders()
        # A scan of /proc costs more than a short task, so it is skipped unless there may be escaped processes.
        if killed is not None or not is_group_gone or self._trees.may_have_orphans(leaders, pid):
            self._end_escaped(running)
        more = self._spent.pop((running.task, running.attempt), None)
        if more is not None:
            spent.join(more)
        del self.running[pid], self.pid_of[running.task]
        self._limits.pop(pid, None)
        self._resident.pop(pid, None)
        self._look_at.pop(pid, None)
        peaks = self._peaks.pop((running.task, running.attempt), None)
        course = self._courses.pop(pid, None)
        disk = self._disks.pop(pid, None)
        if self.series is not None:
            self.series.end(pid)
        code = os.waitstatus_to_exitcode(status) if status else 0
        age = now - running.started
        if disk is not None and disk.last_look() and killed is None:
            killed = (AttemptOutcome.EXHAUSTED, disk.excess(age))
        outcome, message = killed or classify_status(code)
        cpu = spent.user + spent.system
        cores = cpu / age if age > 0 else 0.0
        tree = (spent.peak, 0, 0, 0, 0)
        if peaks is not None:
            peaks.cores.note(now, cpu)
            cores = max(cores, peaks.cores.most)
            tree = (max(peaks.resident, spent.peak), peaks.virtual, peaks.swap, peaks.most, peaks.all)
        flows = (spent.read, spent.written, spent.switches, spent.faults)
        rest = (round(cores * 1000), *((disk.bytes, disk.files) if disk is not None else (0, 0)))
        used = (spent.user, spent.system, spent.peak, message, flows + tree + rest)
        series = course.end(age, cpu, spent.read, spent.written) if course is not None else b""
        return ProcessEnd(running, outcome, code, now, *used, series)

    def next_look(self) -> float | None:
        """Returns when a tree with a limit must be measured; others can be measured at any time."""
        moments = [self._due(pid) for limited in (self._limits, self._disks) for pid in limited]
        return min(moments) if moments else None

    def _due(self, pid: int) -> float:
        moment = self._look_at.get(pid)
        if moment is None:
            return self.running[pid].started + self._pause(pid, 0.0)
        return moment

    def _pause(self, pid: int, age: float) -> float:
        if pid in self._limits:
            return LIMIT_PAUSE
        if pid in self._disks:
            return DISK_PAUSE
        return min(LONGEST_PAUSE, max(LEAST_PAUSE, age / 10)) if self.measures else inf

    def look(self, now: float) -> None:
        """Measures the trees that are due, and kills those above their limits."""
        due = [running for pid, running in self.running.items() if self._due(pid) <= now]
        if not due:
            return
        for running in due:
            self._peaks.setdefault((running.task, running.attempt), Peaks(running.started))
        begin = thread_time()  # on a busy machine a measurement takes longer, but costs no more CPU time
        trees = self._scan()
        for running in due:
            owner = (running.task, running.attempt)
            self._resident[running.pid] = self._take_in(now, running, owner, trees.get(owner, []))
        total = sum(self._resident.values())
        for running in due:
            resident = self._resident[running.pid]
            limit = self._limits.get(running.pid, 0)
            if limit < 0 and resident > -limit:
                self.grown.append((running.task, running.attempt, resident, total))
                self._limits[running.pid] = -(resident + resident // 8)
            if 0 < limit < resident and running.pid not in self._killed:
                excess = f"used {mebibytes(resident)} of memory, more than its {mebibytes(limit)}"
                why = f"{excess}, after {now - running.started:.2f} s"
                self.kill(running.task, AttemptOutcome.EXHAUSTED, why, at_once=True)
        rest = (thread_time() - begin) * _SHARE_OF_TIME
        for running in due:
            self._look_at[running.pid] = now + max(rest, self._pause(running.pid, now - running.started))

    def _take_in(self, now: float, running: Running, owner: Owner, processes: list[TreeProcess]) -> int:
        """Records a measurement of one tree; returns its current memory in bytes. Kills it if it is above its disk
        limit."""
        peaks, buried = self._peaks[owner], self._spent.get(owner)
        resident = peaks.take(now, processes, buried.user + buried.system if buried is not None else 0.0)
        if processes:
            self._keep(now, running, processes, buried)
        disk = self._disks.get(running.pid)
        if disk is not None and disk.look(processes) and running.pid not in self._killed:
            self.kill(running.task, AttemptOutcome.EXHAUSTED, disk.excess(now - running.started), at_once=True)
        return resident

    def _keep(self, now: float, running: Running, processes: list[TreeProcess], buried: ReapedTime | None) -> None:
        """Adds a point to the time series, if it is due; only then it is worth reading I/O counters."""
        peaks, age = self._peaks[running.task, running.attempt], now - running.started
        course = self._courses.setdefault(running.pid, UsageSeries())
        is_due = self.measures and course.is_due(age, peaks.last.resident)
        if not is_due and self.series is None:
            return
        read, written = (buried.read, buried.written) if buried is not None else (0, 0)
        for more_read, more_written in map(traffic_of, (process.pid for process in processes)):
            read += more_read
            written += more_written
        # A process that is being reaped is missing for a moment: no longer in its own counters, not yet in its
        # parent's.
        peaks.read, peaks.written = max(peaks.read, read), max(peaks.written, written)
        if is_due:
            course.add(age, peaks.last.cpu, peaks.read, peaks.written)
        if self.series is not None:
            self.series.add(running.pid, now, peaks, peaks.read, peaks.written)

    def look_at_own_peak(self) -> None:
        """Updates `_own_peak`. Called from time to time: the query costs more than reaping a task, and this process
        grows slowly."""
        peak = peak_of_ours()
        self._own_peak = peak + peak // 16

    def _end_escaped(self, running: Running) -> None:
        """Kills the rest of a task whose first process is gone, including processes that left its group."""
        owner = (running.task, running.attempt)

        def left() -> list[TreeProcess] | None:
            found = self._scan(thoroughly=True).get(owner, [])
            return found if found or self._trees.is_unsettled else None

        if not end_processes(left, _END_SECONDS, lambda: sleep(0.001)):
            self.slots.to_renew.add(running.slot)

    def kill(self, task: int, outcome: AttemptOutcome, message: str, *, at_once: bool = False) -> None:
        """Sends SIGTERM to a task's whole group, and kills it after a grace period."""
        pid = self.pid_of.get(task)
        if pid is None:
            return
        self._killed.setdefault(pid, (outcome, message))
        # Once the first process is gone, descent cannot be followed any more. Many processes may have to be killed at
        # once.
        if monotonic() - self._trees.scanned_at > LIMIT_PAUSE:
            self._scan()
        if at_once:
            signal_group(pid, signal.SIGKILL)
            return
        signal_group(pid, signal.SIGTERM)
        signal_group(pid, signal.SIGCONT)
        heappush(self._deadlines, (self.clock() + KILL_GRACE, pid, self.running[pid].attempt, 0.0))

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def enforce(self, now: float) -> None:
        """Kills tasks that exceeded their time limit; reaping reports them."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, pid, attempt, limit = heappop(self._deadlines)
            running = self.running.get(pid)
            if running is None or running.attempt != attempt:
                continue
            if pid in self._killed:
                signal_group(pid, signal.SIGKILL)
            else:
                self.kill(running.task, AttemptOutcome.TIMEOUT, f"ran longer than its time limit ({limit:g} s)")

    def close(self) -> None:
        """Kills and reaps everything that still runs."""
        for pid in self.running:
            signal_group(pid, signal.SIGKILL)
        for pid in list(self.running):
            self._killed.setdefault(pid, (AttemptOutcome.CANCELLED, "the run ended"))
            _, status, _ = os.wait4(pid, 0)
            self._finish(self.clock(), pid, status, ReapedTime())
        os.close(self._null)


def peak_of_ours() -> int:
    """Returns the peak that a child starts with; `getrusage` would return that of our parent, if larger."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(file.read().partition(b"VmHWM:")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def classify_status(code: int) -> tuple[AttemptOutcome, str]:
    """Returns outcome and message of a task that was not killed by us, from its exit status or the negated signal."""
    if code < 0:
        return AttemptOutcome.CRASHED, f"ended by signal {-code} ({signal_name(-code)})"
    return (AttemptOutcome.FAILED, f"exit status {code}") if code else (AttemptOutcome.OK, "")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
