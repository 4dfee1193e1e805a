"""Starting a worker process and ending it with everything it started.

A worker leads a process group of its own. Its lifeline is the read end of a pipe whose write end only the runner holds;
it is armed so that the kernel sends SIGKILL to the worker's group when the write end closes, that is, when the runner's
process ends for whatever reason. Compare PR_SET_PDEATHSIG, which acts when the *thread* that spawned ends and reaches
only one process, and a watching thread, which disturbs programs that fork and waits for the interpreter lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext

from shoal.descriptors import given_limit, is_above_given_limit, with_given_limit
from shoal.runner.call_page import BELL_FD, LIFELINE_FD, MEMORY_FD, OUTPUT_FD, WINDOW
from shoal.runner.worker import BOOT

MARKER = "SHOAL_TASK"
"""Environment variable by which a later run recognises processes of a run that was killed."""

_DEFAULTS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD]
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_FIRST_FREE = 16  # descriptors to be passed on are moved out of the way of the numbers they get in the worker

_not_for_children: set[int] = set()


def _let_go() -> None:
    """In a child forked by the user's program: close what would keep workers alive after the program has ended."""
    for descriptor in _not_for_children:
        os.close(descriptor)
    _not_for_children.clear()


os.register_at_fork(after_in_child=_let_go)


class Lifeline:
    """The pipe that ends all workers of a runner when the runner's process ends."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        _not_for_children.add(self._write_end)

    def branch(self) -> int:
        """A read end of its own for one worker: the signal's addressee belongs to the open file."""
        return os.open(f"/proc/self/fd/{self._read_end}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def descriptor(self) -> int:
        """An open descriptor, to see how many are left."""
        return self._read_end

    @staticmethod
    def arm(branch: int, group: int) -> None:
        """Let the end of the runner send SIGKILL to the process group."""
        fcntl.fcntl(branch, fcntl.F_SETOWN, -group)
        fcntl.fcntl(branch, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
        fcntl.fcntl(branch, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)

    def close(self) -> None:
        """Cut it: whoever still hangs on it ends. A second time does nothing."""
        if self._write_end >= 0:
            _not_for_children.discard(self._write_end)
            os.close(self._write_end)
            os.close(self._read_end)
            self._write_end = self._read_end = -1


class WorkerProcess:
    """A process, its process group and the descriptors through which it is reached."""

    def __init__(self, lifeline: Lifeline, directory: str, environment: Mapping[str, str], path: Sequence[str]) -> None:
        with ExitStack() as ours, ExitStack() as theirs:

            def kept(stack: ExitStack, descriptor: int) -> int:
                stack.callback(os.close, descriptor)
                return descriptor

            near, far = socket.socketpair()
            near.setblocking(False)
            self.bell = kept(ours, near.detach())
            """Readable when the worker has results; a byte written to it announces a bundle."""
            bell = kept(theirs, far.detach())
            self.memory = kept(ours, os.memfd_create("shoal-calls"))
            os.ftruncate(self.memory, WINDOW)
            with tempfile.TemporaryFile(buffering=0) as file:
                self.output = kept(ours, fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
            fcntl.fcntl(self.output, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
            branch = kept(theirs, lifeline.branch())
            given = {
                0: kept(theirs, os.open(os.devnull, os.O_RDONLY)),
                1: self.output,
                2: self.output,
                BELL_FD: bell,
                MEMORY_FD: self.memory,
                LIFELINE_FD: branch,
                OUTPUT_FD: self.output,
            }
            self.pid = _spawn([sys.executable, "-c", BOOT, directory, *path], environment, given)
            lifeline.arm(branch, self.pid)
            ours.pop_all()
        self.death = os.pidfd_open(self.pid)
        """Readable when the process has ended and waits to be reaped."""
        _not_for_children.add(self.bell)

    def signal_group(self, number: int) -> None:
        """Send a signal to the worker and whatever it started; the group exists until the worker is reaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # spawned a moment ago or gone a moment ago: `death` will tell

    def hang_up(self) -> None:
        """Close the bell: a worker that is idle then ends by itself."""
        if self.bell >= 0:
            _not_for_children.discard(self.bell)
            os.close(self.bell)
            self.bell = -1

    def reap(self) -> str:
        """Once `death` is readable: end the rest of the group, close everything, say how the process ended."""
        how = self._reap()
        self.hang_up()
        for descriptor in (self.death, self.memory, self.output):
            os.close(descriptor)
        return how

    def _reap(self) -> str:
        try:
            # Not reaped yet, so the number of its group is still its own and may be signalled.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.signal_group(signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            # The program we are part of ignores SIGCHLD or waits for any child.
            return "ended (its exit status was taken by another part of the program)"
        if status >= 0:
            return f"exited with status {status}"
        return f"was ended by signal {-status} ({_SIGNAL_NAMES.get(-status, 'real-time')})"


def _spawn(arguments: list[str], environment: Mapping[str, str], given: Mapping[int, int]) -> int:
    moved: dict[int, int] = {}
    try:
        for target, descriptor in given.items():
            moved[target] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in moved.items()]
        # The limit that the worker is to have does not let the system copy a descriptor above it.
        is_above = any(map(is_above_given_limit, moved.values()))
        words = with_given_limit(arguments) if is_above else arguments
        with nullcontext() if is_above else given_limit():
            return os.posix_spawn(
                words[0],
                words,
                environment,
                file_actions=actions,
                setpgroup=0,
                setsigmask=[],
                setsigdef=_DEFAULTS,
            )
    finally:
        for descriptor in moved.values():
            os.close(descriptor)
