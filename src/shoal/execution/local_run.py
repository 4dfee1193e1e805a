"""One run on this machine: the loop around flow, broker, runners and ledger.

It is a driver and decides nothing: what ended is told to the broker, what the broker answers is done. One turn of the
loop handles everything that arrived together: the events, the starts they lead to, one ledger write.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.core.dependencies import DagFlow, TaskStatus
from shoal.core.explain.dependency_chain import bundles
from shoal.core.graph import Graph
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import NOTHING, SIZED
from shoal.core.resources import FRACTION, show_amount
from shoal.core.scheduler import LaneBundle, Scheduler
from shoal.core.scheduler_messages import (
    Accept,
    CancelRequested,
    Command,
    DrainRequested,
    Event,
    GiveUp,
    Kill,
    Retry,
    Start,
    TaskGrew,
    TaskResult,
    TasksEnded,
    TasksReady,
    TimePassed,
    WakeAt,
)
from shoal.execution.attempt_recorder import AttemptRecorder, EndedAttempt
from shoal.execution.calls.graph_calls import GraphCalls, Values
from shoal.execution.files.backups import Backups
from shoal.execution.files.files import Preparer
from shoal.execution.learned_sizes import (
    KEEP_SECONDS,
    LOOK_SECONDS,
    DiskWatch,
    LearnedSizes,
    amounts_used,
    columns_for,
    lanes_for,
    read_kept,
    write_kept,
)
from shoal.execution.processes.launcher_client import LauncherClient
from shoal.execution.processes.launcher_messages import Order
from shoal.execution.processes.orders import Orders, seating_for
from shoal.execution.processes.output import OutputStream
from shoal.execution.processes.process_table import become_subreaper, children_of_ours, kill_process
from shoal.execution.processes.time_series import header
from shoal.execution.processes.wakeup import USER_SIGNALS, Wakeup
from shoal.execution.requests import take_requests, told_cancelled, why_stopped
from shoal.execution.run_options import PlannedRun, RunOptions
from shoal.execution.throttle import MachineThrottle, cores_needed
from shoal.ledger.records import OutputsCollected, TaskCourse, TaskStarted, Usage
from shoal.ledger.statistics import Statistics

TICK_SECONDS = 0.1
LOW_DISK_BYTES = 1 << 20
OUTCOMES = {outcome.value: outcome for outcome in AttemptOutcome}


class LocalRun:
    """Runs a plan to its end. `execute` may be called once."""

    def __init__(self, planned: PlannedRun, options: RunOptions, launcher: LauncherClient) -> None:
        plan, versions, workspace, ledger = planned.plan, planned.versions, planned.workspace, planned.ledger
        listener, past = planned.listener, planned.history
        graph: Graph = plan.graph
        self.graph = graph
        self.plan = plan
        self.options = options
        self.listener = listener
        self.workspace = workspace
        self.ledger = ledger
        self._offset = time.time() - time.monotonic()
        self.now = self.clock()
        """When the current turn of the loop began; what happens within a turn happens at one moment."""
        self.flow = DagFlow(graph, plan.wanted())
        regime = options.throttle
        self.sizes = LearnedSizes(graph, options.node, options.sizing, read_kept(workspace), regime.limits)
        self.broker = Scheduler(
            options.node,
            columns_for(graph, versions, options.order),
            lanes_for(graph, self.sizes, regime),
            order=options.order,
            retry_pause=options.retry_pause,
        )
        known, needs = self.sizes.kept.throttle, cores_needed(self.sizes)
        self.throttling = MachineThrottle(regime, self.broker, options.node, known, needs)
        self.throttling.exclude(launcher.pid)
        up_to_date = sum(graph.actions[task] is not None for task in plan.up_to_date())
        cores = options.node.get("cores") / FRACTION
        self.statistics = Statistics(len(plan.to_run()) + up_to_date, up_to_date, self.clock(), cores)
        self.books = AttemptRecorder(graph, versions, ledger, self.statistics, listener)
        self.output = OutputStream(workspace.output)
        self.launcher = launcher
        self.calls = GraphCalls(planned.identity, graph, Values(graph, workspace, past), self.output, self.clock)
        self.preparer = Preparer(graph, versions, make_parents=not options.as_found)
        self.backups = Backups(workspace, plan, versions, past, options, listener.note)
        self.orders = Orders(graph, enforced=options.enforced)
        self.launcher.seating = seating_for(graph.profiles, graph.profile.__getitem__)
        self.stop_reason = ""
        self.detached = False
        self.stop_signal = 0
        self._limits: dict[int, int] = {}
        """Memory that running tasks may use, where there is a limit."""
        self._grown: list[TaskGrew] = []
        self._arrived: list[TaskResult] = []
        """Results that came about while commands were done; they are told at the next turn."""
        self._wake_at: float | None = None
        self._next_tick = 0.0
        self._disk_watch = DiskWatch(graph)
        self._next_look = self._next_keep = self.now + LOOK_SECONDS
        self._trace = open(options.trace, "wb") if options.trace else None  # noqa: SIM115  closed in _close

    def ended_at(self) -> float:
        return self.clock()

    def clock(self) -> float:
        """Seconds since the epoch that never jump: a run measures with the monotonic clock."""
        return time.monotonic() + self._offset

    def execute(self) -> None:
        """Runs until every task is over, or the run is stopped."""
        become_subreaper()
        self.wakeup = Wakeup(USER_SIGNALS)
        self.wakeup.add(self.launcher.descriptor)
        self.calls.attach(self.wakeup)
        self._settle_launcher()
        try:
            ready = self.flow.ready(self.plan.up_to_date())
            self._settle(self._tell(self.throttling.begin(ready)))
            self._settle(self._tell(TasksReady(ready)))
            self._take_requests()  # of those who knocked before anybody listened
            while self._goes_on():
                self._turn()
        finally:
            self._close()
            self._keep_what_was_learned()
            self.statistics.ended = self.clock()

    def _goes_on(self) -> bool:
        if self.broker.draining:
            return bool(self.broker.running)
        return not self.broker.idle()

    def _turn(self) -> None:
        readable = self.wakeup.wait(self._patience())
        self.now = now = self.clock()
        results, self._arrived = self._arrived, []
        if results:
            self._check_disk()  # they could not even start
        for descriptor in readable:
            if descriptor == self.launcher.descriptor:
                results += self._hear_launcher()
            else:
                results += map(self._call_ended, self.calls.collect(descriptor))
        if self._grown:
            self._take_growth()
        if self.wakeup.signals:
            self._on_signals()
        deadline = self.calls.next_deadline()
        if deadline is not None and now >= deadline + self._offset:
            results += map(self._call_ended, self.calls.enforce())
        if results:
            self.throttling.ended(now, results)
            self._settle(self._tell(TasksEnded(results, ready_follows=True)), results_told=True)
        if self._wake_at is not None and now >= self._wake_at:
            self._wake_at = None
            self._settle(self._tell(TimePassed()))
        if now >= self._next_tick:
            self._tick(now)

    def _patience(self) -> float:
        if self._arrived:
            return 0.0
        nearest = self._next_tick
        if self._wake_at is not None and self._wake_at < nearest:
            nearest = self._wake_at
        moment = self.calls.next_deadline()
        if moment is not None and moment + self._offset < nearest:
            nearest = moment + self._offset
        return nearest - self.clock()

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_SECONDS
        under_way = bundles(self.broker)
        self._count_running(under_way.values())
        self.books.look(now)
        self.books.tick(under_way)
        self.ledger.flush()
        self._tend_sizes(now)
        self._tend_throttle(now)
        self.backups.tidy()
        if self.ledger.full or self.output.full:
            self.stop("the disk is full")
        self.listener.tick(self.statistics, now)

    def _tend_sizes(self, now: float) -> None:
        """Looks at what running tasks have written, and now and then keeps what was learned."""
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._grown += self._disk_watch.look(self.broker.running, self.broker.attempt)
            if self._grown:
                self._take_growth()
        if now >= self._next_keep and self.sizes.parts:
            self._next_keep = now + KEEP_SECONDS
            self._keep_what_was_learned()

    def _tend_throttle(self, now: float) -> None:
        caps = self.throttling.tick(now)
        if caps is not None:
            self._settle(self._tell(caps))
        for record in self.throttling.records(now):
            self.ledger.add(record)
            self.statistics.throttled(record)

    def _keep_what_was_learned(self) -> None:
        write_kept(self.workspace, self.sizes.learned(self.throttling.governor.profiles()))

    def _count_running(self, under_way: Iterable[LaneBundle]) -> None:
        """Places in use: a bundle of short tasks counts as one."""
        lanes = Counter(bundle.lane for bundle in under_way)
        profiles, origin = self.graph.profiles, self.broker.origin  # what exceeded its size is in a lane beyond these
        self.statistics.count_running([(profiles[origin(lane)], count) for lane, count in lanes.items()])

    def _tell(self, event: Event) -> list[Command]:
        commands = self.broker.handle(self.now, event)
        if self._trace is not None:
            self._trace.write(msgspec.json.encode((self.now, event, commands)) + b"\n")
        if self.options.paranoid:
            from shoal.core.invariants import check_broker

            check_broker(self.broker)
        return commands

    def _settle(self, commands: list[Command], results_told: bool = False) -> None:
        """Does what the broker says; what becomes ready by that goes straight back to it.

        Starting comes before bookkeeping, so that a free core waits for as little as possible; all of it is written
        before the turn ends.
        """
        verdicts: list[Accept | Retry | GiveUp] = []
        while commands or results_told:
            accepted: list[int] = []
            lost: list[int] = []
            for command in commands:
                kind = type(command)
                if kind is Start:
                    self._start(command)  # type: ignore[arg-type]
                elif kind is Accept:
                    accepted.append(command.task)  # type: ignore[union-attr]
                    verdicts.append(command)  # type: ignore[arg-type]
                else:
                    self._do(command, verdicts, lost)
            if not (accepted or lost or results_told):
                break
            if lost:
                self._lose(lost)
            results_told = False
            commands = self._tell(TasksReady(self.flow.complete(accepted)))
        if verdicts:
            self.books.enter(verdicts)
            if self.options.attendant is not None:
                gone = self.options.attendant.collect()
                if gone:
                    self.ledger.add(OutputsCollected(gone))
            self.ledger.flush()
            self._settle_outputs(verdicts)

    def _settle_outputs(self, verdicts: list[Accept | Retry | GiveUp]) -> None:
        """What was put aside for these attempts goes, now that their results are recorded, or comes back."""
        for verdict in verdicts:
            if type(verdict) is Accept:
                self.backups.settle(verdict.task)
            elif type(verdict) is GiveUp:
                self.backups.put_back(verdict.task)

    def _do(self, command: Command, verdicts: list[Accept | Retry | GiveUp], lost: list[int]) -> None:
        match command:
            case Retry():
                verdicts.append(command)
            case GiveUp():
                verdicts.append(command)
                lost.append(command.task)
            case Kill():
                why = "cancelled" if command.outcome is AttemptOutcome.CANCELLED else self._why_no_room(command.task)
                self.launcher.kill(command.task, command.outcome, why)
                self.calls.kill(command.task, command.attempt)
            case WakeAt():
                self._wake_at = command.when

    def _lose(self, tasks: list[int]) -> None:
        doomed = self.flow.fail(tasks)
        self.statistics.doomed += sum(self.graph.actions[task] is not None for task in doomed)
        if self.options.fail_fast and not self.stop_reason:
            self.stop(f"{self.graph.names[tasks[0]]!r} failed and --fail-fast was given")

    def _start(self, command: Start) -> None:
        graph = self.graph
        calls: list[tuple[int, int]] = []
        orders: list[Order] = []
        obstacles = self.backups.put_aside(command.tasks)
        for task, attempt in zip(command.tasks, command.attempts, strict=True):
            obstacle = obstacles.get(task) or self.preparer.prepare(task)
            if obstacle is not None:
                self._could_not_start(task, attempt, obstacle)
                continue
            action = graph.actions[task]
            if isinstance(action, str):
                if self.options.attendant is not None:
                    self.options.attendant.started(task, attempt)
                    action = self.options.attendant.dress(task, action)
                order = self.orders.make(task, attempt, action, command.sizes)
                if order[6]:
                    self._limits[task] = abs(order[6])
                orders.append(order)
            else:
                calls.append((task, attempt))
                self.books.started(TaskStarted(task, attempt, self.now, 0, 0.0, -1))
        if orders:
            self.launcher.start(command.place, orders)
        if calls:
            for refused in self.calls.start(calls):
                self._could_not_start(*refused)

    def _could_not_start(self, task: int, attempt: int, why: str) -> None:
        self.books.ended(EndedAttempt(task, attempt, AttemptOutcome.FAILED, 127, self.now, self.now, message=why))
        self._arrived.append(TaskResult(task, attempt, AttemptOutcome.FAILED))

    def _settle_launcher(self) -> None:
        places = self.workspace
        options = self.options
        self.launcher.settle_in(
            places.running,
            places.output,
            places.processes,
            self._offset,
            pass_streams=options.pass_streams,
            series=options.series or "",
            series_header=header(with_footprint=False) if options.series else "",
        )

    def _hear_launcher(self) -> list[TaskResult]:
        told = self.launcher.collect()
        if told is None:
            return self._replace_launcher()
        results: list[TaskResult] = []
        for row in told:
            if row[0] == "ended":
                results.append(self._process_ended(row))
            elif row[0] == "grew":
                self._grown.append(TaskGrew(*row[1:]))
            elif row[0] == "running":
                self.books.started(TaskStarted(*row[1:]))
            elif row[0] == "course":
                self.books.course(TaskCourse(*row[1:]))
            else:
                self.stop("the disk is full")
        return results

    def _take_growth(self) -> None:
        """Tasks use more than was expected; the broker reckons with it, or has them ended."""
        grown, self._grown = self._grown, []
        for event in grown:
            if event.task in self._limits and event.resource == "memory":
                self._limits[event.task] = max(self._limits[event.task], event.amount)
            self._settle(self._tell(event))

    def _why_no_room(self, task: int) -> str:
        bundle = self.broker.running[task]
        name, used = SIZED[bundle.condemned], bundle.sizes[bundle.condemned]
        there = show_amount(name, self.options.node.get(name))
        return f"used {show_amount(name, used)} of {name}, for which there was no room in {there}"

    def _replace_launcher(self) -> list[TaskResult]:
        """The launcher was killed: what it had under way is lost, and goes on in a new one."""
        self.listener.note("the launcher process was killed; starting another")
        self.wakeup.discard(self.launcher.descriptor)
        lost = self.launcher.replace()
        self.throttling.exclude(self.launcher.pid)
        self.wakeup.add(self.launcher.descriptor)
        for task, attempt in lost:
            ended = EndedAttempt(task, attempt, AttemptOutcome.LOST, 0, self.now, self.now, message="lost")
            self._take_away(ended)
            self.books.ended(ended)
        return [TaskResult(task, attempt, AttemptOutcome.LOST) for task, attempt in lost]

    def _process_ended(self, row: tuple[Any, ...]) -> TaskResult:
        _, task, attempt, ended_as, status, started, ended, user, system, max_rss, at, size, message, tail, *used = row
        outcome, listing = OUTCOMES[ended_as], b""
        if outcome is AttemptOutcome.OK:
            missing, listing = self.preparer.take_stock(task, self.options.by_content, self.backups.stood_in)
            if missing is not None:
                outcome, message = AttemptOutcome.FAILED, missing
        if outcome is AttemptOutcome.FAILED:
            self._check_disk()
        figures = (status, started, ended, user, system, max_rss, at, size)
        usage = Usage(*used)
        limit = self._limits.pop(task, 0) if self._limits else 0
        ended_attempt = EndedAttempt(task, attempt, outcome, *figures, message, tail, None, usage, limit)
        ended_attempt.listing = listing
        if self.options.attendant is not None and outcome is not AttemptOutcome.UNBEGUN:
            self.options.attendant.ended(ended_attempt)
        self._take_away(ended_attempt)
        self.books.ended(ended_attempt)
        sized = self.sizes.of_profile[self.graph.profile[task]] is not None
        amounts = amounts_used(ended_attempt) if sized else NOTHING
        if not sized:
            self.throttling.weigh(task, max(max_rss, usage.tree_memory))
        return TaskResult(task, attempt, ended_attempt.outcome, ended - started, amounts)

    def _call_ended(self, attempt: EndedAttempt) -> TaskResult:
        if attempt.outcome is AttemptOutcome.OK:
            stock = self.preparer.take_stock(attempt.task, self.options.by_content, self.backups.stood_in)
            missing, attempt.listing = stock
            if missing is not None:
                attempt.outcome = AttemptOutcome.FAILED
                attempt.message = missing.replace("exit status 0, but it", "it returned, but")
        if attempt.outcome is not AttemptOutcome.OK:
            self._check_disk()
        self._take_away(attempt)
        self.books.ended(attempt)
        self.throttling.weigh(attempt.task, attempt.max_rss)
        return TaskResult(attempt.task, attempt.attempt, attempt.outcome, attempt.ended - attempt.started)

    def _take_away(self, attempt: EndedAttempt) -> None:
        """Nothing half-made stays under its final name."""
        if attempt.outcome not in (AttemptOutcome.OK, AttemptOutcome.UNBEGUN):
            where = self.backups.take_away(attempt.task)
            if where:
                attempt.message = f"{attempt.message}; {where}" if attempt.message else where

    def _check_disk(self) -> None:
        """A task that fails on a full disk is not the task's fault: stop before all the others fail too."""
        try:
            room = os.statvfs(self.workspace.base)
        except OSError:
            return
        if room.f_bavail * room.f_frsize < LOW_DISK_BYTES:
            self.stop("the disk is full")

    def stop(self, reason: str, *, end_running: bool = False) -> None:
        """Starts nothing more; what runs may finish unless it is to be ended."""
        if not self.stop_reason:
            self.stop_reason = reason
            self.books.stopping = True
            self.listener.note(f"stopping: {reason}")
        if not self.broker.draining:
            self._settle(self._tell(DrainRequested()))
        if end_running:
            self._settle(self._tell(CancelRequested(sorted(self.broker.running))))

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for number in signals:
            if number == signal.SIGUSR1:
                self._take_requests()
            elif self.stop_signal:
                self.listener.note("killing what still runs")
                for task in list(self.broker.running):
                    self.launcher.kill(task, AttemptOutcome.CANCELLED, "cancelled", at_once=True)
                    self.calls.kill(task, self.broker.attempt[task])
            else:
                self.stop_signal = number
                self.stop(why_stopped(self.workspace, number), end_running=True)

    def _take_requests(self) -> None:
        """Tasks that `shoal cancel` named: those that wait are lost at once, the others are the broker's; questions."""
        from shoal.execution.requests import answer_questions  # seldom needed, and a run should start quickly

        reasons, order = self.throttling.governor.reasons(), self.options.order
        books = (self.workspace, self.graph, self.flow.status, self.broker, self.now, self.books.unbegun)
        answer_questions(*books, reasons=reasons, order=order, stopping=self.stop_reason)
        tasks = [
            task for task in take_requests(self.workspace, self.graph) if self.flow.status[task] <= TaskStatus.READY
        ]
        if tasks:
            self.listener.note(told_cancelled(self.graph, tasks))
        self._settle(self._tell(CancelRequested(tasks)))
        waiting = [task for task in tasks if self.flow.status[task] == TaskStatus.WAITING]
        if waiting:
            self.books.cancelled(waiting)
            self._lose(waiting)

    def _close(self) -> None:
        """Ends everything that was started, also what escaped from its task, and writes the last records."""
        self.calls.close()
        self.wakeup.discard(self.launcher.descriptor)
        self.launcher.close()
        for pid in children_of_ours():
            kill_process(pid)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        self.backups.close()
        self.wakeup.close()
        self.output.close()
        self.throttling.close()
        if self._trace is not None:
            self._trace.close()
        self.ledger.flush()
