"""A pool of persistent worker processes that run Python calls, for a single-threaded event loop.

The loop owns the poll object. It learns which descriptors to poll for reading through `on_open` and `on_close`, calls
`collect` with those that are readable, and `enforce` at `next_deadline` (both by the monotonic clock). Only `close`
blocks. The pool does not decide what runs when, how often or how many at a time: `start` passes a bundle of calls to an
idle worker, otherwise to a new one; if descriptors are short it waits for one. It installs no signal handler and waits
only for its own children, so it can live in a thread of any program.

`shoal.execution.calls.worker_client` handles one worker, `shoal.execution.calls.protocol` defines the shared memory,
`shoal.execution.calls.worker` runs in the worker.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import RunError
from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.calls.protocol import MAX_CALLS, ValueOf, function_payload, plain_payload, task_payload
from shoal.execution.calls.worker_client import MARKER, CallWorker, Lifeline, WorkerProcess, ended_call
from shoal.execution.process_limits import OUT_OF_DESCRIPTORS, is_scarce

__all__ = [
    "MAX_CALLS",
    "CallRequest",
    "CallResult",
    "ValueOf",
    "WorkerPool",
    "plain_payload",
    "task_payload",
]

PATIENCE = 0.05
"""Calls bundled behind one that runs longer than this are returned as lost, to be run elsewhere."""

_KILLED_BY = 5.0  # how long `close` waits for a killed process before it leaves it to init


def _ignore(descriptor: int) -> None:
    """Does nothing: for callers that do not poll."""


class WorkerPool:
    """Worker processes and the calls in them."""

    def __init__(
        self,
        *,
        directory: str,
        environment: Mapping[str, str],
        sys_path: Sequence[str],
        run_id: str,
        on_open: Callable[[int], None] = _ignore,
        on_close: Callable[[int], None] = _ignore,
        patience: float | None = PATIENCE,
    ) -> None:
        self._directory = os.path.abspath(directory)
        self._environment = {**environment, MARKER: run_id}
        # An empty or relative entry means the directory of this program, not that of the worker.
        self._sys_path = [os.path.abspath(entry) for entry in sys_path]
        self._on_open = on_open
        self._on_close = on_close
        self._patience = patience
        self._lifeline = Lifeline()
        self._owner = os.getpid()
        self._functions: dict[int, bytes] = {}
        self._numbers: dict[int, tuple[int, Callable[..., Any]]] = {}
        self._registered = 0
        self._by_descriptor: dict[int, CallWorker] = {}
        self._workers: dict[int, CallWorker] = {}
        self._idle: list[CallWorker] = []
        self._waiting: deque[list[CallRequest]] = deque()
        """Bundles that wait for a worker because descriptors are short."""
        self._settled: list[CallResult] = []
        self._due: float | None = None
        """Not later than the earliest `look_at` of any worker."""

    def register(self, function: Callable[..., Any]) -> int:
        """Returns a number for the function, which is pickled now and only once; raises what pickling raises."""
        known = self._numbers.get(id(function))
        if known is not None:
            return known[0]
        pickled = function_payload(function)
        number = self._registered
        self._registered += 1
        self._functions[number] = pickled
        # Holding the function keeps its id from being reused.
        self._numbers[id(function)] = (number, function)
        return number

    def release(self, function: int) -> None:
        """Forgets a registered function without open calls, here and in the workers."""
        for identity, (number, _) in self._numbers.items():
            if number == function:
                del self._numbers[identity]
                break
        del self._functions[function]
        for worker in self._workers.values():
            worker.forget(function)

    def warm(self, count: int) -> None:
        """Starts workers before the first calls until `count` are idle."""
        while len(self._idle) < count:
            self._idle.append(self._new_worker())

    def start(self, calls: Sequence[CallRequest]) -> None:
        """Runs up to `MAX_CALLS` calls one after another in one worker."""
        if self._waiting or not self._give(calls):
            self._waiting.append(list(calls))

    def _give(self, calls: Sequence[CallRequest]) -> bool:
        """Passes calls to a worker; returns False if there is none and descriptors are too short for another one."""
        if not self._idle:
            is_busy = any(worker.bundle is not None for worker in self._workers.values())
            try:
                if is_busy and is_scarce(self._lifeline.descriptor):
                    return False
                self._idle.append(self._new_worker())
            except RunError as error:
                cause = error.__cause__
                if is_busy and isinstance(cause, OSError) and cause.errno in OUT_OF_DESCRIPTORS:
                    return False
                raise
        worker = self._idle.pop()
        worker.give(calls, self._functions, time.monotonic())
        self._note_due(worker)
        return True

    def _give_waiting(self) -> None:
        """Tries waiting bundles again after a worker has become idle or has ended."""
        while self._waiting:
            try:
                if self._waiting[0] and not self._give(self._waiting[0]):  # all of its calls may have been cancelled
                    return
                self._waiting.popleft()
            except RunError:  # the next caller of `start` gets the error
                self._settle([ended_call(call, "lost", "", 0.0, 0.0, b"") for call in self._waiting.popleft()])

    def _settle(self, results: Sequence[CallResult]) -> None:
        """Stores results of calls that no worker has; `enforce` returns them."""
        self._settled += results
        self._due = time.monotonic()

    def pids(self) -> list[int]:
        """Returns the pids of the workers, each the leader of its own process group."""
        return list(self._workers)

    def collect(self, descriptor: int) -> list[CallResult]:
        """Returns the results that a readable descriptor announces; none for a descriptor that is closed meanwhile."""
        worker = self._by_descriptor.get(descriptor)
        if worker is None:
            return []
        if descriptor == worker.process.death:
            self._forget(worker)
            results = worker.settle_death()
            self._give_waiting()
            return results
        now = time.monotonic()
        if not worker.listen():
            # It is about to die, or a call closed a descriptor that is not its own: either way its death will be
            # reported.
            self._hang_up(worker)
            return []
        busy = worker.bundle is not None
        results = worker.take(now)
        if worker.bundle is not None:
            self._note_due(worker)
        elif busy and worker.ending is None:
            self._idle.append(worker)
            self._give_waiting()
        return results

    def next_deadline(self) -> float | None:
        """Returns when to call `enforce`, by the monotonic clock."""
        return self._due

    def enforce(self, now: float) -> list[CallResult]:
        """Does what is due, above all time-outs; `collect` reports killed calls when their worker is dead."""
        if self._due is None or now < self._due:
            return []
        self._due = None
        results, self._settled = self._settled, []
        for worker in self._workers.values():
            if worker.look_at is not None and worker.look_at <= now:
                results += worker.look(now, self._patience)
            self._note_due(worker)
        return results

    def kill(self, task: int, attempt: int) -> bool:
        """Cancels a call that runs or waits; returns False if there is none. Its result follows, usually as
        `cancelled`.

        Cancelling a running call kills its worker, and calls bundled with it are returned as lost.
        """
        for calls in self._waiting:
            for call in calls:
                if call.task == task and call.attempt == attempt:
                    calls.remove(call)
                    text = "the call was cancelled before it began"
                    self._settle([ended_call(call, "cancelled", text, 0.0, 0.0, b"")])
                    return True
        for worker in self._workers.values():
            unsettled = worker.bundle.unsettled if worker.bundle is not None else {}
            for slot, call in unsettled.items():
                if call.task == task and call.attempt == attempt:
                    worker.cancel(slot, time.monotonic())
                    self._note_due(worker)
                    return True
        return False

    def close(self, grace: float) -> None:
        """Ends all workers and their descendants: closes the bell of idle ones, sends SIGTERM to others, and SIGKILL to
        all after `grace`."""
        if os.getpid() != self._owner:
            return  # a forked copy of the program: the workers are not its children
        for worker in list(self._workers.values()):
            if worker.bundle is None:
                self._hang_up(worker)
            else:
                worker.process.signal_group(signal.SIGTERM)
        self._wait_for_deaths(time.monotonic() + grace)
        for worker in self._workers.values():
            worker.process.signal_group(signal.SIGKILL)
        self._wait_for_deaths(time.monotonic() + _KILLED_BY)
        self._lifeline.close()

    def _wait_for_deaths(self, deadline: float) -> None:
        poll = select.poll()
        for worker in self._workers.values():
            poll.register(worker.process.death, select.POLLIN)
        while self._workers and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                self.collect(descriptor)

    def _new_worker(self) -> CallWorker:
        try:
            process = WorkerProcess(self._lifeline, self._directory, self._environment, self._sys_path)
        except OSError as error:
            raise RunError(f"cannot start a worker process: {error.strerror}") from error
        worker = CallWorker(process)
        self._workers[process.pid] = worker
        for descriptor in (process.bell, process.death):
            self._by_descriptor[descriptor] = worker
            self._on_open(descriptor)
        return worker

    def _hang_up(self, worker: CallWorker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
        if self._by_descriptor.pop(worker.process.bell, None):
            self._on_close(worker.process.bell)
            worker.process.hang_up()

    def _forget(self, worker: CallWorker) -> None:
        self._hang_up(worker)
        del self._by_descriptor[worker.process.death]
        self._on_close(worker.process.death)
        del self._workers[worker.process.pid]

    def _note_due(self, worker: CallWorker) -> None:
        if worker.look_at is not None and (self._due is None or worker.look_at < self._due):
            self._due = worker.look_at
