"""Job servers: run a flow with a scheduler on one or several runtime systems, and serve callbacks of its tasks.

`simple` uses one runtime system, `several_locations` one per location, `with_transfer_costs` moves tasks to the memory
ranges that they need. Tasks may call functions that the job server registers (`shoal.runtime.call`).

The loop runs in the caller's thread; another thread detects lost agents. A resource manager is used only under the lock
of its runtime system, and its notifications are handled before any other event.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from typing import Any

from shoal.cluster.messaging.access import Role, make_access, narrowed
from shoal.cluster.messaging.envelope import BadFrame
from shoal.cluster.messaging.messenger import Messenger, Route
from shoal.cluster.runtime_system import RuntimeSystem
from shoal.cluster.task_calls import (
    AT_ONCE,
    CallbackReply,
    CallRequestMessage,
    DriverAddress,
    MeetRequest,
    Message,
    Seat,
    granted,
    make_codec,
)
from shoal.core.resources import FRACTION
from shoal.core.task import Call
from shoal.data.memory.handle import Allocation
from shoal.errors import InputError, RunError, ShoalError
from shoal.execution.calls.pickling import CallError, dumps_by_value
from shoal.execution.executor.executor import ConfiguredExecutor, Executor
from shoal.execution.executor.options import CallOptionValues
from shoal.execution.nets.task_calls import TimedResult, run_command
from shoal.execution.processes.seats import environment_of
from shoal.petri import NetFlow
from shoal.petri.records import Task
from shoal.petri.transition import told
from shoal.resources import scheduler_registry
from shoal.resources.composed_scheduler import ComposedScheduler
from shoal.resources.machine import CORE, GPU
from shoal.resources.memory_layout import Range
from shoal.resources.scheduler_interface import (
    CancelAttemptCommand,
    Command,
    EndingFlow,
    Event,
    FailedEvent,
    FinishedEvent,
    Flow,
    LookEvent,
    ManagerEvents,
    StopEvent,
    StoppedEvent,
    SubmitTaskCommand,
)
from shoal.resources.scheduler_registry import ranges_of_arguments
from shoal.resources.tickets import Happening, Rank, ranks_of

_TURN_SECONDS = 1.0


class CallbackServer:
    """Serves the calls of tasks to one job server."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], host: str) -> None:
        self._functions = dict(functions)
        self._access = make_access("driver")
        self._post: Messenger[Message] = Messenger(self._access, make_codec(), bind=f"tcp://{host}:0", sender="driver")
        self._for_tasks = narrowed(self._access.at([self._post.address]), Role.CLIENT)
        self._meetings: dict[tuple[str, int], dict[int, tuple[Route, bytes]]] = {}
        """By task and round: the ranks that have arrived, with their values."""
        self._done: deque[tuple[Route, CallbackReply]] = deque()
        self._gone: deque[str] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        """Protects the descriptor that wakes the thread."""
        self._is_closed = False
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="shoal-driver-call")
        self._thread = threading.Thread(target=self._run, name="shoal-driver-callbacks", daemon=True)
        self._thread.start()

    def driver_for(self, task: str) -> bytes:
        """Returns what a task needs to call the driver, as a pickled `DriverAddress`."""
        return pickle.dumps(DriverAddress(self._for_tasks, task), 5)

    def forget(self, task: str) -> None:
        """Drops the meetings of a task that has ended."""
        self._gone.append(task)

    def close(self) -> None:
        self._is_closed = True
        self._ring()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._post.close()
        with self._lock:  # a function that still runs must not write to a reused descriptor number
            os.close(self._bell)
            self._bell = -1

    def _ring(self) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (*self._post.fds(), self._bell):
            poll.register(descriptor, select.POLLIN)
        while not self._is_closed:
            poll.poll(1000 * _TURN_SECONDS)
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass
            for received in self._post.receive():
                for message in received.messages:
                    self._take(received.route, message)
            while self._done:
                self._answer(*self._done.popleft())
            while self._gone:
                task = self._gone.popleft()
                self._meetings = {key: there for key, there in self._meetings.items() if key[0] != task}
            self._post.flush()

    def _take(self, route: Route, message: Message) -> None:
        match message:
            case CallRequestMessage():
                self._pool.submit(self._perform, route, message)
            case MeetRequest():
                self._meet(route, message)
            case CallbackReply():
                pass  # messages that are not requests are ignored

    def _meet(self, route: Route, message: MeetRequest) -> None:
        there = self._meetings.setdefault((message.task, message.turn), {})
        there[message.rank] = (route, message.value)
        if len(there) == message.ranks:
            del self._meetings[message.task, message.turn]
            values = pickle.dumps([there[rank][1] for rank in sorted(there)], 5)
            for each, _ in there.values():
                self._answer(each, CallbackReply(values))

    def _answer(self, route: Route, answer: CallbackReply) -> None:
        try:
            self._post.answer(route, answer)
        except BadFrame as error:
            self._post.answer(route, CallbackReply(problem=f"the result of the driver cannot be sent: {error}"))

    # ---- other threads ---------------------------------------------------------------------------------------------

    def _perform(self, route: Route, message: CallRequestMessage) -> None:
        self._done.append((route, self._outcome(message)))
        self._ring()

    def _outcome(self, message: CallRequestMessage) -> CallbackReply:
        function = self._functions.get(message.name)
        if function is None:
            known = ", ".join(self._functions) or "nothing"
            return CallbackReply(problem=f"the driver has no function {message.name!r}; it has {known}")
        try:
            arguments, keywords = pickle.loads(message.arguments)
            return CallbackReply(dumps_by_value(function(*arguments, **keywords)))
        except BaseException as error:  # any error of the user's function, even an exit, is sent to the task
            return CallbackReply(problem=f"the driver's function {message.name!r} failed with {told(error)}")


