"""The event loop of an executor: a thread that runs dependencies, scheduler and call pool, fed through an inbox.

Theory of operation. Callers' threads number and pickle calls and post them. Only the loop's thread touches
dependencies, scheduler, call pool and open calls. One turn of the loop handles as a batch what has arrived since the
last turn: results of workers, then messages, then calls that became ready, then cancellations. Results are passed to
futures after the next calls have been started, so that workers do not wait for callbacks. Nothing is kept of a call
that has ended; the futures keep the results that other calls need.

The scheduler decides; `shoal.execution.executor.calls` represents the calls; the call pool runs them.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from typing import Any, TypeAlias, cast

from shoal.core.dependencies import DynamicFlow
from shoal.core.policies.order import TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import Lane, Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    CapacityChanged,
    Command,
    Event,
    GiveUp,
    Kill,
    Start,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
    WakeAt,
)
from shoal.errors import RunError
from shoal.execution.calls.messages import CallRequest, CallResult
from shoal.execution.calls.pickling import CallCancelledError, CallError
from shoal.execution.executor.arguments import FunctionTable
from shoal.execution.executor.call_pool import PoolFactory, make_local_pool, not_run
from shoal.execution.executor.calls import MapStretch, PendingCalls, SingleCall
from shoal.execution.executor.future import CallFuture, failure_of, has_failed
from shoal.execution.executor.tally import CallTally

Message: TypeAlias = tuple[Callable[[Any], None], Any]
"""A method of the loop, and its argument."""


class Inbox:
    """Messages in the order of their arrival; posting never waits for the loop."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Becomes readable when a message arrives while the loop sleeps."""
        self._messages: deque[Message] = deque()
        self._asleep = False

    def __len__(self) -> int:
        return len(self._messages)

    def post(self, handler: Callable[[Any], None], argument: Any) -> None:
        """Posts a message; drops it if the loop has ended."""
        with self._lock:
            if self.wakeup < 0:
                return
            self._messages.append((handler, argument))
            if self._asleep:
                self._asleep = False
                os.eventfd_write(self.wakeup, 1)

    def take(self) -> Message | None:
        """Returns the oldest message, or None."""
        return self._messages.popleft() if self._messages else None

    def fall_asleep(self) -> bool:
        """Announces that the loop will poll; returns False if it must not wait, because there are messages."""
        self._asleep = True
        if self._messages:
            self._asleep = False
            return False
        return True

    def wake(self) -> None:
        """Announces that the loop is awake, and empties the descriptor."""
        self._asleep = False
        try:
            os.eventfd_read(self.wakeup)
        except BlockingIOError:
            pass  # something else woke it

    def close(self) -> None:
        """Closes the inbox: later messages are dropped."""
        with self._lock:
            if self.wakeup >= 0:
                os.close(self.wakeup)
                self.wakeup = -1


ADDED_AT_ONCE = 2048
"""Maximum number of calls added per turn, so that results do not wait while a long `map` arrives."""
MOST_START_TIMES = 4096
"""Maximum number of recorded start times of bundles; above it, those of ended bundles are removed."""
GRACE = 2.0
"""Seconds that idle workers have to exit by themselves."""

_NO_RESULTS: Mapping[int, CallResult] = {}


