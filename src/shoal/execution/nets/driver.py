"""The event loop of a net's run: takes tasks from the net, submits them, feeds results back, writes the journal.

One thread does all of it; others post to its inbox. Tasks are taken a little ahead of those that run, so that no node
waits for the loop, but not further: which task is next may depend on coming results, and a task that reads a token sees
it as it was when the task was taken. Tasks are grouped by their resource request and taken until there are enough of
each kind. Otherwise the first task of a kind that cannot run now would block all others behind it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from functools import partial
from typing import Any, Protocol

import msgspec

from shoal.core.policies.implementations import Performance
from shoal.core.resources import FRACTION, Resources, is_label, requiring
from shoal.errors import InputError, RunError, ShoalError
from shoal.execution.calls.messages import CallResult
from shoal.execution.executor.client import ExecutorClient
from shoal.execution.executor.future import CallFuture
from shoal.execution.executor.options import CallOptions, CallOptionValues
from shoal.execution.nets.journal import MARKED_EVERY, OVER, NetJournal
from shoal.execution.nets.task_calls import TimedResult, run_command, timed
from shoal.ledger.records import NetMarked
from shoal.petri import Net, NetFlow
from shoal.petri import records as r
from shoal.petri.transition import Transition, meant, told

CORE_NAMES = ("cpu", "core", "cores")
GPU_NAMES = ("gpu", "gpus")


class TransitionImplementation(msgspec.Struct, frozen=True):
    """One way to run the tasks of a transition."""

    name: str
    function: Callable[..., TimedResult]
    options: CallOptions


class NetTaskSender:
    """Submits the tasks of one net to one executor."""

    def __init__(
        self, net: Net, client: ExecutorClient, directory: str | None = None, defaults: CallOptionValues | None = None
    ) -> None:
        """`defaults` are the options of tasks that do not set their own."""
        self.client = client
        self._wishes: CallOptionValues = defaults or {}
        self.directory = directory or os.getcwd()
        self.performance = Performance()
        self._ways: dict[str, list[TransitionImplementation]] = {}
        self._chosen: dict[int, str] = {}
        for spec in net.transitions.values():
            if spec.is_task:
                self._ways[spec.name] = self._ways_of(spec)

    def _ways_of(self, spec: Transition) -> list[TransitionImplementation]:
        """Returns the implementations that can run; raises an error at once if this executor can never run any of
        them."""
        profile = spec.profile
        base = options_of(spec, self._wishes)
        place = os.path.join(self.directory, profile.directory) if profile.directory else None
        wrapped = partial(timed, environment=dict(profile.environment), directory=place)
        if spec.implementations:
            ways = [
                TransitionImplementation(
                    name, wrapped(function), msgspec.structs.replace(base, resources=needs(name, base.resources))
                )
                for name, function in spec.implementations
            ]
        else:
            ways = [
                TransitionImplementation("", wrapped(spec.function) if spec.function is not None else run_command, base)
            ]
        found, problem = [], None
        for way in ways:
            try:
                way.options.check_fits(self.client.node, self.client.cluster)
                found.append(way)
            except InputError as error:
                problem = error
        if not found:
            assert problem is not None, "a task has at least one way"
            lacking = ways[-1].options.resources.lacking_in(self.client.node)
            remedy = meant(name for name in lacking if not is_label(name)) or problem.remedy
            message = f"net {spec.net!r}: the task {spec.name!r} can never run: {problem.message}"
            raise InputError(message, remedy=remedy)
        return found

    def send(self, task: r.Task, on_attempt: Callable[[CallResult], None] | None = None) -> Future[Any]:
        """Submits a task; the result is a `TimedResult`, or the exception of the user's function. `on_attempt` is
        called with each of its attempts, in another thread."""
        spec = task.transition
        way = self._choose(task)
        if spec.command is not None:
            place = os.path.join(self.directory, spec.profile.directory or "")
            arguments = (task.command_line(), dict(spec.profile.environment), place, spec.profile.shell)
            return self.client.submit(way.function, arguments, {}, way.options, on_attempt)
        if spec.by_keyword:
            return self.client.submit(way.function, (), task.arguments, way.options, on_attempt)
        return self.client.submit(way.function, tuple(task.arguments.values()), {}, way.options, on_attempt)

    def _choose(self, task: r.Task) -> TransitionImplementation:
        ways = self._ways[task.transition.name]
        if len(ways) == 1:
            return ways[0]
        node = self.client.node
        slots = {way.name: _slots(way.options.resources, node) for way in ways}
        name = self.performance.choose(task.transition.name, slots)
        self._chosen[task.id] = name
        return next(way for way in ways if way.name == name)

    def learn(self, task: r.Task, seconds: float) -> None:
        """Records the duration of a task."""
        name = self._chosen.pop(task.id, None)
        if name is not None:
            self.performance.ended(task.transition.name, name, seconds)

    def lost(self, task: r.Task) -> None:
        """Records that a task did not finish."""
        name = self._chosen.pop(task.id, None)
        if name is not None:
            self.performance.lost(task.transition.name, name)


def options_of(spec: Transition, defaults: CallOptionValues) -> CallOptions:
    """Returns the options of a task's calls; `defaults` fill in what it does not set."""
    profile = spec.profile
    base = CallOptions(profile.resources, profile.retries, profile.timeout, profile.category)
    if not defaults:
        return base
    default = CallOptions().changed(defaults)
    said = {name: amount for name, amount in profile.resources.amounts if name != "cores" or profile.cores_declared}
    return CallOptions(
        Resources.of(dict(default.resources.amounts) | said),
        profile.retries or default.retries,
        profile.timeout or default.timeout,
        default.category if default.category and profile.category == spec.name else profile.category,
    )