Action = Callable[[], object]


class LoopCalls:
    """Actions for the thread of one loop. The caller waits for the result, unless the loop has not begun or is the
    caller."""

    def __init__(self, post: Callable[[Callable[[], Event | None]], None]) -> None:
        """`post` has a function called in the thread of the loop, which is the thread that calls `open`."""
        self._post = post
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._waiting: dict[int, Future[None]] = {}
        self._number = 0
        self.problems: list[str] = []
        """Messages of failed actions whose callers did not wait."""

    def open(self) -> None:
        """The loop begins, in this thread."""
        self._thread, self._is_over = threading.current_thread(), False

    def close(self) -> None:
        """The loop has ended: wakes all callers."""
        with self._lock:
            self._is_over = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(RunError("the job server ended before it handled this request"))

    def ask(self, action: Action) -> None:
        """Runs an action in the loop; raises its error if the caller can wait for it."""
        waits = self._thread not in (None, threading.current_thread())
        with self._lock:
            if self._is_over:
                raise RunError("the job server has ended")
            self._number += 1
            number = self._number
            answer: Future[None] = Future()
            if waits:
                self._waiting[number] = answer
        self._post(lambda: self._perform(number, action))
        if waits:
            answer.result()

    def _perform(self, number: int, action: Action) -> Event:
        error: Exception | None = None
        try:
            action()
        except Exception as raised:  # an error of the user's action goes to its caller, and the loop continues
            error = raised
        with self._lock:
            answer = self._waiting.pop(number, None)
        if answer is None:
            self.problems += [told(error)] if error is not None else []
        elif error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
        return LookEvent()


ALONE_SECONDS = 2_000_000.0
"""A call with a time limit is not bundled, so the ranks of one task run at the same time and not one after another."""

