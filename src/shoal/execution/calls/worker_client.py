"""The pool's side of one worker process: starts it, sends bundles, takes results, withdraws calls, kills and reaps it.

Theory of operation. A worker has at most one bundle at a time.

*Looking.* A worker announces results rarely, and not at all while a call runs. So the pool reads the shared page at
`look_at`: when the running call has run for `STABLE`, everything written before it is visible and nothing is being
written, so the results of short calls do not wait for a long one. Time-outs are found in the same way: the page says
which call runs and since when.

*Withdrawing* takes back calls that have not begun. The pool sets their flags in the page and looks again after
`STABLE`. The worker writes that it begins a call before it reads that call's flag. So if it had missed the flag, its
write would be visible by now; if there is none, the worker will see the flag and skip the call.

*Ending.* Only SIGKILL to the worker's group ends a call. Nothing is settled until the process is dead, because until
then the call may still finish. Then the page says which call was running.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext

from shoal.execution.calls.messages import CallRequest, CallResult, Outcome
from shoal.execution.calls.pickling import CallCancelledError, CallCrashedError, CallError, CallTimeoutError, pickled
from shoal.execution.calls.protocol import (
    BELL_FD,
    DONE,
    FINISHED,
    FLAGS,
    FRAME,
    LIFELINE_FD,
    MAX_CALLS,
    MEMORY_FD,
    OUTPUT_FD,
    RECORD,
    RECORDS,
    RUNNING,
    SKIPPED,
    STARTED,
    WINDOW,
    WRITTEN,
    Page,
)
from shoal.execution.calls.worker import BOOT
from shoal.execution.process_limits import given_limit, is_above_given_limit, with_given_limit

OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
"""Of longer output of a call only the beginning and the end are kept, half of this each."""

_ERRORS: dict[Outcome, type[CallError]] = {
    "crashed": CallCrashedError,
    "timeout": CallTimeoutError,
    "cancelled": CallCancelledError,
}


class OutputFile:
    """The file for a worker's standard output and standard error, read piece by piece."""

    __slots__ = ("_file", "position")

    def __init__(self, file: int) -> None:
        self._file = file
        self.position = 0
        """Everything before this offset has been read."""

    def read_to(self, end: int) -> bytes:
        """Returns what was written since the last call, up to the offset `end`."""
        start, self.position = self.position, max(end, self.position)
        if end - start <= OUTPUT_LIMIT_BYTES:
            return os.pread(self._file, end - start, start) if end > start else b""
        half = OUTPUT_LIMIT_BYTES // 2
        gap = f"\n[... {end - start - 2 * half} bytes of output left out ...]\n".encode()
        return os.pread(self._file, half, start) + gap + os.pread(self._file, half, end - half)

    def read_all(self) -> bytes:
        """Returns everything that has not been read."""
        return self.read_to(os.fstat(self._file).st_size)

    def reset(self) -> None:
        """Frees the space of the buffer, unless it holds unread output, which belongs to the next call."""
        if self.position and os.fstat(self._file).st_size == self.position:
            os.ftruncate(self._file, 0)
            self.position = 0