def needs(name: str, resources: Resources) -> Resources:
    """Returns the additional resources that an implementation of this name requests."""
    amounts = dict(resources.amounts)
    if name in CORE_NAMES:
        return resources
    if name in GPU_NAMES:
        return Resources.of({"gpus": FRACTION} | amounts)
    return requiring(resources, [name])


def _slots(asked: Resources, node: Resources) -> int:
    """Returns how many such tasks a node runs at once."""
    counts = [node.get(name) // amount for name, amount in asked.amounts if amount > 0 and name in ("cores", "gpus")]
    return max(1, min(counts, default=1))


AHEAD_SECONDS = 0.03
"""Seconds of work to take in advance for each running task."""
LEAST_AHEAD = 2
SHARE_AHEAD = 0.5
MOST_PER_KIND = 1024
"""Limits on waiting tasks per kind of request: at least a fixed number, at least this fraction of the running ones, and
for short tasks as many as that work needs, up to the maximum."""
LOOK_SECONDS = 0.02
"""Seconds between two checks which calls have begun, when nothing else happens."""
MOST_AHEAD = 20_000
"""Maximum number of tasks taken in advance, of all kinds."""
DRAWN_AT_ONCE = 256
"""Number of tasks to take before new messages are handled."""
WEIGHT = 0.1
"""Weight of a new task in the average duration of its kind."""

Action = Callable[[], object]


class NetListener(Protocol):
    """Receives progress of a run; called in the loop's thread."""

    def task_over(self, task: r.Task, started: float, ended: float, cpu: float, problem: str) -> None: ...

    def marked(self, mark: NetMarked) -> None: ...


class RequestKind:
    """The tasks with one request: how many are open, how many of them run, how long they take."""

    __slots__ = ("drawn", "running", "seconds")

    def __init__(self) -> None:
        self.drawn = 0
        self.running = 0
        self.seconds: float | None = None

    def learn(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds is None else (1 - WEIGHT) * self.seconds + WEIGHT * seconds

    def wants_more(self, at_first: int) -> bool:
        """Returns whether fewer wait than should; `at_first` applies while nothing runs."""
        waiting, running = self.drawn - self.running, max(self.running, at_first)
        if waiting < max(LEAST_AHEAD, SHARE_AHEAD * running, at_first - self.running):
            return True
        if self.seconds is None:
            return False
        return waiting < min(MOST_PER_KIND, running * AHEAD_SECONDS / max(self.seconds, 1e-6))


class NetDriver:
    """Drives one net to its end; `run` is the thread."""

    def __init__(
        self, flow: NetFlow, sender: NetTaskSender, journal: NetJournal | None, listener: NetListener | None = None
    ) -> None:
        self.flow = flow
        self.sender = sender
        self.journal = journal
        self.listener = listener
        self.over: Future[None] = Future()
        self.stopped = ""
        """Why it was stopped before its end; empty if it was not."""
        self.done: dict[str, int] = dict(journal.done) if journal is not None else {}
        """Number of finished tasks per transition, including those of an interrupted run."""
        self._inbox: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._gone = False
        self._unwritten: list[tuple[Future[Any], Any]] = []
        """Replies that wait until the change that they confirm is written."""
        self._under_way: dict[int, tuple[r.Task, Future[Any]]] = {}
        self.dropped: list[int] = []
        """Calls that were cancelled; each may run until the node receives the message."""
        self._tried: dict[int, list[CallResult]] = {}
        """The ended attempts of open tasks, if they are journalled."""
        self._running: dict[str, int] = {}
        asked = dict.fromkeys(spec.profile.resources for spec in flow.net.transitions.values() if spec.is_task)
        self._kinds: dict[Resources, RequestKind] = {resources: RequestKind() for resources in asked}
        self._cores = max(1, int(sender.client.node.get("cores") / FRACTION))
        self._looked = 0.0
        self._mark = NetMarked(0.0, {}, {}, {}, [])
        self._next_mark = 0.0

    # ---- called by other threads ---------------------------------------------------------------------------------

    def ask(self, action: Callable[[], Any], *, changes: bool = False) -> Any:
        """Performs an action in the loop's thread and returns its result; raises what it raised.

        An action that `changes` the net returns after the change is written. When the loop has ended, only queries
        work.
        """
        answer: Future[Any] = Future()

        def perform() -> None:
            try:
                value = action()
            except Exception as error:
                answer.set_exception(error)
                return
            if changes:
                self._unwritten.append((answer, value))
            else:
                answer.set_result(value)

        with self._lock:
            if not self._gone:
                self._inbox.put(perform)
            elif changes:
                name = self.flow.net.name
                raise InputError(f"the run of the net {name!r} is over and takes no more tokens")
            else:
                perform()
        return answer.result()

    def stop(self, reason: str) -> None:
        """Ends the run in its current state; running tasks are cancelled, and the ledger can be resumed."""
        reason = f"stopped: {reason}" if reason in OVER else reason or "stopped"
        self._inbox.put(lambda: setattr(self, "stopped", self.stopped or reason))

    # ---- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # top level of the thread: nobody may wait for the result for ever
            failure = error if isinstance(error, ShoalError) else RunError(told(error))
            try:
                self._answer_rest()
                if self.journal is not None:
                    self.journal.give_up(str(failure), len(self.flow.in_flight()))
            finally:
                self._answer(failure)
                self.over.set_exception(failure)
            return
        self.over.set_result(None)

    def _loop(self) -> None:
        while not self.stopped:
            self._submit_tasks()
            self._write(time.monotonic())
            if self.flow.is_finished:
                break
            self._check_calls(time.monotonic())
            self._take(wait=not (self.flow.is_busy and self._wants_more()))
        self._answer_rest()
        self._report_marking()
        if self.journal is not None:
            self.journal.flush(self.flow.state)
            problems = bool(self.flow.problems()) and not self.flow.has_result
            outcome = "failed" if problems else "ok"
            if self.flow.is_finished:
                self.journal.save(self.flow.state())  # later readers of the outcome need not replay the run
            else:
                outcome = self.stopped
            self.journal.close(outcome, len(self.flow.in_flight()))
        self._answer(None)

    def _take(self, *, wait: bool) -> None:
        """Handles the messages of other threads."""
        patience = LOOK_SECONDS if self.flow.is_busy else MARKED_EVERY
        try:
            action = self._inbox.get(block=wait, timeout=patience if wait else None)
            while True:
                action()
                action = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _wants_more(self) -> bool:
        if len(self._under_way) >= MOST_AHEAD:
            return False
        return any(kind.wants_more(self._cores) for kind in self._kinds.values()) or not self._kinds

    def _check_calls(self, now: float) -> None:
        """Finds out which calls workers have received; rarely, if there are many."""
        if now < self._looked + LOOK_SECONDS * (1 + len(self._under_way) // 1000):
            return
        self._looked = now
        for kind in self._kinds.values():
            kind.running = 0
        for task, future in self._under_way.values():
            if future.running():
                self._kinds[task.transition.profile.resources].running += 1

    def _submit_tasks(self) -> None:
        for _ in range(DRAWN_AT_ONCE):
            if not self._wants_more():
                return
            number = self.flow.next()
            self._drop(self.flow.take_ignored())
            if number is None:
                return
            self._start(self.flow.extract(number))

    def _start(self, task: r.Task) -> None:
        try:
            future = self.sender.send(task, partial(self._attempt_ended, task.id) if self.journal is not None else None)
        # no implementation fits, or it cannot be pickled: this task fails, the net continues
        except ShoalError as error:
            future = Future()
            future.set_exception(error)
        except RuntimeError as error:  # raised by executors that accept no more calls
            raise self._no_executor() from error
        name = task.transition.name
        self._kinds[task.transition.profile.resources].drawn += 1
        self._running[name] = self._running.get(name, 0) + 1
        self._under_way[task.id] = task, future
        if self.journal is not None:
            self.journal.submitted(task)
        future.add_done_callback(partial(self._call_ended, task))

    def _attempt_ended(self, task: int, result: CallResult) -> None:
        """Called in the executor's thread, before the call has ended."""
        if result.outcome not in ("lost", "cancelled"):
            self._tried.setdefault(task, []).append(msgspec.structs.replace(result, value=b"", error=None))

    def _call_ended(self, task: r.Task, future: Future[Any]) -> None:
        """Called in any thread of the executor."""
        self._inbox.put(partial(self._ended, task, future))

    def _forget(self, task: r.Task) -> None:
        kind = self._kinds[task.transition.profile.resources]
        kind.drawn -= 1
        kind.running = max(0, kind.running - 1)  # it most likely ran; the next check corrects it
        self._running[task.transition.name] -= 1

    def _ended(self, task: r.Task, future: Future[Any]) -> None:
        if self._under_way.pop(task.id, None) is None:
            return  # the task was dropped
        self._forget(task)
        if future.cancelled():  # not by the loop: what it cancels is not open any more
            raise self._no_executor()
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            raise self._no_executor() from error
        if error is not None:
            self._failed(task, error)
            return
        given = future.result()
        seconds = given.ended - given.started
        self.sender.learn(task, seconds)
        self._kinds[task.transition.profile.resources].learn(seconds)
        followed = self.flow.inject(task.id, given.value, task.attempt)
        self._over(task, given.started, given.ended, given.cpu, followed.message)
        self._drop(followed.ignored)

    def cancel(self, task: int) -> None:
        """Drops a task on request; called in the loop's thread."""
        self._drop(self.flow.cancel(task).ignored)

    def _failed(self, task: r.Task, error: BaseException) -> None:
        self.sender.lost(task)
        message = task.transition.complaint("the run", error)
        followed = self.flow.fail(task.id, message, task.attempt)
        tried = self._tried.get(task.id)
        started, ended = (tried[-1].started, tried[-1].ended) if tried else (time.time(),) * 2
        self._over(task, started, ended, tried[-1].cpu_user + tried[-1].cpu_system if tried else 0.0, message)
        self._drop(followed.ignored)

    def _over(self, task: r.Task, started: float, ended: float, cpu: float, problem: str) -> None:
        if not problem:
            name = task.transition.name
            self.done[name] = self.done.get(name, 0) + 1
        tried = self._tried.pop(task.id, [])
        if self.journal is not None:
            self.journal.ended(task, started, ended, cpu, problem, tried)
        if self.listener is not None:
            self.listener.task_over(task, started, ended, cpu, problem)

    def _drop(self, ignored: tuple[int, ...]) -> None:
        """Cancels the calls of these tasks."""
        for number in ignored:
            found = self._under_way.pop(number, None)
            self._tried.pop(number, None)
            if found is not None:
                task, future = found
                self._forget(task)
                self.sender.lost(task)
                if isinstance(future, CallFuture):
                    self.dropped.append(future.task)
                future.cancel()

    def _no_executor(self) -> RunError:
        return RunError(f"the executor was shut down before the net {self.flow.net.name!r} had finished")

    def _write(self, now: float) -> None:
        if now >= self._next_mark:
            self._next_mark = now + MARKED_EVERY
            self._report_marking()
        if self.journal is not None:
            self.journal.flush(self.flow.state)
            if self.journal.is_full:
                self.stopped = self.stopped or "the disk is full"
        self._answer(None)

    def _answer(self, failure: ShoalError | None) -> None:
        """Completes waiting replies: the changes are written, or never will be."""
        unwritten, self._unwritten = self._unwritten, []
        for answer, value in unwritten:
            if failure is None:
                answer.set_result(value)
            else:
                answer.set_exception(failure)

    def _report_marking(self) -> None:
        """Reports the marking, if it has changed."""
        running = {name: number for name, number in self._running.items() if number}
        marking, problems = self.flow.marking(), self.flow.problems()
        mark = NetMarked(time.time(), marking, running, dict(self.done), problems, self._count_running())
        old = self._mark
        news = (mark.tokens, mark.running, mark.done, mark.problems, mark.at_work)
        if news == (old.tokens, old.running, old.done, old.problems, old.at_work):
            return
        self._mark = mark
        if self.journal is not None:
            self.journal.mark(mark)
        if self.listener is not None:
            self.listener.marked(mark)

    def _count_running(self) -> int:
        """Returns the number of running calls at the last check; calls that wait in a bundle count as running, too."""
        given = sum(kind.running for kind in self._kinds.values())
        return min(given, len(self._under_way), max(1, round(self._cores)))

    def _answer_rest(self) -> None:
        """Ends the loop: answers earlier requests as long as that is possible."""
        with self._lock:
            self._gone = True
            while True:
                try:
                    self._inbox.get_nowait()()
                except queue.Empty:
                    break
                except Exception:
                    continue  # its executor is gone as well, or the error that ended the loop occurs again
        self._drop(tuple(self._under_way))