Invocation = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class RankSender:
    """Sends tasks to the agents of one runtime system."""

    def __init__(self, runtime: RuntimeSystem, callback_server: CallbackServer, directory: str) -> None:
        self._runtime, self._callback_server, self._directory = runtime, callback_server, directory
        self._executors: list[Executor] = []
        """The last executor knows all agents; earlier ones may have calls in flight."""
        self._views: dict[tuple[object, ...], ConfiguredExecutor] = {}
        self._wrapped: dict[Callable[..., Any], Callable[..., TimedResult]] = {}

    def send(self, submit: SubmitTaskCommand, key: str) -> list[Future[Any]]:
        """Starts all ranks of a task; if that fails for one of them, none is started."""
        profile = submit.task.transition.profile
        function, arguments, keywords = invocation(submit.task, submit.way, self._directory)
        is_command = function is run_command  # it receives its directory as an argument
        place = os.path.join(self._directory, profile.directory) if profile.directory and not is_command else None
        ranks = ranks_of(submit.grant)
        addresses = [self._runtime.address_of(node) for node in submit.grant.nodes()]
        views = [self._view(rank, submit.task) for rank in ranks]
        wrapped = self._wrapped.get(function)
        if wrapped is None:
            wrapped = self._wrapped[function] = granted(function)
        futures: list[Future[Any]] = []
        for rank, view in zip(ranks, views, strict=True):
            variables = dict(environment_of(rank.places, gpus=self._knows_devices(rank)))
            variables |= dict(rank.environment) | {"SHOAL_ADDRESSES": ",".join(addresses)} | dict(profile.environment)
            cpus = sorted({cpu for each in rank.places for cpu in each.cpus})
            seat = Seat(variables, tuple(cpus), self._callback_server.driver_for(key), place)
            futures.append(view.submit(wrapped, seat, arguments, keywords))
        return futures

    def _knows_devices(self, rank: Rank) -> bool:
        """Whether the rank has GPUs with known names, or GPUs that must be hidden from it."""
        forest = self._runtime.steward.forest
        held = [unit for place in rank.places for path in place.units if (unit := forest.find(path)) is not None]
        if any(unit.kind == GPU or unit.total.get(GPU) for unit in held):
            units = [each for unit in held for each in unit.walk()]
        else:
            machine = forest.find(rank.node)
            units = list(machine.walk()) if machine is not None and machine.total.get(GPU) else []
        devices = [unit.device for unit in units if unit.kind == GPU]
        return bool(devices) and None not in devices

    def _view(self, rank: Rank, task: Task) -> ConfiguredExecutor:
        """Returns an executor whose calls run on the agent of this rank, with the resources granted there."""
        node, info = self._runtime.node_of(rank.node)
        forest = self._runtime.steward.forest
        units = [forest.find(path) for place in rank.places for path in place.units]
        counts = {
            kind: sum(unit.total.get(kind, 0) + (unit.kind == kind) for unit in units if unit is not None)
            for kind in (CORE, GPU)
        }
        offered = info.resources
        wishes: CallOptionValues = {
            "cores": min(counts[CORE], offered.get("cores") / FRACTION),
            "gpus": min(counts[GPU], offered.get("gpus") / FRACTION),
            "memory": min(sum(place.memory for place in rank.places), offered.get("memory")),
            "requires": f"node={node}",
            "timeout": task.transition.profile.timeout or ALONE_SECONDS,
        }
        key = tuple(wishes.values())
        if key not in self._views:
            self._views[key] = self._fitting(wishes)
        return self._views[key]

    def _fitting(self, wishes: CallOptionValues) -> ConfiguredExecutor:
        if self._executors:
            try:
                return self._executors[-1].with_options(**wishes)
            except InputError:
                pass  # the executor was made before this agent joined
        self._executors.append(Executor(cluster=self._runtime.home.access))
        return self._executors[-1].with_options(**wishes)

    def close(self, *, at_once: bool = False) -> None:
        """Waits for running calls, or cancels them with `at_once`."""
        for executor in self._executors:
            if at_once:
                executor.__exit__(KeyboardInterrupt, None, None)  # left with this exception, the executor does not wait
            else:
                executor.shutdown(cancel_futures=True)


def invocation(task: Task, way: str, directory: str) -> Invocation:
    """Returns what to call for a task: a function of a net, one of its implementations, a command, or a function of a
    graph."""
    spec = task.transition
    place = os.path.join(directory, spec.profile.directory or "")
    if spec.command is not None:
        return run_command, (task.command_line(), {}, place, spec.profile.shell), {}
    if isinstance(spec.action, str):
        return run_command, (spec.action, {}, place, spec.profile.shell), {}
    if isinstance(spec.action, Call):
        if spec.action.wants_task:
            raise InputError(f"{spec.name!r} is the function of a rule, which job servers cannot run")
        return spec.action.function, spec.action.arguments, dict(spec.action.keywords)
    function = dict(spec.implementations)[way] if spec.implementations else spec.function
    assert function is not None, f"{spec.name} runs nothing"
    if spec.by_keyword:
        return function, (), task.arguments
    return function, tuple(task.arguments.values()), {}


LOOK_SECONDS = 1.0
"""Seconds between two checks for lost agents."""
ENDING_SECONDS = 0.02
"""Seconds between two checks whether cancelled calls have ended."""

Functions = Mapping[str, Callable[..., Any]]


class _Attempt:
    """A running task: a call for each rank."""

    def __init__(self, submit: SubmitTaskCommand, futures: list[Future[Any]]) -> None:
        self.submit, self.futures = submit, futures
        self.problem: BaseException | None = None
        self.is_ending = False

    def end(self) -> None:
        """Cancels all ranks: none continues without the others."""
        self.is_ending = True
        for future in self.futures:
            future.cancel()

    def is_over(self) -> bool:
        """Whether all of its processes have ended; `wait` counts a cancelled call only when its worker has ended it."""
        return not wait(self.futures, timeout=0).not_done


