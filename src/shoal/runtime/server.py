"""Job servers: a flow, a scheduler and a run-time system put together, and driven to the end of the workflow.

`simple` has one run-time system, `several_locations` one for each place, `with_transfer_costs` brings tasks to the
memory that they need. Tasks may call functions that the job server registers (`shoal.runtime.call`).

The loop runs in the caller's thread. One other thread looks after agents that die. Stewards are used only under the
lock of their run-time system, and what they told is handled before anything else.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from typing import Any

from shoal.errors import RunError, ShoalError
from shoal.flow.net import NetFlow
from shoal.flow.net.records import Task
from shoal.memory.handle import Allocation
from shoal.memory.layout import Range
from shoal.runner.call_errors import CallError
from shoal.runtime.desk import CallDesk
from shoal.runtime.errands import Errands
from shoal.runtime.sending import Sender
from shoal.runtime.system import RuntimeSystem
from shoal.schedulers import named
from shoal.schedulers.choosing import ranges_of_arguments
from shoal.schedulers.events import Cancel, Command, Event, Failed, Finished, Look, Stop, Stopped, Submit, Told
from shoal.schedulers.flows import Ending, Flow
from shoal.schedulers.scheduler import Scheduler
from shoal.steward.happenings import Happening

LOOK_SECONDS = 1.0
"""So often we ask which agents are there."""
ENDING_SECONDS = 0.02
"""So often we ask whether cancelled calls have ended."""

Functions = Mapping[str, Callable[..., Any]]


class _Attempt:
    """A task under way: a call for each rank."""

    def __init__(self, submit: Submit, futures: list[Future[Any]]) -> None:
        self.submit, self.futures = submit, futures
        self.problem: BaseException | None = None
        self.is_ending = False

    def end(self) -> None:
        """All or nothing: no rank goes on without the others."""
        self.is_ending = True
        for future in self.futures:
            future.cancel()

    def is_over(self) -> bool:
        """Whether no process of it is left; `wait` counts a cancelled call only when its worker has let go of it."""
        return not wait(self.futures, timeout=0).not_done


class JobServer:
    """Runs one flow by one scheduler on the agents of one run-time system, or of one for each location."""

    def __init__(
        self,
        scheduler: Scheduler,
        runtime: RuntimeSystem | Mapping[str, RuntimeSystem],
        *,
        functions: Functions | None = None,
        directory: str | None = None,
    ) -> None:
        """`functions` are those that tasks may call here, by name; commands run in `directory`."""
        self.flow = scheduler.flow
        self.scheduler = scheduler
        self._ending = scheduler.flow if isinstance(scheduler.flow, Ending) else None
        self._runtimes = {"": runtime} if isinstance(runtime, RuntimeSystem) else dict(runtime)
        self._functions = dict(functions or {})
        self._directory = directory or os.getcwd()
        self._inbox: queue.SimpleQueue[Callable[[], Event | None]] = queue.SimpleQueue()
        self._errands = Errands(self._inbox.put)
        self._told: deque[Told] = deque()
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._senders: dict[str, Sender] = {}
        self._desk: CallDesk | None = None
        self._ended = threading.Event()
        self._is_stopped = False

    # ---- for users -------------------------------------------------------------------------------------------------

    def run(self) -> Any:
        """Until the workflow is over; what it gave. `RunError` if it gave nothing because something failed."""
        first = next(iter(self._runtimes.values()))
        self._desk = CallDesk(self._functions, first.own_address)
        watch = threading.Thread(target=self._watch, name="shoal-runtime-watch", daemon=True)
        has_ended = False
        self._errands.open()
        try:
            for location, runtime in self._runtimes.items():
                self._senders[location] = Sender(runtime, self._desk, self._directory)
                runtime.hear(self.scheduler.run, partial(self._hear, location))
            watch.start()
            self._loop()
            has_ended = True
        finally:
            self._errands.close()
            self._close(watch, at_once=not has_ended)
        return self._outcome()

    def do(self, action: Callable[[], object]) -> None:
        """Has something done to the flow between two events, such as putting a token; from any thread.

        While the server runs this waits until it is done, and raises what it raised. What was asked for before `run`
        and cannot be done is one of the `problems`, and the rest of the workflow goes on.
        """
        self._errands.ask(action)

    def stop(self) -> None:
        """Cancels what runs and ends the loop; from any thread."""
        self._inbox.put(Stop)

    def problems(self) -> list[str]:
        """A sentence for everything that failed for good."""
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
        event: Event | None = Look()
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
            self._handle(Stop())  # its answer is known, whatever still runs
        return self.scheduler.is_idle and (flow.is_finished or self._is_stopped)

    def _next_event(self) -> Event | None:
        ending = [key for key, attempt in self._attempts.items() if attempt.is_ending]
        for key in ending:
            if self._attempts[key].is_over():
                return self._conclude(key)
        is_stuck = self.scheduler.is_idle and self._ending is not None and self._ending.is_busy
        waits = not self.scheduler.is_hungry and not is_stuck  # steps of a net go on where their bound stopped them
        try:
            event = self._inbox.get(waits, ENDING_SECONDS if ending else LOOK_SECONDS)()
        except queue.Empty:
            return Look()
        if isinstance(event, Stop):
            self._is_stopped = True
        return event

    def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Submit():
                    self._begin(command)
                case Cancel():
                    attempt = self._attempts.get((command.task, command.attempt))
                    if attempt is not None:
                        attempt.end()
                case Told():
                    self._runtimes[command.location].tell(command.happenings)

    def _begin(self, submit: Submit) -> None:
        key = submit.task.id, submit.task.attempt
        try:
            futures = self._senders[submit.location].send(submit, self._name_of(key))
        except ShoalError as error:  # this task cannot be sent, the others go on
            failed = Failed(*key, str(error))
            self._inbox.put(lambda: failed)
            return
        self._attempts[key] = _Attempt(submit, futures)
        for future in futures:
            future.add_done_callback(partial(self._call_ended, key))

    def _name_of(self, key: tuple[int, int]) -> str:
        return f"{self.scheduler.run}:{key[0]}:{key[1]}"

    def _call_ended(self, key: tuple[int, int], future: Future[Any]) -> None:
        """In whatever thread the executor has."""
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
        assert self._desk is not None
        self._desk.forget(self._name_of(key))
        if attempt.problem is not None:
            if isinstance(attempt.problem, CallError) and self._is_lost(attempt):
                return Stopped(*key)
            return Failed(*key, attempt.submit.task.transition.complaint("the run", attempt.problem))
        if attempt.is_ending:
            return Stopped(*key)
        results = [future.result() for future in attempt.futures]
        return Finished(*key, results[0].value, max(each.ended - each.started for each in results))

    def _is_lost(self, attempt: _Attempt) -> bool:
        """Whether an agent of it is gone; then it is not the task that has failed."""
        runtime = self._runtimes[attempt.submit.location]
        runtime.look()
        return any(runtime.steward.forest.find(node) is None for node in attempt.submit.grant.nodes())

    # ---- other threads ---------------------------------------------------------------------------------------------

    def _hear(self, location: str, happenings: Sequence[Happening]) -> None:
        """With the lock of the run-time system held."""
        self._told.append(Told(location, tuple(happenings)))
        self._inbox.put(Look)

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
        assert self._desk is not None
        self._desk.close()


# ---- the document's job servers ------------------------------------------------------------------------------------


def simple(flow: Flow, runtime: RuntimeSystem, run: str = "run", functions: Functions | None = None) -> JobServer:
    """One run-time system; tasks may ask for several machines at once."""
    return JobServer(named.co_allocation(flow, runtime.steward, run), runtime, functions=functions)


def several_locations(
    flow: Flow, runtimes: Mapping[str, RuntimeSystem], run: str = "run", functions: Functions | None = None
) -> JobServer:
    """A run-time system for each location; tasks choose theirs by the label `location=NAME`."""
    stewards = {location: runtime.steward for location, runtime in runtimes.items()}
    return JobServer(named.several_locations(flow, stewards, run), runtimes, functions=functions)


def with_transfer_costs(
    flow: Flow,
    runtime: RuntimeSystem,
    allocations: Sequence[Allocation],
    run: str = "run",
    *,
    needs: Callable[[Task], Mapping[str, Sequence[Range]]] = ranges_of_arguments,
    functions: Functions | None = None,
) -> JobServer:
    """Tasks go where the ranges of these allocations lie that they need, as long as there is room."""
    partition = {each.id: each.partition() for each in allocations}.__getitem__
    scheduler = named.transfer_costs(
        flow, runtime.steward, partition, run, needs=needs, resources=runtime.host_to_resource()
    )
    return JobServer(scheduler, runtime, functions=functions)