class CallBundle:
    """Calls that were sent to a worker together; `unsettled` are those without a result."""

    __slots__ = ("_held", "_page", "_position", "cancelled", "flagged_at", "shortest", "unsettled", "withdrawn")

    def __init__(self, calls: Sequence[CallRequest], page: Page) -> None:
        self.unsettled = dict(enumerate(calls))
        self.cancelled: set[int] = set()
        self.withdrawn: list[int] = []
        """Slots that were flagged at `flagged_at`, of which it is not known yet whether they began before."""
        self.flagged_at = 0.0
        self.shortest = min((call.timeout for call in calls if call.timeout is not None), default=None)
        """The shortest time limit of all calls."""
        self._page = page
        self._position = RECORDS
        self._held: list[CallResult] = []

    def take(self, output: OutputFile, done: bool) -> list[CallResult]:
        """Returns results that were completed since the last call; `done` if the worker has finished the bundle.

        Holds the last results back until then, which is a moment later, because the caller will want to use the idle
        worker.
        """
        results = self._held + self._read(output)
        self._held = []
        if not self.unsettled and not done:
            self._held, results = results, []
        return results

    def _read(self, output: OutputFile) -> list[CallResult]:
        written = self._page.words[WRITTEN]
        start, position = self._position, 0
        if start >= written:
            return []
        records = self._page.fetch(start, written - start)
        epoch = time.time() - time.monotonic()
        results = []
        while position < len(records):
            slot, code, began, ended, user, system, peak, printed, size = RECORD.unpack_from(records, position)
            position += RECORD.size + size
            call = self.unsettled.get(slot)
            if call is None:
                continue
            if code == SKIPPED:
                results.append(self.unbegun(slot))
                continue
            del self.unsettled[slot]
            body = bytes(records[position - size : position])
            outcome: Outcome = "ok"
            error, text = None, ""
            if code != FINISHED:
                outcome = "error"
                error, text = marshal.loads(body)
                body = b""
            results.append(
                CallResult(
                    call.task,
                    call.attempt,
                    outcome,
                    body,
                    error,
                    text,
                    epoch + began,
                    epoch + ended,
                    user,
                    system,
                    peak,
                    b"" if printed == output.position else output.read_to(printed),
                )
            )
        self._position = written
        return results

    def overflowed(self) -> bool:
        """Returns whether records exceeded the mapped window, so that the file has grown."""
        return self._page.words[WRITTEN] > WINDOW

    def unbegun(self, slot: int) -> CallResult:
        """Settles a call that did not begin and will not begin."""
        call = self.unsettled.pop(slot)
        if slot in self.cancelled:
            text = "the call was cancelled before it began"
            return ended_call(call, "cancelled", text, 0.0, 0.0, b"")
        return ended_call(call, "lost", "", 0.0, 0.0, b"")

    def settle_killed(self, slot: int, outcome: Outcome, text: str, began: float, output: bytes) -> CallResult:
        """Settles the call that was running when its worker died; `began` is by the monotonic clock."""
        now = time.time()
        started = now - (time.monotonic() - began) if began else now
        return ended_call(self.unsettled.pop(slot), outcome, text, started, now, output)


def ended_call(
    call: CallRequest, outcome: Outcome, text: str, started: float, ended: float, output: bytes
) -> CallResult:
    """Returns the result of a call that left no record."""
    error = pickled(_ERRORS[outcome](text)) if outcome in _ERRORS else None
    return CallResult(call.task, call.attempt, outcome, b"", error, text, started, ended, 0.0, 0.0, 0, output)


MARKER = "SHOAL_TASK"
"""Environment variable by which a later run recognises processes of a killed run."""

_DEFAULTS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD]
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_FIRST_FREE = 16  # descriptors to pass on are moved above the numbers that they get in the worker

_not_for_children: set[int] = set()


def _close_inherited() -> None:
    """In a child forked by the user's program: closes what would keep workers alive after the program has ended."""
    for descriptor in _not_for_children:
        os.close(descriptor)
    _not_for_children.clear()


os.register_at_fork(after_in_child=_close_inherited)