class JobServer:
    """Runs one flow with one scheduler on the agents of one runtime system, or of one per location."""

    def __init__(
        self,
        scheduler: ComposedScheduler,
        runtime: RuntimeSystem | Mapping[str, RuntimeSystem],
        *,
        functions: Functions | None = None,
        directory: str | None = None,
    ) -> None:
        """`functions`: those that tasks may call here, by name; commands run in `directory`."""
        self.flow = scheduler.flow
        self.scheduler = scheduler
        self._ending = scheduler.flow if isinstance(scheduler.flow, EndingFlow) else None
        self._runtimes = {"": runtime} if isinstance(runtime, RuntimeSystem) else dict(runtime)
        self._functions = dict(functions or {})
        self._directory = directory or os.getcwd()
        self._inbox: queue.SimpleQueue[Callable[[], Event | None]] = queue.SimpleQueue()
        self._errands = LoopCalls(self._inbox.put)
        self._told: deque[ManagerEvents] = deque()
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._senders: dict[str, RankSender] = {}
        self._callback_server: CallbackServer | None = None
        self._ended = threading.Event()
        self._is_stopped = False

    # ---- for users -------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Runs the workflow to its end and returns its result; `RunError` if a failure left it without a result."""
        first = next(iter(self._runtimes.values()))
        self._callback_server = CallbackServer(self._functions, first.own_address)
        watch = threading.Thread(target=self._watch, name="shoal-runtime-watch", daemon=True)
        has_ended = False
        self._errands.open()
        try:
            for location, runtime in self._runtimes.items():
                self._senders[location] = RankSender(runtime, self._callback_server, self._directory)
                runtime.hear(self.scheduler.run, partial(self._hear, location))
            watch.start()
            self._loop()
            has_ended = True
        finally:
            self._errands.close()
            self._close(watch, at_once=not has_ended)
        return self._outcome()

    def do(self, action: Callable[[], object]) -> None:
        """Applies an action to the flow between two events, such as putting a token; callable from any thread.

        While the server runs, this waits for the action and raises its error. An action from before `run` that fails
        becomes one of the `problems`, and the rest of the workflow continues.
        """
        self._errands.ask(action)

    def stop(self) -> None:
        """Cancels running tasks and ends the loop; callable from any thread."""
        self._inbox.put(StopEvent)

    def problems(self) -> list[str]:
        """Messages of everything that failed permanently."""
        failed = self.flow.problems() if isinstance(self.flow, NetFlow) else list(self.scheduler.failures.values())
        return [*self._errands.problems, *failed]

    def _outcome(self) -> Any:
        result = self.flow.result if isinstance(self.flow, NetFlow) else None
        has_result = isinstance(self.flow, NetFlow) and self.flow.has_result
        problems = self.problems()
        if problems and not has_result:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise RunError(f"{problems[0]}{more}")
        return result

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        event: Event | None = LookEvent()
        while True:
            if event is not None:
                self._handle(event)
            if self._is_over():
                return
            event = self._next_event()

    def _handle(self, event: Event) -> None:
        with ExitStack() as locks:
            for runtime in self._runtimes.values():
                locks.enter_context(runtime.lock)
            while self._told:
                self._perform(self.scheduler.handle(self._told.popleft()))
            self._perform(self.scheduler.handle(event))

    def _is_over(self) -> bool:
        flow = self._ending
        if flow is None:
            return self.scheduler.is_idle
        if flow.is_finished and not self.scheduler.is_idle and not self._is_stopped:
            self._is_stopped = True
            self._handle(StopEvent())  # its result is known, whatever still runs
        return self.scheduler.is_idle and (flow.is_finished or self._is_stopped)

    def _next_event(self) -> Event | None:
        ending = [key for key, attempt in self._attempts.items() if attempt.is_ending]
        for key in ending:
            if self._attempts[key].is_over():
                return self._conclude(key)
        is_stuck = self.scheduler.is_idle and self._ending is not None and self._ending.is_busy
        waits = not self.scheduler.is_hungry and not is_stuck  # steps of a net continue where their limit stopped them
        try:
            event = self._inbox.get(waits, ENDING_SECONDS if ending else LOOK_SECONDS)()
        except queue.Empty:
            return LookEvent()
        if isinstance(event, StopEvent):
            self._is_stopped = True
        return event

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case SubmitTaskCommand():
                    self._begin(command)
                case CancelAttemptCommand():
                    attempt = self._attempts.get((command.task, command.attempt))
                    if attempt is not None:
                        attempt.end()
                case ManagerEvents():
                    self._runtimes[command.location].tell(command.happenings)

    def _begin(self, submit: SubmitTaskCommand) -> None:
        key = submit.task.id, submit.task.attempt
        try:
            futures = self._senders[submit.location].send(submit, self._name_of(key))
        except ShoalError as error:  # this task cannot be sent, the others continue
            failed = FailedEvent(*key, str(error))
            self._inbox.put(lambda: failed)
            return
        self._attempts[key] = _Attempt(submit, futures)
        for future in futures:
            future.add_done_callback(partial(self._call_ended, key))

    def _name_of(self, key: tuple[int, int]) -> str:
        return f"{self.scheduler.run}:{key[0]}:{key[1]}"

    def _call_ended(self, key: tuple[int, int], future: Future[Any]) -> None:
        """Called in a thread of the executor."""
        self._inbox.put(partial(self._rank_ended, key, future))

    def _rank_ended(self, key: tuple[int, int], future: Future[Any]) -> Event | None:
        attempt = self._attempts.get(key)
        if attempt is None or future.cancelled():
            return None
        problem = future.exception()
        if problem is not None and attempt.problem is None and not attempt.is_ending:
            attempt.problem = problem
            attempt.end()
        return self._conclude(key) if attempt.is_over() else None

    def _conclude(self, key: tuple[int, int]) -> Event:
        """All calls of an attempt have ended."""
        attempt = self._attempts.pop(key)
        assert self._callback_server is not None
        self._callback_server.forget(self._name_of(key))
        if attempt.problem is not None:
            if isinstance(attempt.problem, CallError) and self._is_lost(attempt):
                return StoppedEvent(*key)
            return FailedEvent(*key, attempt.submit.task.transition.complaint("the run", attempt.problem))
        if attempt.is_ending:
            return StoppedEvent(*key)
        results = [future.result() for future in attempt.futures]
        return FinishedEvent(*key, results[0].value, max(each.ended - each.started for each in results))

    def _is_lost(self, attempt: _Attempt) -> bool:
        """Whether an agent of the attempt is lost; then the task itself has not failed."""
        runtime = self._runtimes[attempt.submit.location]
        runtime.look()
        return any(runtime.steward.forest.find(node) is None for node in attempt.submit.grant.nodes())

    # ---- other threads ---------------------------------------------------------------------------------------------

    def _hear(self, location: str, happenings: Sequence[Happening]) -> None:
        """Called with the lock of the runtime system held."""
        self._told.append(ManagerEvents(location, tuple(happenings)))
        self._inbox.put(LookEvent)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for runtime in self._runtimes.values():
                runtime.look()

    def _close(self, watch: threading.Thread, *, at_once: bool) -> None:
        self._ended.set()
        if watch.is_alive():
            watch.join()
        for location, runtime in self._runtimes.items():
            runtime.hear(self.scheduler.run, None)
            with runtime.lock:
                runtime.tell(runtime.steward.depart(self.scheduler.run))
            if location in self._senders:
                self._senders[location].close(at_once=at_once)
        assert self._callback_server is not None
        self._callback_server.close()


