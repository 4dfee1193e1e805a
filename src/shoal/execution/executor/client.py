"""The callers' side of an engine: numbers and pickles calls, starts the engine's thread with the first, ends it.

Everything here may be called from any thread. An engine outlives neither its program nor its process: when the
interpreter ends, calls of an executor that was not shut down are dropped and the workers ended; what was accepted
before a `shutdown(wait=False)` is finished first. A forked child has no part in its parent's engine.
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
from shoal.execution.executor.call_pool import Hire, hire_locally
from shoal.execution.executor.calls import MapResults, MapStretch, SingleCall
from shoal.execution.executor.future import CallFuture
from shoal.execution.executor.options import CallOptions
from shoal.execution.executor.worker_side import apply
from shoal.ledger.cluster_notes import NetClusterNote

STRETCH = 1024
"""Calls of a `map` that are pickled and posted together, so that the first run while the last are being pickled."""
MOST_LANES = 512
"""Functions beyond these share what is learned about how long calls take."""

_clients: weakref.WeakSet[ExecutorClient] = weakref.WeakSet()


class ExecutorClient:
    """What executors, their configured views and decorated functions submit to."""

    def __init__(
        self, node: Resources, hire: Hire = hire_locally, *, far: str = "", farmed: NetClusterNote | None = None
    ) -> None:
        """`far`: the cluster where calls run, for messages; nothing: this machine. `farmed` is how to find them."""
        self.node = node
        self.far = far
        self.farmed = farmed
        self._hire = hire
        # Reentrant: a finalizer may need it wherever the garbage collector happens to run.
        self._lock = threading.RLock()
        self._inbox = Inbox(self._lock)
        self._engine: ExecutorLoop | None = None
        self._thread: threading.Thread | None = None
        self._gone = threading.Event()
        """Set when the engine's thread has ended; joining it would not survive a Ctrl-C (CPython issue 90882)."""
        self._next_task = 0
        self._lanes: dict[tuple[CallOptions, str], int] = {}
        self._closed = False
        self._ended = False
        self._forked = False
        self.live: object = None
        """What keeps its pictures in a notebook up to date, once there is one."""
        _clients.add(self)

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        options: CallOptions,
        heard: Callable[[CallResult], None] | None = None,
    ) -> CallFuture:
        """Post one call; `heard` is told of each attempt that ends, see `CallFuture.heard`."""
        if is_shippable(function):
            return self._submit(name_of(function), function, arguments, keywords, options, heard)
        return self._submit(name_of(function), apply, (function, *arguments), keywords, options, heard)

    def _submit(
        self,
        name: str,
        shipped: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        options: CallOptions,
        heard: Callable[[CallResult], None] | None = None,
    ) -> CallFuture:
        request: bytes | Unfilled = b""
        error = None
        try:
            request = encode(name, arguments, keywords)
        except UnpicklableArgumentError as unpicklable:
            error = unpicklable
        with self._lock:
            engine = self._ready_engine()
            lane = self._lane(engine, options, name)
            task = self._next_task
            self._next_task += 1
            future = CallFuture(task, name, engine, self._cancel)
            future.heard = heard
            if error is None:
                call = SingleCall(shipped, request, options.timeout, future)
                self._inbox.post(engine.add, (task, lane, call))
        if error is not None:
            future.set_exception(error)
        return future

    def map(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], timeout: float | None, options: CallOptions
    ) -> Generator[Any, None, None]:
        """Post many calls, those with plain arguments without a future each; returns their results in order."""
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
            # One has a future in it, or cannot be sent: each gets its own dependencies and its own failure.
            for arguments in some:
                futures.append(self._submit(name, shipped, arguments, {}, options))
                futures[-1].add_done_callback(partial(results.put_future, results.add_place()))
        with self._lock:
            self._ready_engine()  # where there are no calls, this alone tells that the executor was shut down

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
            engine = self._ready_engine()
            lane = self._lane(engine, options, results.name)
            tasks = range(self._next_task, self._next_task + len(payloads))
            self._next_task = tasks.stop
            stretch = MapStretch(shipped, tasks, payloads, options.timeout, results)
            self._inbox.post(engine.add_stretch, (lane, stretch))
        return stretch

    def _cancel(self, task: int) -> None:
        self._post_cancel((task,))

    def _post_cancel(self, tasks: Iterable[int]) -> None:
        if self._engine is not None and not self._forked:
            self._inbox.post(self._engine.cancel, tasks)

    def _lane(self, engine: ExecutorLoop, options: CallOptions, name: str) -> int:
        """Calls alike in what they ask for and how long they may take; opened in the order of the numbers."""
        key = (options, options.category or name)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                key = (options, "")
            lane = self._lanes.setdefault(key, len(self._lanes))
            if lane == len(self._lanes) - 1:
                # A call with a time limit travels alone, so that its limit is about it and nothing else.
                bundled = options.timeout is None
                # What is far away gets more before it has nothing left: the next bundle takes a while to arrive.
                refilled = bundled and bool(self.far)
                self._inbox.post(engine.open_lane, Lane(options.resources, options.retries, bundled, refilled))
        return lane

    def _ready_engine(self) -> ExecutorLoop:
        if self._forked:
            raise RuntimeError("this executor belongs to the process that made it; make one in this process")
        if self._ended and not self._closed:
            raise BrokenExecutor("the executor has stopped after an internal error")
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._engine is None:
            self._engine = ExecutorLoop(self.node, self._inbox, self._hire)
            self._thread = threading.Thread(target=self._run, args=(self._engine,), name="shoal-executor", daemon=True)
            self._thread.start()
        return self._engine

    def _run(self, engine: ExecutorLoop) -> None:
        try:
            engine.run(self._on_end)
        finally:
            self._gone.set()

    def _on_end(self) -> None:
        with self._lock:
            self._ended = True

    def close(self, *, cancel_unbegun: bool = False, stop: bool = False) -> None:
        """Take no more calls and end when those accepted are over, or at once if told to stop."""
        if self._forked:
            return
        with self._lock:
            self._closed = True
            engine = self._engine
            if engine is None:
                self._inbox.close()
                return
            if cancel_unbegun:
                self._inbox.post(engine.cancel_unbegun, None)
            self._inbox.post(engine.stop if stop else engine.finish, None)

    def join(self) -> None:
        """Wait until the workers have ended; a Ctrl-C while waiting ends them at once."""
        if self._engine is None or self._forked:
            return
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of a future cannot wait for its executor to shut down")
        try:
            self._gone.wait()
        except KeyboardInterrupt:
            self.close(stop=True)
            raise

    def end_with_program(self) -> None:
        """The interpreter ends: finish what was accepted before a shutdown, drop everything else."""
        if not self._closed:
            self.close(stop=True)
        self.join()

    @property
    def engine(self) -> ExecutorLoop | None:
        """For those who look on; None before the first call."""
        return self._engine

    def told(self) -> str:
        """Where calls run and what has become of them, in a line."""
        cores = show_amount("cores", self.node.get("cores"))
        where = f"cluster {self.far}" if self.far else f"{cores} core{'s' * (cores != '1')}"
        calls = "no calls yet" if self._engine is None else self._engine.tally.told()
        return f"{where}, {calls}{', shut down' if self._closed else ''}"

    def ends_of(self, tasks: Sequence[int]) -> Future[None]:
        """Done when none of these calls runs anywhere; cancelled when that will not be known any more."""
        over: Future[None] = Future()
        with self._lock:
            if self._engine is None:
                over.set_result(None)
            elif self._ended or self._forked:
                over.cancel()
            else:
                self._inbox.post(self._engine.await_ends, (tasks, over))
        return over

    def is_over(self) -> bool:
        """Whether no call will end any more."""
        return self._gone.is_set() or self._forked or (self._closed and self._engine is None)

    def disown(self) -> None:
        """This is a forked child: there is no engine here."""
        self._forked = True


def _end_with_program() -> None:
    for client in list(_clients):
        client.end_with_program()


def _disown_all() -> None:
    for client in list(_clients):
        client.disown()


atexit.register(_end_with_program)
os.register_at_fork(after_in_child=_disown_all)