class Lifeline:
    """The pipe that kills all workers of a pool when the pool's process ends."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        _not_for_children.add(self._write_end)

    def branch(self) -> int:
        """Returns a separate read end for one worker. Each needs its own: the process that receives the signal is set
        per open file description."""
        return os.open(f"/proc/self/fd/{self._read_end}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def descriptor(self) -> int:
        """An open descriptor, to measure how many are left."""
        return self._read_end

    @staticmethod
    def arm(branch: int, group: int) -> None:
        """Makes the end of the pool's process send SIGKILL to the process group."""
        fcntl.fcntl(branch, fcntl.F_SETOWN, -group)
        fcntl.fcntl(branch, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
        fcntl.fcntl(branch, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)

    def close(self) -> None:
        """Closes the pipe: kills all workers that still have a branch. Does nothing a second time."""
        if self._write_end >= 0:
            _not_for_children.discard(self._write_end)
            os.close(self._write_end)
            os.close(self._read_end)
            self._write_end = self._read_end = -1


class WorkerProcess:
    """A worker process, its process group and the descriptors to communicate with it."""

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
        """Readable when the process has ended and can be reaped."""
        _not_for_children.add(self.bell)

    def signal_group(self, number: int) -> None:
        """Sends a signal to the worker and its descendants; the group exists until the worker is reaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # the process has just been spawned or has just ended: `death` reports it

    def hang_up(self) -> None:
        """Closes the bell: an idle worker then exits by itself."""
        if self.bell >= 0:
            _not_for_children.discard(self.bell)
            os.close(self.bell)
            self.bell = -1

    def reap(self) -> str:
        """Once `death` is readable: kills the rest of the group, closes everything, returns how the process ended."""
        how = self._reap()
        self.hang_up()
        for descriptor in (self.death, self.memory, self.output):
            os.close(descriptor)
        return how

    def _reap(self) -> str:
        try:
            # Not reaped yet, so the group number is still in use and may be signalled.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.signal_group(signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            # The user's program ignores SIGCHLD or waits for any child.
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
        # The worker's lower limit would not let the system duplicate a descriptor above it.
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


STABLE = 0.002
"""After this time, what one process wrote into shared memory is visible to the other."""
HOLD = 0.005
"""Approximate time that a result waits behind a call that turns out to be long."""
START_LIMIT = 60.0
"""Seconds until a new worker that has not begun its first call is killed."""


class CallWorker:
    """One worker process and its current bundle."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.shipped: set[int] = set()
        """Functions that the worker has received."""
        self.bundle: CallBundle | None = None
        self.look_at: float | None = None
        """When `look` has something to do, by the monotonic clock."""
        self.ending: tuple[Outcome, int] | None = None
        """Why the worker was killed: an outcome, and the slot it is for."""
        self._page = Page(process.memory)
        self._output = OutputFile(process.output)
        self._forgotten: list[int] = []
        self._grown = False
        self._proven = False
        self._given_at = 0.0
        self._gave_up = False

    def forget(self, function: int) -> None:
        """Makes the worker drop a function with its next bundle."""
        if function in self.shipped:
            self.shipped.discard(function)
            self._forgotten.append(function)

    def give(self, calls: Sequence[CallRequest], functions: Mapping[int, bytes], now: float) -> None:
        """Sends a bundle to an idle worker, with those functions it has not received."""
        assert self.bundle is None and 0 < len(calls) <= MAX_CALLS, "a bundle of 1 to MAX_CALLS calls, one at a time"
        learned = {number: functions[number] for number in {call.function for call in calls} - self.shipped}
        self.shipped.update(learned)
        sizes = [(call.function, len(call.payload)) for call in calls]
        head = marshal.dumps((learned, self._forgotten, sizes))
        self._forgotten = []
        frame = b"".join([len(head).to_bytes(8, "little"), head, *[call.payload for call in calls]])
        page, words = self._page, self._page.words
        self._grown = page.store(RECORDS, frame) > WINDOW
        page.memory[FLAGS : FLAGS + len(calls)] = bytes(len(calls))
        words[RUNNING] = words[DONE] = 0
        words[WRITTEN] = RECORDS
        words[FRAME] = len(frame)
        self.bundle = bundle = CallBundle(calls, page)
        self._given_at = now
        self.look_at = None if self._proven else now + START_LIMIT
        if bundle.shortest is not None:
            self._look_by(now + bundle.shortest)
        if len(calls) > 1:
            self._look_by(now + HOLD)
        try:
            os.write(self.process.bell, b".")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has died: that will be noticed, and the calls come back

    def listen(self) -> bool:
        """Empties the bell; returns False if the other end is closed."""
        try:
            return bool(os.read(self.process.bell, 4096))
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False

    def take(self, now: float) -> list[CallResult]:
        """Returns available results; the worker is idle again (`bundle` is None) when all have been taken."""
        bundle = self.bundle
        if bundle is None:
            return []
        done = bool(self._page.words[DONE])  # read first: once it is set, everything has been written
        results = bundle.take(self._output, done)
        if done:
            self._finish(bundle)
        elif len(bundle.unsettled) > 1:
            self._look_by(now + HOLD)
        return results

    def _finish(self, bundle: CallBundle) -> None:
        if self._grown or bundle.overflowed():
            os.ftruncate(self.process.memory, WINDOW)
        self._output.reset()
        self._proven = True
        self.bundle = None
        self.look_at = None

    def look(self, now: float, patience: float | None) -> list[CallResult]:
        """Does what is due: unannounced results, withdrawals, time-outs, calls that wait longer than `patience`."""
        self.look_at = None
        bundle = self.bundle
        if bundle is None or self.ending:
            return []
        slot, started = self._running()
        age = now - started if slot >= 0 else 0.0
        if slot < 0 and not self._proven and now - self._given_at >= START_LIMIT:
            self._gave_up = True
            self.process.signal_group(signal.SIGKILL)
            return []
        results = bundle.take(self._output, False) if age >= STABLE else []
        if bundle.withdrawn and now - bundle.flagged_at >= STABLE:
            results += self._settle_withdrawn(bundle, slot, age)
        call = bundle.unsettled.get(slot)
        if call is not None and call.timeout is not None and age >= call.timeout:
            self.end("timeout", slot)
        if self.ending:
            return results
        if patience is not None and age >= patience and not bundle.withdrawn:
            self._withdraw(bundle, [later for later in bundle.unsettled if later > slot], now)
        self._plan_look(bundle, slot, started, now, patience)
        return results

    def cancel(self, slot: int, now: float) -> None:
        """Kills a running call or withdraws a waiting one; its result follows."""
        bundle = self.bundle
        assert bundle is not None
        bundle.cancelled.add(slot)
        if slot == self._running()[0]:
            self.end("cancelled", slot)
        else:
            self._withdraw(bundle, [slot], now)

    def end(self, outcome: Outcome, slot: int) -> None:
        """Kills the worker's whole group because of one call; results follow when it is dead."""
        if self.ending is None:
            self.ending = (outcome, slot)
            self.look_at = None
            self.process.signal_group(signal.SIGKILL)

    def settle_death(self) -> list[CallResult]:
        """Settles the calls of a dead worker, then reaps it."""
        bundle = self.bundle
        if bundle is None:
            self.process.reap()
            return []
        results = bundle.take(self._output, True)
        slot, began = self._running()
        output = self._output.read_all()
        how = self.process.reap()
        text = f"the worker process {how} during the call"
        if slot < 0 and bundle.unsettled and not self._proven and not self.ending:
            # One call has to be charged an attempt: otherwise a set-up in which no worker starts would be retried for
            # ever.
            slot = min(bundle.unsettled)
            how = f"took longer than {START_LIMIT:g} s" if self._gave_up else how
            text = f"the worker process {how} before it could begin a call: {_last_line(output)}"
        for unsettled in list(bundle.unsettled):
            if unsettled == slot:
                results.append(self._settle_killed(bundle, slot, text, began, output))
            else:
                results.append(bundle.unbegun(unsettled))
        self.bundle = None
        return results

    def _settle_killed(self, bundle: CallBundle, slot: int, text: str, began: float, output: bytes) -> CallResult:
        if self.ending is None:
            return bundle.settle_killed(slot, "crashed", text, began, output)
        outcome, culprit = self.ending
        if slot != culprit:
            # The call to be killed finished after all; this one had begun and was killed in its place.
            return bundle.settle_killed(slot, "lost", "", began, output)
        if outcome == "timeout":
            text = f"the call was killed after {bundle.unsettled[slot].timeout:g} s, its time limit"
        else:
            text = "the call was cancelled while it ran"
        return bundle.settle_killed(slot, outcome, text, began, output)

    def _running(self) -> tuple[int, float]:
        """Returns the slot that began last, -1 if none did, and when."""
        words = self._page.words
        while True:
            running = words[RUNNING]
            started = self._page.times[STARTED]
            if words[RUNNING] == running:
                return running - 1, started if running else 0.0

    def _withdraw(self, bundle: CallBundle, slots: Sequence[int], now: float) -> None:
        if not slots:
            return
        for slot in slots:
            self._page.memory[FLAGS + slot] = 1
        bundle.withdrawn.extend(slots)
        bundle.flagged_at = now
        self._look_by(now + STABLE)

    def _settle_withdrawn(self, bundle: CallBundle, running: int, age: float) -> list[CallResult]:
        results = []
        open_questions = []
        for slot in bundle.withdrawn:
            if slot not in bundle.unsettled:
                continue
            if slot > running:  # still not begun after STABLE: the worker will see the flag
                results.append(bundle.unbegun(slot))
            elif slot == running and slot in bundle.cancelled:
                # Began just before it was flagged; unless the worker is just skipping it, it has to be killed.
                if age >= STABLE:
                    self.end("cancelled", slot)
                else:
                    open_questions.append(slot)
        bundle.withdrawn = open_questions
        return results

    def _plan_look(self, bundle: CallBundle, slot: int, started: float, now: float, patience: float | None) -> None:
        call = bundle.unsettled.get(slot)
        if slot < 0 and not self._proven:
            self._look_by(self._given_at + START_LIMIT)
        if call is not None and call.timeout is not None:
            self._look_by(started + call.timeout)
        if bundle.withdrawn:
            self._look_by(now + STABLE)
        if len(bundle.unsettled) <= (call is not None):
            return
        if bundle.shortest is not None:
            self._look_by(now + max(bundle.shortest, HOLD))
        if slot < 0 or now - started < HOLD:
            self._look_by(now + HOLD)
        elif patience is not None and not bundle.withdrawn:
            self._look_by(max(started + patience, now + STABLE))

    def _look_by(self, when: float) -> None:
        if self.look_at is None or when < self.look_at:
            self.look_at = when


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").rstrip().rpartition("\n")[2] or "no output"
