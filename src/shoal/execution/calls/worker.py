"""The worker process: runs bundles of Python calls until its pool closes the socket or dies.

Theory of operation. The pool starts `BOOT` with the descriptors defined in `shoal.execution.calls.protocol`. A byte on
the bell (a socket) means that a bundle is in the shared page. The worker runs its calls one after another. Before each
call it writes to the page which call it is and when it began, so that the pool knows which call a crash or time-out
belongs to. Only then it checks whether the call was withdrawn (the order matters, see
`shoal.execution.calls.worker_client`). After each call it writes a record. It rings at the end of the bundle, and
earlier if the last ring is some milliseconds ago: a ring costs more than a short call.

If the pool's process dies, the kernel kills this process and its group: the pool armed the lifeline, a pipe, to send
SIGKILL when its other end closes. That needs no thread here (threads would disturb programs that fork) and works even
while a call blocks the interpreter.

Start-up time counts, so this module imports only what the first call needs, and not `typing`.
"""

from __future__ import annotations

import io
import marshal
import os
import pickle
import resource
import sys
from collections.abc import Callable
from os import SEEK_END
from time import monotonic

from shoal.execution.calls.pickling import PICKLING_ERRORS, dumps_by_value
from shoal.execution.calls.protocol import (
    ACTION,
    BELL_FD,
    DONE,
    FAILED,
    FINISHED,
    FLAGS,
    FRAME,
    LIFELINE_FD,
    MEMORY_FD,
    OUTPUT_FD,
    PLAIN,
    RECORD,
    RECORDS,
    RUNNING,
    SKIPPED,
    STARTED,
    WRITTEN,
    Page,
)
from shoal.execution.calls.source_modules import load_from_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BOOT = "import sys; sys.path[:] = sys.argv[2:]; from shoal.execution.calls.worker import main; main(sys.argv[1])"
"""The program of the interpreter; its arguments are the working directory and the module search path."""

RING_INTERVAL = 0.002
"""Seconds between two announcements of results."""
READ_USAGE_AFTER = 0.001
"""CPU time is read from the kernel after this much work; for shorter calls, all their time counts as CPU time."""
READ_PEAK_AFTER = 0.01
"""Peak memory is read after calls that took this long; shorter ones report 0."""

_PICKLED_NONE = pickle.dumps(None, 5)
_NOTHING = object()


def main(directory: str) -> None:
    """Serves the pool until it closes the bell."""
    sys.argv[:] = ["shoal-worker"]
    load_from_source()
    _settle(directory)
    page = Page(MEMORY_FD)
    calls = WorkerCalls(directory)
    usage = CallUsage()
    while os.read(BELL_FD, 1):
        run_bundle(page, calls, usage)


def _settle(directory: str) -> None:
    """Prepares the process for users' calls."""
    import faulthandler

    # A segmentation fault then writes the Python stack to the output of the call that caused it.
    faulthandler.enable()
    for descriptor in (BELL_FD, MEMORY_FD, LIFELINE_FD, OUTPUT_FD):
        os.set_inheritable(descriptor, False)
    # A child that a call forks must not use the pool's page and bell.
    os.register_at_fork(after_in_child=_detach_from_pool)
    # Output is written line by line, so a crash loses no whole line and the two streams stay in order. Standard error
    # is unbuffered: otherwise a message without a line end would come after later output of the call's child processes.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace", write_through=True)
    os.chdir(directory)


_detached: list[bool] = []
"""Not empty in a child that a call forked: it shares the page, and must not touch it."""


def _detach_from_pool() -> None:
    _detached.append(True)
    os.close(BELL_FD)


def run_bundle(page: Page, calls: WorkerCalls, usage: CallUsage) -> None:
    """Runs the calls in the page and writes a record of each."""
    requests = calls.unpack(page)
    words, times, memory = page.words, page.times, page.memory
    position = RECORDS
    rung = monotonic()
    last = len(requests) - 1
    pack, lseek, perform = RECORD.pack, os.lseek, calls.perform
    for slot, (function, payload) in enumerate(requests):
        # RUNNING is written before the flag is read. If the pool sets the flag and then finds no RUNNING for this call,
        # the worker has yet to read the flag and will skip the call: no lock is needed.
        began = monotonic()
        times[STARTED] = began
        words[RUNNING] = slot + 1
        outcome, body = (SKIPPED, b"") if memory[FLAGS + slot] else perform(function, payload)
        if _detached:  # a forked child returned from the call as well
            os._exit(0)
        ended = monotonic()
        user, system, peak = usage.of_call(ended - began)
        printed = lseek(OUTPUT_FD, 0, SEEK_END)
        head = pack(slot, outcome, began, ended, user, system, peak, printed, len(body))
        position = page.store(position, head + body)
        words[WRITTEN] = position
        if ended - rung > RING_INTERVAL and slot != last:
            os.write(BELL_FD, b".")
            rung = ended
    words[DONE] = 1
    os.write(BELL_FD, b".")


