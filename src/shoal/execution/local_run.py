"""One run of a workflow on this machine: the event loop around dependencies, scheduler, launcher, workers and ledger.

It makes no decisions: it passes events to the scheduler and carries out the commands that the scheduler returns. One
turn of the loop handles everything that arrived together: the events, the starts they lead to, one ledger write.
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
from shoal.execution.requests import cancelled_summary, take_requests, why_stopped
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
        """When the current turn of the loop began. All events of a turn get this one time."""
        self.flow = DagFlow(graph, plan.wanted())
        regime = options.throttle
        self.sizes = LearnedSizes(graph, options.node, options.sizing, read_kept(workspace), regime.limits)
        self.scheduler = Scheduler(
            options.node,
            columns_for(graph, versions, options.order),
            lanes_for(graph, self.sizes, regime),
            order=options.order,
            retry_pause=options.retry_pause,
        )
        known, needs = self.sizes.kept.throttle, cores_needed(self.sizes)
        self.throttling = MachineThrottle(regime, self.scheduler, options.node, known, needs)
        self.throttling.exclude(launcher.pid)
        up_to_date = sum(graph.actions[task] is not None for task in plan.up_to_date())
        cores = options.node.get("cores") / FRACTION
        self.statistics = Statistics(len(plan.to_run()) + up_to_date, up_to_date, self.clock(), cores)
        self.recorder = AttemptRecorder(graph, versions, ledger, self.statistics, listener)
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
        """Memory limits of running tasks, where they have one."""
        self._grown: list[TaskGrew] = []
        self._arrived: list[TaskResult] = []
        """Results that arose while commands were carried out; the scheduler gets them in the next turn."""
        self._wake_at: float | None = None
        self._next_tick = 0.0
        self._disk_watch = DiskWatch(graph)
        self._next_look = self._next_keep = self.now + LOOK_SECONDS
        self._trace = open(options.trace, "wb") if options.trace else None  # noqa: SIM115  closed in _close

    def ended_at(self) -> float:
        return self.clock()

    def clock(self) -> float:
        """Seconds since the epoch without jumps: derived from the monotonic clock."""
        return time.monotonic() + self._offset

    def execute(self) -> None:
        """Runs until every task has ended, or the run is stopped."""
        become_subreaper()
        self.wakeup = Wakeup(USER_SIGNALS)
        self.wakeup.add(self.launcher.descriptor)
        self.calls.attach(self.wakeup)
        self._settle_launcher()
        try:
            ready = self.flow.ready(self.plan.up_to_date())
            self._settle(self._handle(self.throttling.begin(ready)))
            self._settle(self._handle(TasksReady(ready)))
            self._take_requests()  # requests that were made before the signal handler was installed
            while self._goes_on():
                self._turn()
        finally:
            self._close()
            self._save_sizes()
            self.statistics.ended = self.clock()

    def _goes_on(self) -> bool:
        if self.scheduler.draining:
            return bool(self.scheduler.running)
        return not self.scheduler.idle()

    def _turn(self) -> None:
        readable = self.wakeup.wait(self._patience())
        self.now = now = self.clock()
        results, self._arrived = self._arrived, []
        if results:
            self._check_disk()  # the launcher could not even start them
        for descriptor in readable:
            if descriptor == self.launcher.descriptor:
                results += self._collect_launcher()
            else:
                results += map(self._call_ended, self.calls.collect(descriptor))
        if self._grown:
            self._report_growth()
        if self.wakeup.signals:
            self._on_signals()
        deadline = self.calls.next_deadline()
        if deadline is not None and now >= deadline + self._offset:
            results += map(self._call_ended, self.calls.enforce())
        if results:
            self.throttling.ended(now, results)
            self._settle(self._handle(TasksEnded(results, ready_follows=True)), results_handled=True)
        if self._wake_at is not None and now >= self._wake_at:
            self._wake_at = None
            self._settle(self._handle(TimePassed()))
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
        under_way = bundles(self.scheduler)
        self._count_running(under_way.values())
        self.recorder.look(now)
        self.recorder.tick(under_way)
        self.ledger.flush()
        self._update_sizes(now)
        self._update_throttle(now)
        self.backups.tidy()
        if self.ledger.full or self.output.full:
            self.stop("the disk is full")
        self.listener.tick(self.statistics, now)

    def _update_sizes(self, now: float) -> None:
        """Measures the outputs of running tasks, and saves learned sizes from time to time."""
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._grown += self._disk_watch.look(self.scheduler.running, self.scheduler.attempt)
            if self._grown:
                self._report_growth()
        if now >= self._next_keep and self.sizes.parts:
            self._next_keep = now + KEEP_SECONDS
            self._save_sizes()

    def _update_throttle(self, now: float) -> None:
        caps = self.throttling.tick(now)
        if caps is not None:
            self._settle(self._handle(caps))
        for record in self.throttling.records(now):
            self.ledger.add(record)
            self.statistics.throttled(record)

    def _save_sizes(self) -> None:
        write_kept(self.workspace, self.sizes.learned(self.throttling.controller.profiles()))

    def _count_running(self, under_way: Iterable[LaneBundle]) -> None:
        """Counts occupied slots; a bundle of short tasks counts as one."""
        lanes = Counter(bundle.lane for bundle in under_way)
        # tasks that exceeded their size are in lanes with higher numbers
        profiles, origin = self.graph.profiles, self.scheduler.origin
        self.statistics.count_running([(profiles[origin(lane)], count) for lane, count in lanes.items()])

    def _handle(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(self.now, event)
        if self._trace is not None:
            self._trace.write(msgspec.json.encode((self.now, event, commands)) + b"\n")
        if self.options.paranoid:
            from shoal.core.invariants import check_broker

            check_broker(self.scheduler)
        return commands

    def _settle(self, commands: list[Command], results_handled: bool = False) -> None:
        """Carries out the scheduler's commands; tasks that become ready thereby go straight back to the scheduler.

        Starts come before ledger and statistics, so that a free core waits as little as possible. Everything is written
        before the turn ends.
        """
        verdicts: list[Accept | Retry | GiveUp] = []
        while commands or results_handled:
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
            if not (accepted or lost or results_handled):
                break
            if lost:
                self._lose(lost)
            results_handled = False
            commands = self._handle(TasksReady(self.flow.complete(accepted)))
        if verdicts:
            self.recorder.enter(verdicts)
            if self.options.hooks is not None:
                gone = self.options.hooks.collect()
                if gone:
                    self.ledger.add(OutputsCollected(gone))
            # Flushed first: if this process dies before the record is written, the next run still finds the backups.
            self.ledger.flush()
            self._settle_outputs(verdicts)

    def _settle_outputs(self, verdicts: list[Accept | Retry | GiveUp]) -> None:
        """Removes or restores files that were moved aside for these attempts, now that their results are recorded."""
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
                if self.options.hooks is not None:
                    self.options.hooks.started(task, attempt)
                    action = self.options.hooks.wrap_command(task, action)
                order = self.orders.make(task, attempt, action, command.sizes)
                if order[6]:
                    self._limits[task] = abs(order[6])
                orders.append(order)
            else:
                calls.append((task, attempt))
                self.recorder.started(TaskStarted(task, attempt, self.now, 0, 0.0, -1))
        if orders:
            self.launcher.start(command.place, orders)
        if calls:
            for refused in self.calls.start(calls):
                self._could_not_start(*refused)

    def _could_not_start(self, task: int, attempt: int, why: str) -> None:
        self.recorder.ended(EndedAttempt(task, attempt, AttemptOutcome.FAILED, 127, self.now, self.now, message=why))
        self._arrived.append(TaskResult(task, attempt, AttemptOutcome.FAILED))

    def _settle_launcher(self) -> None:
        places = self.workspace
        options = self.options
        self.launcher.configure(
            places.running,
            places.output,
            places.processes,
            self._offset,
            pass_streams=options.pass_streams,
            series=options.series or "",
            series_header=header(with_footprint=False) if options.series else "",
        )

    def _collect_launcher(self) -> list[TaskResult]:
        rows = self.launcher.collect()
        if rows is None:
            return self._replace_launcher()
        results: list[TaskResult] = []
        for row in rows:
            if row[0] == "ended":
                results.append(self._process_ended(row))
            elif row[0] == "grew":
                self._grown.append(TaskGrew(*row[1:]))
            elif row[0] == "running":
                self.recorder.started(TaskStarted(*row[1:]))
            elif row[0] == "course":
                self.recorder.course(TaskCourse(*row[1:]))
            else:
                self.stop("the disk is full")
        return results

    def _report_growth(self) -> None:
        """Reports memory and disk growth of tasks; the scheduler then reserves more, or has the task killed."""
        grown, self._grown = self._grown, []
        for event in grown:
            if event.task in self._limits and event.resource == "memory":
                self._limits[event.task] = max(self._limits[event.task], event.amount)
            self._settle(self._handle(event))

    def _why_no_room(self, task: int) -> str:
        bundle = self.scheduler.running[task]
        name, used = SIZED[bundle.condemned], bundle.sizes[bundle.condemned]
        there = show_amount(name, self.options.node.get(name))
        return f"used {show_amount(name, used)} of {name}, for which there was no room in {there}"

    def _replace_launcher(self) -> list[TaskResult]:
        """Starts a new launcher after the old one was killed; its attempts are lost and run again."""
        self.listener.note("the launcher process was killed; starting a new one")
        self.wakeup.discard(self.launcher.descriptor)
        lost = self.launcher.replace()
        self.throttling.exclude(self.launcher.pid)
        self.wakeup.add(self.launcher.descriptor)
        for task, attempt in lost:
            ended = EndedAttempt(task, attempt, AttemptOutcome.LOST, 0, self.now, self.now, message="lost")
            self._take_away(ended)
            self.recorder.ended(ended)
        return [TaskResult(task, attempt, AttemptOutcome.LOST) for task, attempt in lost]

    def _process_ended(self, row: tuple[Any, ...]) -> TaskResult:
        _, task, attempt, ended_as, status, started, ended, user, system, max_rss, at, size, message, tail, *used = row
        outcome, listing = OUTCOMES[ended_as], b""
        if outcome is AttemptOutcome.OK:
            missing, listing = self.preparer.check_outputs(task, self.options.by_content, self.backups.entries_before)
            if missing is not None:
                outcome, message = AttemptOutcome.FAILED, missing
        if outcome is AttemptOutcome.FAILED:
            self._check_disk()
        figures = (status, started, ended, user, system, max_rss, at, size)
        usage = Usage(*used)
        limit = self._limits.pop(task, 0) if self._limits else 0
        ended_attempt = EndedAttempt(task, attempt, outcome, *figures, message, tail, None, usage, limit)
        ended_attempt.listing = listing
        if self.options.hooks is not None and outcome is not AttemptOutcome.UNBEGUN:
            self.options.hooks.ended(ended_attempt)
        self._take_away(ended_attempt)
        self.recorder.ended(ended_attempt)
        sized = self.sizes.of_profile[self.graph.profile[task]] is not None
        amounts = amounts_used(ended_attempt) if sized else NOTHING
        if not sized:
            self.throttling.weigh(task, max(max_rss, usage.tree_memory))
        return TaskResult(task, attempt, ended_attempt.outcome, ended - started, amounts)

    def _call_ended(self, attempt: EndedAttempt) -> TaskResult:
        if attempt.outcome is AttemptOutcome.OK:
            stock = self.preparer.check_outputs(attempt.task, self.options.by_content, self.backups.entries_before)
            missing, attempt.listing = stock
            if missing is not None:
                attempt.outcome = AttemptOutcome.FAILED
                attempt.message = missing.replace("exit status 0, but it", "it returned, but")
        if attempt.outcome is not AttemptOutcome.OK:
            self._check_disk()
        self._take_away(attempt)
        self.recorder.ended(attempt)
        self.throttling.weigh(attempt.task, attempt.max_rss)
        return TaskResult(attempt.task, attempt.attempt, attempt.outcome, attempt.ended - attempt.started)

    def _take_away(self, attempt: EndedAttempt) -> None:
        """Removes half-written outputs, so that none stays under its final name."""
        if attempt.outcome not in (AttemptOutcome.OK, AttemptOutcome.UNBEGUN):
            where = self.backups.take_away(attempt.task)
            if where:
                attempt.message = f"{attempt.message}; {where}" if attempt.message else where

    def _check_disk(self) -> None:
        """Stops the run if the disk is full: otherwise all remaining tasks would fail through no fault of their own."""
        try:
            room = os.statvfs(self.workspace.base)
        except OSError:
            return
        if room.f_bavail * room.f_frsize < LOW_DISK_BYTES:
            self.stop("the disk is full")

    def stop(self, reason: str, *, end_running: bool = False) -> None:
        """Starts nothing more. Running tasks may finish, unless `end_running`."""
        if not self.stop_reason:
            self.stop_reason = reason
            self.recorder.stopping = True
            self.listener.note(f"stopping: {reason}")
        if not self.scheduler.draining:
            self._settle(self._handle(DrainRequested()))
        if end_running:
            self._settle(self._handle(CancelRequested(sorted(self.scheduler.running))))

    def _on_signals(self) -> None:
        signals, self.wakeup.signals = self.wakeup.signals, []
        for number in signals:
            if number == signal.SIGUSR1:
                self._take_requests()
            elif self.stop_signal:
                self.listener.note("killing running tasks")
                for task in list(self.scheduler.running):
                    self.launcher.kill(task, AttemptOutcome.CANCELLED, "cancelled", at_once=True)
                    self.calls.kill(task, self.scheduler.attempt[task])
            else:
                self.stop_signal = number
                self.stop(why_stopped(self.workspace, number), end_running=True)

    def _take_requests(self) -> None:
        """Handles the requests of `shoal cancel` and `shoal why`. Waiting tasks are cancelled at once, running ones by
        the scheduler."""
        from shoal.execution.requests import answer_questions  # rarely needed, and a run should start quickly

        reasons, order = self.throttling.controller.reasons(), self.options.order
        known = (self.workspace, self.graph, self.flow.status, self.scheduler, self.now, self.recorder.unbegun)
        answer_questions(*known, reasons=reasons, order=order, stopping=self.stop_reason)
        tasks = [
            task for task in take_requests(self.workspace, self.graph) if self.flow.status[task] <= TaskStatus.READY
        ]
        if tasks:
            self.listener.note(cancelled_summary(self.graph, tasks))
        self._settle(self._handle(CancelRequested(tasks)))
        waiting = [task for task in tasks if self.flow.status[task] == TaskStatus.WAITING]
        if waiting:
            self.recorder.cancelled(waiting)
            self._lose(waiting)

    def _close(self) -> None:
        """Kills all processes that were started, also those that escaped from their task, and writes the last
        records."""
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