# ---- constructors of the usual job servers
# -------------------------------------------------------------------------


def simple(flow: Flow, runtime: RuntimeSystem, run: str = "run", functions: Functions | None = None) -> JobServer:
    """A job server with one runtime system; tasks may request several machines at once (co-allocation)."""
    return JobServer(scheduler_registry.co_allocation(flow, runtime.steward, run), runtime, functions=functions)


def several_locations(
    flow: Flow, runtimes: Mapping[str, RuntimeSystem], run: str = "run", functions: Functions | None = None
) -> JobServer:
    """A job server with a runtime system per location; tasks choose theirs by the label `location=NAME`."""
    stewards = {location: runtime.steward for location, runtime in runtimes.items()}
    return JobServer(scheduler_registry.several_locations(flow, stewards, run), runtimes, functions=functions)


def with_transfer_costs(
    flow: Flow,
    runtime: RuntimeSystem,
    allocations: Sequence[Allocation],
    run: str = "run",
    *,
    needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
    functions: Functions | None = None,
) -> JobServer:
    """A job server that places tasks where the ranges of these allocations are that they need, as long as there is
    room."""
    partition = {each.id: each.partition() for each in allocations}.__getitem__
    scheduler = scheduler_registry.transfer_costs(
        flow, runtime.steward, partition, run, needs=needs, resources=runtime.host_to_resource()
    )
    return JobServer(scheduler, runtime, functions=functions)
