"""The callers' side of an executor: numbers and pickles calls, starts the loop's thread at the first call, ends it.

All methods may be called from any thread. The loop does not outlive its process: when the interpreter ends, open calls
of an executor that was not shut down are dropped and its workers killed; after `shutdown(wait=False)`, accepted calls
are finished first. A forked child cannot use its parent's executor.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from typing import Any

from shoal.core.resources import Resources, show_amount
from shoal.core.scheduler import Lane
from shoal.execution.calls.messages import CallResult
from shoal.execution.executor.arguments import (
    Unfilled,
    UnpicklableArgumentError,
    encode,
    encode_all,
    is_shippable,
    name_of,
)
from shoal.execution.executor.call_loop import ExecutorLoop, Inbox
from shoal.execution.executor.call_pool import PoolFactory, make_local_pool
from shoal.execution.executor.calls import MapResults, MapStretch, SingleCall
from shoal.execution.executor.future import CallFuture
from shoal.execution.executor.options import CallOptions
from shoal.execution.executor.worker_side import apply
from shoal.ledger.cluster_notes import NetClusterNote

STRETCH = 1024
"""Number of calls of a `map` that are pickled and posted together, so that the first calls run while later ones are
being pickled."""
MOST_LANES = 512
"""Functions above this number share the estimate of how long calls take."""

_clients: weakref.WeakSet[ExecutorClient] = weakref.WeakSet()


class ExecutorClient:
    """What executors, their configured views and decorated functions submit to."""

    def __init__(
        self,
        node: Resources,
        make_pool: PoolFactory = make_local_pool,
        *,
        cluster: str = "",
        note: NetClusterNote | None = None,
    ) -> None:
        """`cluster` is the name of the cluster where calls run, for messages; empty for this machine. `note` tells how
        to find them there."""
        self.node = node
        self.cluster = cluster
        self.note = note
        self._hire = make_pool
        # Reentrant: the garbage collector may run a finalizer that needs the lock at any point.
        self._lock = threading.RLock()
        self._inbox = Inbox(self._lock)
        self._loop: ExecutorLoop | None = None
        self._thread: threading.Thread | None = None
        self._gone = threading.Event()
        """Set when the loop's thread has ended. Joining the thread would not survive a Ctrl-C (CPython issue 90882)."""
        self._next_task = 0
        self._lanes: dict[tuple[CallOptions, str], int] = {}
        self._closed = False
        self._ended = False
        self._forked = False
        self.live: object = None
        """Keeps the executor's display in a notebook up to date, once there is one."""
        _clients.add(self)

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        options: CallOptions,
        on_attempt: Callable[[CallResult], None] | None = None,
    ) -> CallFuture:
        """Posts one call; `on_attempt` is called with each ended attempt, see `CallFuture.on_attempt`."""
        if is_shippable(function):
            return self._submit(name_of(function), function, arguments, keywords, options, on_attempt)
        return self._submit(name_of(function), apply, (function, *arguments), keywords, options, on_attempt)

    def _submit(
        self,
        name: str,
        shipped: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        options: CallOptions,
        on_attempt: Callable[[CallResult], None] | None = None,
    ) -> CallFuture:
        request: bytes | Unfilled = b""
        error = None
        try:
            request = encode(name, arguments, keywords)
        except UnpicklableArgumentError as unpicklable:
            error = unpicklable
        with self._lock:
            loop = self._ready_loop()
            lane = self._lane(loop, options, name)
            task = self._next_task
            self._next_task += 1
            future = CallFuture(task, name, loop, self._cancel)
            future.on_attempt = on_attempt
            if error is None:
                call = SingleCall(shipped, request, options.timeout, future)
                self._inbox.post(loop.add, (task, lane, call))
        if error is not None:
            future.set_exception(error)
        return future

    def map(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], timeout: float | None, options: CallOptions
    ) -> Generator[Any, None, None]:
        """Posts many calls, without a future for calls with plain arguments; returns their results in order."""
        deadline = None if timeout is None else time.monotonic() + timeout
        name = name_of(function)
        shipped = function
        if not is_shippable(function):
            shipped, calls = apply, [(function, *arguments) for arguments in calls]
        results = MapResults(name)
        stretches: list[MapStretch] = []
        futures: list[CallFuture] = []
        for at in range(0, len(calls), STRETCH):
            some = calls[at : at + STRETCH]
            payloads = encode_all(some)
            if payloads is not None:
                stretches.append(self._post_stretch(shipped, payloads, results, options))
                continue
            # One call contains a future, or cannot be pickled: each call gets its own dependencies and its own failure.
            for arguments in some:
                futures.append(self._submit(name, shipped, arguments, {}, options))
                futures[-1].add_done_callback(partial(results.put_future, results.add_place()))
        with self._lock:
            self._ready_loop()  # even without calls, this raises an error if the executor was shut down

        def give_up() -> None:
            for stretch in stretches:
                stretch.cancelled = True
                self._post_cancel(stretch.tasks)
            for future in futures:
                future.cancel()

        return results.results(deadline, give_up)

    def _post_stretch(
        self, shipped: Callable[..., Any], payloads: list[bytes], results: MapResults, options: CallOptions
    ) -> MapStretch:
        with self._lock:
            loop = self._ready_loop()
            lane = self._lane(loop, options, results.name)
            tasks = range(self._next_task, self._next_task + len(payloads))
            self._next_task = tasks.stop
            stretch = MapStretch(shipped, tasks, payloads, options.timeout, results)
            self._inbox.post(loop.add_stretch, (lane, stretch))
        return stretch

    def _cancel(self, task: int) -> None:
        self._post_cancel((task,))

    def _post_cancel(self, tasks: Iterable[int]) -> None:
        if self._loop is not None and not self._forked:
            self._inbox.post(self._loop.cancel, tasks)

    def _lane(self, loop: ExecutorLoop, options: CallOptions, name: str) -> int:
        """Returns the lane of calls with the same options and function; opens lanes in the order of their numbers."""
        key = (options, options.category or name)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                key = (options, "")
            lane = self._lanes.setdefault(key, len(self._lanes))
            if lane == len(self._lanes) - 1:
                # A call with a time limit is never bundled, so that its limit concerns no other call.
                bundled = options.timeout is None
                # A cluster gets new calls before it runs out of them, because the next bundle takes a while to arrive.
                refilled = bundled and bool(self.cluster)
                self._inbox.post(loop.open_lane, Lane(options.resources, options.retries, bundled, refilled))
        return lane

    def _ready_loop(self) -> ExecutorLoop:
        if self._forked:
            raise RuntimeError("this executor belongs to another process; create one in this process")
        if self._ended and not self._closed:
            raise BrokenExecutor("the executor has stopped after an internal error")
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._loop is None:
            self._loop = ExecutorLoop(self.node, self._inbox, self._hire)
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="shoal-executor", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: ExecutorLoop) -> None:
        try:
            loop.run(self._on_end)
        finally:
            self._gone.set()

    def _on_end(self) -> None:
        with self._lock:
            self._ended = True

    def close(self, *, cancel_unbegun: bool = False, stop: bool = False) -> None:
        """Accepts no more calls; ends when the accepted calls have ended, or at once if `stop` is set."""
        if self._forked:
            return
        with self._lock:
            self._closed = True
            loop = self._loop
            if loop is None:
                self._inbox.close()
                return
            if cancel_unbegun:
                self._inbox.post(loop.cancel_unbegun, None)
            self._inbox.post(loop.stop if stop else loop.finish, None)

    def join(self) -> None:
        """Waits until the workers have ended; a Ctrl-C while waiting kills them at once."""
        if self._loop is None or self._forked:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of a future cannot wait for its executor to shut down")
        try:
            self._gone.wait()
        except KeyboardInterrupt:
            self.close(stop=True)
            raise

    def shut_down_at_exit(self) -> None:
        """The interpreter ends: finishes calls that were accepted before a shutdown, drops all others."""
        if not self._closed:
            self.close(stop=True)
        self.join()

    @property
    def loop(self) -> ExecutorLoop | None:
        """The loop, for displays; None before the first call."""
        return self._loop

    def summary(self) -> str:
        """Returns where calls run and how many ended how, in one line."""
        cores = show_amount("cores", self.node.get("cores"))
        where = f"cluster {self.cluster}" if self.cluster else f"{cores} core{'s' * (cores != '1')}"
        calls = "no calls yet" if self._loop is None else self._loop.tally.summary()
        return f"{where}, {calls}{', shut down' if self._closed else ''}"

    def when_ended(self, tasks: Sequence[int]) -> Future[None]:
        """Returns a future that is done when none of these calls runs anywhere; cancelled if that cannot be known any
        more."""
        over: Future[None] = Future()
        with self._lock:
            if self._loop is None:
                over.set_result(None)
            elif self._ended or self._forked:
                over.cancel()
            else:
                self._inbox.post(self._loop.notify_when_ended, (tasks, over))
        return over

    def is_over(self) -> bool:
        """Whether all calls have ended for good."""
        return self._gone.is_set() or self._forked or (self._closed and self._loop is None)

    def forget_loop_after_fork(self) -> None:
        """Forgets the loop in a forked child, which has no thread for it."""
        self._forked = True


def _shut_down_at_exit() -> None:
    for client in list(_clients):
        client.shut_down_at_exit()


def _forget_loops_after_fork() -> None:
    for client in list(_clients):
        client.forget_loop_after_fork()


atexit.register(_shut_down_at_exit)
os.register_at_fork(after_in_child=_forget_loops_after_fork)