class WorkerCalls:
    """The functions that this worker has received, and how it calls them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pickled: dict[int, bytes] = {}
        self._functions: dict[int, Callable[..., Any]] = {}
        self._flush_output = sys.stdout.flush
        self._flush_errors = sys.stderr.flush

    def unpack(self, page: Page) -> list[tuple[int, memoryview]]:
        """Copies the bundle out of the page, where results will be written; learns and forgets functions."""
        frame = page.fetch(RECORDS, page.words[FRAME])
        head_end = 8 + int.from_bytes(frame[:8], "little")
        learned, forgotten, sizes = marshal.loads(frame[8:head_end])
        self._pickled.update(learned)
        for function in forgotten:
            self._pickled.pop(function, None)
            self._functions.pop(function, None)
        view = memoryview(frame)
        requests = []
        position = head_end
        for function, size in sizes:
            requests.append((function, view[position : position + size]))
            position += size
        return requests

    def perform(self, number: int, payload: memoryview) -> tuple[int, bytes]:
        """Makes one call; anything short of the end of the process becomes its outcome."""
        value: object = _NOTHING
        try:
            function = self._functions.get(number) or self._load(number)
            request = pickle.loads(payload)
            value = function(*request[1], **request[2]) if request[0] == PLAIN else self._act(function, request)
            body = _PICKLED_NONE if value is None else encode_value(value)
            outcome = FINISHED
        except BaseException as error:  # top level of the process: the call failed, the worker continues
            outcome = FAILED
            body = _failure(error, value)
        try:
            self._flush_output()
            self._flush_errors()
        except (OSError, ValueError):
            # The call closed the stream, or the disk is full: from now on there is nothing to flush.
            self._flush_output = self._flush_errors = _do_nothing
        return outcome, body

    def _load(self, number: int) -> Callable[..., Any]:
        function: Callable[..., Any] = pickle.loads(self._pickled[number])
        self._functions[number] = function
        return function

    def _act(self, function: Callable[..., Any], request: tuple[Any, ...]) -> object:
        """Calls a task's function in its directory, with its environment variables."""
        kind, environment, directory, *about = request
        # File names of a task are relative to the workflow, whatever directory an earlier action changed to.
        os.chdir(self._directory)
        if directory:
            os.chdir(directory)
        if environment and "PATH" in environment:
            from shoal.execution.processes.shell import keep_path

            keep_path()
        before = _set_variables(environment) if environment else {}
        try:
            if kind != ACTION:
                return function(*about[0], **about[1])
            from shoal.execution.calls.task_api import RunningTask

            task = RunningTask(*about)
            value: object = function(task)
            return task.value if value is None else value
        finally:
            if before:
                _set_variables(before)


def _set_variables(wanted: dict[str, str | None]) -> dict[str, str | None]:
    """Sets or removes environment variables; returns their former values."""
    before = {name: os.environ.get(name) for name in wanted}
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _do_nothing() -> None:
    pass


def encode_value(value: object) -> bytes:
    """Pickles a result."""
    try:
        return pickle.dumps(value, 5)
    except PICKLING_ERRORS:
        # It may be an instance of a class that came here by value; it returns the same way.
        return dumps_by_value(value)


def _failure(error: BaseException, value: object) -> bytes:
    """Returns the body of a failed call's record; `value` is the return value if only pickling it failed."""
    from shoal.execution.calls.pickling import UnpicklableResultError, describe

    if value is not _NOTHING:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        reason = f"{type(error).__name__}: {error}"
        error = UnpicklableResultError(f"the call returned a {kind}, which cannot be sent back ({reason})")
    return marshal.dumps(describe(error))


class CallUsage:
    """CPU time and peak memory per call, in a process that makes many calls.

    The kernel counts per process, and a query costs as much as a short call. So one query covers several short calls;
    the last of them gets the difference.
    """

    def __init__(self) -> None:
        self._unread = 0.0
        self._own = resource.getrusage(resource.RUSAGE_SELF)
        self._children = resource.getrusage(resource.RUSAGE_CHILDREN)

    def of_call(self, elapsed: float) -> tuple[float, float, int]:
        """Returns user CPU, system CPU and peak memory in bytes of the call that just took `elapsed` seconds."""
        if self._unread + elapsed < READ_USAGE_AFTER:
            self._unread += elapsed
            return elapsed, 0.0, 0
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        of_children = children.ru_utime + children.ru_stime - self._children.ru_utime - self._children.ru_stime
        user = own.ru_utime - self._own.ru_utime + children.ru_utime - self._children.ru_utime - self._unread
        system = own.ru_stime - self._own.ru_stime + children.ru_stime - self._children.ru_stime
        peak = 0
        if elapsed >= READ_PEAK_AFTER:
            peak = _take_peak()
            if of_children:
                peak = max(peak, children.ru_maxrss * 1024)
        self._unread, self._own, self._children = 0.0, own, children
        return max(user, 0.0), system, peak


def _take_peak() -> int:
    """Returns the peak resident memory since the last query, in bytes.

    `ru_maxrss` is unsuitable: it starts with the size of the process that spawned this one and never falls.
    """
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmHWM:"):
                peak = int(line.split()[1]) * 1024
                break
        else:
            return 0
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as clear:
            clear.write(b"5")
    except OSError:
        pass  # not permitted here: the peak is then that of all calls so far
    return peak