class ExecutorLoop:
    """The state of the loop's thread; `run` is the thread function, the other public methods handle messages."""

    def __init__(self, node: Resources, inbox: Inbox, make_pool: PoolFactory = make_local_pool) -> None:
        self.tally = CallTally()
        self._inbox = inbox
        self._lane_of: dict[int, int] = {}
        # The scheduler only looks up lanes of tasks that it holds, and entries of a dict can be removed with their
        # task.
        columns = TaskColumns(self._lane_of)
        self._scheduler = Scheduler(node, columns, [], order="fifo")
        self._dependencies = DynamicFlow()
        self._under_way: dict[int, PendingCalls] = {}
        self._since: dict[int, float] = {}
        """When bundles were passed to workers, by the first call of each; some of them have ended."""
        self._returned: list[tuple[str, CallResult]] = []
        """Calls that have returned and are not counted yet, with the names of their functions."""
        self._poll = select.poll()
        self._poll.register(inbox.wakeup, select.POLLIN)
        self._pool = make_pool(lambda descriptor: self._poll.register(descriptor, select.POLLIN), self._poll.unregister)
        self._functions = FunctionTable(self._pool)
        self._ready: list[int] = []
        self._unwanted: list[int] = []
        self._unsent: list[CallResult] = []
        """Results of attempts that ended before they reached a worker."""
        self._wake_at: float | None = None
        self._added = 0
        self._tokens = 0
        self._awaited: list[tuple[Sequence[int], Future[None]]] = []
        self._finishing = False
        self._stopping = False

    # Messages.

    def open_lane(self, lane: Lane) -> None:
        """Adds a lane; lanes are numbered in the order of these messages."""
        self._scheduler.add_lane(lane)

    def add(self, message: tuple[int, int, SingleCall]) -> None:
        """Adds a single call: its task number, lane and call."""
        task, lane, call = message
        self._added += 1
        if not self._register(call, range(task, task + 1), lane):
            return
        needs = call.needs
        if not needs:
            self._ready.append(task)
            return
        waits_for = []
        for future in needs:
            if not future.done():
                waits_for.append(self._task_of(future))
            elif has_failed(future):
                self._fail_for(future, [task])
                return
        if self._dependencies.add(task, waits_for):
            self._make_ready([task])

    def add_stretch(self, message: tuple[int, MapStretch]) -> None:
        """Adds a stretch of a `map`."""
        lane, stretch = message
        self._added += len(stretch.tasks)
        if self._register(stretch, stretch.tasks, lane):
            self._ready.extend(stretch.tasks)

    def cancel(self, tasks: Iterable[int]) -> None:
        """Cancels these calls, except those that have ended."""
        self._unwanted.extend(tasks)

    def cancel_unbegun(self, _: object) -> None:
        """Cancels all calls that no worker has received."""
        self._unwanted.extend(task for task in self._under_way if task not in self._scheduler.running)

    def notify_when_ended(self, message: tuple[Sequence[int], Future[None]]) -> None:
        """Completes the future when none of these calls runs any more; earlier messages are handled first."""
        self._awaited.append(message)

    def finish(self, _: object) -> None:
        """Ends the loop when no call is open."""
        self._finishing = True

    def stop(self, _: object) -> None:
        """Ends the loop at once."""
        self._stopping = True

    def _settled(self, message: tuple[int, Future[Any]]) -> None:
        """Handles the end of a future of another executor."""
        token, future = message
        if has_failed(future):
            self._fail_for(future, self._dependencies.fail(token))
        else:
            self._make_ready(self._dependencies.complete([token]))

    # The thread.

    def run(self, on_end: Callable[[], None]) -> None:
        """Runs the loop until it is told to end; calls `on_end` when nothing more can be submitted."""
        failure: BaseException | None = None
        try:
            while not self._stopping and (self._under_way or self._inbox or not self._finishing):
                self._turn()
        except Exception as error:  # top level of the thread: nobody may wait for a future for ever
            failure = error
        on_end()
        self._settle_rest(failure)
        self._pool.close(0.0 if self._stopping else GRACE)
        self._inbox.close()

    def _settle_rest(self, failure: BaseException | None) -> None:
        """Settles the remaining calls, including those posted last."""
        while (message := self._inbox.take()) is not None:
            handler, argument = message
            handler(argument)
        for task, work in list(self._under_way.items()):
            self.tally.end(work.name, "cancelled" if failure is None else "failed")
            if failure is None:
                work.cancel(task)
            else:
                error = BrokenExecutor(f"the executor has stopped: {type(failure).__name__}: {failure}")
                error.__cause__ = failure
                work.fail_with(task, error)
        self._under_way.clear()
        for _, over in self._awaited:
            over.cancel()  # they are being killed, and their ends will not be reported

    def _turn(self) -> None:
        results = self._wait()
        self._take_messages()
        capacity = self._pool.take_capacity()
        if capacity is not None:
            self._handle(CapacityChanged(capacity))
        if results:
            self._note_failures([result for result in results if result.error is not None])
            ended = [TaskResult(r.task, r.attempt, r.verdict(), r.ended - r.started) for r in results]
            self._handle(TasksEnded(ended), {result.task: result for result in results})
        if self._ready:
            ready, self._ready = self._ready, []
            self._handle(TasksReady(ready))
        if self._unwanted:
            self._drop_unwanted()
        if self._wake_at is not None and time.monotonic() >= self._wake_at:
            self._handle(TimePassed())
        if self._awaited:
            self._report_ends()

    def _report_ends(self) -> None:
        """Reports calls as ended. A cancelled call is open until a worker has ended it."""
        awaited, self._awaited = self._awaited, []
        for tasks, over in awaited:
            if any(task in self._under_way for task in tasks):
                self._awaited.append((tasks, over))
            else:
                over.set_result(None)

    def _note_failures(self, results: list[CallResult]) -> None:
        for result in results:
            if result.outcome != "cancelled" and result.task in self._under_way:
                self.tally.fail(self._under_way[result.task].name, result)

    def _wait(self) -> list[CallResult]:
        """Waits for something to do; returns the results that workers report."""
        results, self._unsent = self._unsent, []
        limit: float | None = 0.0
        if not results and not self._ready and self._inbox.fall_asleep():
            limit = self._patience()
        for descriptor, _ in self._poll.poll(limit):
            if descriptor == self._inbox.wakeup:
                self._inbox.wake()
            else:
                results += self._pool.collect(descriptor)
        results += self._pool.enforce(time.monotonic())
        for result in results:
            work = self._under_way.get(result.task)
            if isinstance(work, SingleCall) and work.future.on_attempt is not None:
                work.future.on_attempt(result)
            if result.output:
                _show(result.output)
        return results

    def _patience(self) -> float | None:
        """Returns the poll timeout in milliseconds."""
        due = self._pool.next_deadline()
        if self._wake_at is not None and (due is None or self._wake_at < due):
            due = self._wake_at
        return None if due is None else max(0.0, due - time.monotonic()) * 1000

    def _take_messages(self) -> None:
        self._added = 0
        while self._added < ADDED_AT_ONCE and (message := self._inbox.take()) is not None:
            handler, argument = message
            handler(argument)

    def _register(self, work: PendingCalls, tasks: range, lane: int) -> bool:
        """Registers open calls; returns False if they ended at once because the function cannot be pickled."""
        self.tally.accept(work.name, len(tasks))
        try:
            work.number = self._functions.take(work.function, len(tasks))
        except CallError as error:
            for task in tasks:
                self.tally.end(work.name, "failed")
                work.fail_with(task, error)
            return False
        self._under_way.update(dict.fromkeys(tasks, work))
        self._lane_of.update(dict.fromkeys(tasks, lane))
        return True

    def _task_of(self, future: Future[Any]) -> int:
        """Returns the dependency number of an open future: its task, or a token if it belongs to another executor."""
        if isinstance(future, CallFuture) and future.owner is self:
            return future.task
        self._tokens -= 1
        token = self._tokens  # negative numbers are not used by tasks
        future.add_done_callback(lambda done: self._inbox.post(self._settled, (token, done)))
        return token

    # Commands of the scheduler.

    def _handle(self, event: Event, results: Mapping[int, CallResult] = _NO_RESULTS) -> None:
        commands = self._scheduler.handle(time.monotonic(), event)
        self._wake_at = None
        for command in commands:
            if type(command) is Start:
                self._start(command)
        done: list[int] = []
        for command in commands:
            kind = type(command)
            if kind is Accept:
                self._accept(cast(Accept, command).task, results, done)
            elif kind is not Start:
                self._carry_out(command, results)
        if self._returned:
            self.tally.add_done(self._returned)
            self._returned = []
        if done and self._dependencies:
            self._make_ready(self._dependencies.complete(done))

    def _accept(self, task: int, results: Mapping[int, CallResult], done: list[int]) -> None:
        work, result = self._over(task), results[task]
        if work.succeed(task, result.value):
            self._returned.append((work.name, result))
            done.append(task)
        else:
            self.tally.end(work.name, "cancelled")
            self._cancel_followers(task)

    def _carry_out(self, command: Command, results: Mapping[int, CallResult]) -> None:
        if isinstance(command, GiveUp):
            self._give_up(command, results.get(command.task))
        elif isinstance(command, Kill):
            self._pool.kill(command.task, command.attempt)
        elif isinstance(command, WakeAt):
            self._wake_at = command.when

    def _start(self, command: Start) -> None:
        requests: list[CallRequest] = []
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            request = self._under_way[task].request(task, attempt)
            if request is not None:
                requests.append(request)
            else:
                self._unsent.append(not_run(task, attempt, CallCancelledError("the call was cancelled")))
        if not requests:
            return
        try:
            needs = self._scheduler.lanes[self._lane_of[requests[0].task]].resources
            self._pool.put(requests, command.place, needs)
            self._note_start(requests[0].task)
        except RunError as error:
            self._unsent += [not_run(call.task, call.attempt, CallError(str(error))) for call in requests]

    def _note_start(self, task: int) -> None:
        if len(self._since) >= MOST_START_TIMES:
            self._since = {task: since for task, since in self._since.items() if task in self._under_way}
        self._since[task] = time.time()

    def _give_up(self, command: GiveUp, result: CallResult | None) -> None:
        task = command.task
        work = self._over(task)
        if command.outcome is AttemptOutcome.CANCELLED:
            self.tally.end(work.name, "cancelled")
            work.cancel(task)
            self._cancel_followers(task)
            return
        self.tally.end(work.name, "failed", result)
        work.fail(task, result)
        if self._dependencies and isinstance(work, SingleCall):
            self._fail_for(work.future, self._dependencies.fail(task))

    def _over(self, task: int) -> PendingCalls:
        work = self._under_way.pop(task)
        del self._lane_of[task]
        self._functions.give_back(work.function)
        return work

    def _cancel(self, task: int) -> None:
        work = self._over(task)
        self.tally.end(work.name, "cancelled")
        work.cancel(task)

    # Read by displays, from any thread.

    def running(self) -> dict[str, int]:
        """Returns the number of calls that workers have received, by function."""
        return dict(Counter(work.name for task in list(self._scheduler.running) if (work := self._under_way.get(task))))

    def working_since(self) -> list[tuple[str, float]]:
        """Returns the functions that workers run, with their start times in seconds since the epoch."""
        began = list(self._since.items())
        return [(work.name, since) for task, since in began if (work := self._under_way.get(task))]

    def cores(self) -> float:
        """Returns the cores available for calls."""
        return self._scheduler.contract.capacity("cores") / FRACTION

    # Dependencies.

    def _make_ready(self, tasks: list[int]) -> None:
        for task in tasks:
            call = cast(SingleCall, self._under_way[task])
            try:
                call.fill()
            except Exception as error:  # pickling the result of a future of another library may raise anything
                reason = f"{type(error).__name__}: {error}"
                said = CallError(f"a result that {call.name} needs cannot be sent to a worker process ({reason})")
                self._over(task).fail_with(task, said)
                self.tally.end(call.name, "failed")
                self._fail_for(call.future, self._dependencies.fail(task))
            else:
                self._ready.append(task)

    def _fail_for(self, future: Future[Any], tasks: Iterable[int]) -> None:
        """Fails all calls that depend, directly or not, on a failed or cancelled future."""
        error = failure_of(future)
        needed = future.name if isinstance(future, CallFuture) else "another future"
        for task in tasks:
            call = cast(SingleCall, self._over(task))
            self.tally.end(call.name, "cancelled" if error is None else "not run")
            if error is None:
                call.cancel(task)
            else:
                call.doom(needed, error)

    def _cancel_followers(self, task: int) -> None:
        if not self._dependencies:
            return
        for follower in self._dependencies.fail(task):
            self._cancel(follower)

    def _drop_unwanted(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        held = []
        for task in unwanted:
            if self._dependencies.waits(task):
                self._cancel(task)
                self._cancel_followers(task)
            else:
                held.append(task)
        self._handle(CancelRequested(held))


def _show(output: bytes) -> None:
    """Prints the output of a call where the program prints."""
    try:
        sys.stdout.write(output.decode(errors="replace"))
        sys.stdout.flush()
    except Exception:  # there is none, it was closed, or the program replaced it by an object that may raise anything
        pass
