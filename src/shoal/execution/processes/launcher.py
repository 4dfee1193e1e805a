"""The launcher in Python: a small process that starts, reaps and kills the commands of a run.

It is a process of its own for three reasons. Starting a process blocks until the new program is loaded, and the run's
event loop must not wait for that. The peak memory of a task cannot be separated from that of a large parent (see
`ProcessRunner._own_peak`). And when the run's process dies for any reason, a process must remain that kills the
commands. The launcher imports little, stays small, and is the parent of all commands.

A *place* is one start command of the scheduler: several short commands run there one after another, without a round
trip between them. If one of them takes long, the rest is returned without having begun.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import deque
from typing import Any

from shoal.core.policies.retry import AttemptOutcome
from shoal.execution.process_limits import raise_limit
from shoal.execution.processes.launcher_messages import START, MessageLink, Order
from shoal.execution.processes.output import OutputSlots, OutputStream
from shoal.execution.processes.process import ProcessEnd, ProcessRunner
from shoal.execution.processes.process_table import (
    ProcessTable,
    become_subreaper,
    children_of_ours,
    kill_process,
    marked_processes,
)
from shoal.execution.processes.time_series import Series
from shoal.execution.processes.wakeup import USER_SIGNALS, Wakeup

TICK_SECONDS = 0.1
PATIENCE = 0.05
"""Commands behind one that runs longer than this are returned."""
REPORT_DELAY = 0.01
"""Maximum time that results wait to be sent together; they do not wait if their place has no more commands."""


class Launcher:
    """Serves one run until it closes the connection."""

    def __init__(self, link: MessageLink, settings: tuple[str, bytes, bytes, bytes, float, bool, bytes, bytes]) -> None:
        run, running, output, table, self._offset, pass_streams, series, header = settings
        self.run = run
        self.link = link
        self.slots = OutputSlots(os.fsdecode(running))
        self.output = OutputStream(os.fsdecode(output))
        self.table = ProcessTable(os.fsdecode(table))
        environment = dict(os.environ)
        self.runner = ProcessRunner(run, environment, self.slots, self.table, self.clock)
        self.runner.pass_streams = pass_streams
        self.runner.measures = environment.get("SHOAL_MEASURE") != "off"
        if series:
            self.runner.series = Series(os.fsdecode(series), header.decode())
        self.wakeup = Wakeup(USER_SIGNALS, children=True)
        self.wakeup.add(link.descriptor)
        self.places: dict[int, deque[Order]] = {}
        """Commands that wait behind the running command of each place."""
        self.place_of: dict[int, int] = {}
        """By running task."""
        self._starved: set[int] = set()
        """Places that wait for a descriptor; they run nothing."""
        self._results: list[tuple[Any, ...]] = []
        self._oldest_result = 0.0
        self._urgent = False
        self._reported: set[int] = set()
        """Running tasks that were reported as running."""
        self._next_tick = 0.0

    def clock(self) -> float:
        """Returns the time by the run's clock."""
        return time.monotonic() + self._offset

    def serve(self) -> None:
        wakeup, now = self.wakeup, self.clock()
        while True:
            readable = wakeup.wait(self._patience(now))
            now = self.clock()
            if readable and not self._receive(now):
                return
            if wakeup.child_exited:
                wakeup.child_exited = False
                for end in self.runner.reap(now):
                    self._ended(now, end)
            wakeup.signals.clear()  # the run's process handles the terminal's Ctrl-C
            deadline = self.runner.next_deadline()
            if deadline is not None and now >= deadline:
                self.runner.enforce(now)
            look = self.runner.next_look()
            if look is not None and now >= look:
                self._look(now)
            if now >= self._next_tick:
                self._tick(now)
            if self._results and (self._urgent or now - self._oldest_result >= REPORT_DELAY):
                self._report()

    def _patience(self, now: float) -> float:
        nearest = self._next_tick
        for moment in (self.runner.next_deadline(), self.runner.next_look()):
            if moment is not None and moment < nearest:
                nearest = moment
        if self._results and self._oldest_result + REPORT_DELAY < nearest:
            nearest = self._oldest_result + REPORT_DELAY
        if not self.link.push():
            nearest = now + 0.001
        return nearest - now

    def _receive(self, now: float) -> bool:
        """Handles messages from the run; returns False when it is gone."""
        messages = self.link.receive()
        if messages is None:
            return False
        self.take(now, messages)
        return True

    def take(self, now: float, messages: list[Any]) -> None:
        for message in messages:
            if message[0] == START:
                _, place, orders = message
                if place in self.places:
                    self.places[place].extend(orders)
                else:
                    self.places[place] = deque(orders)
                    self._next(now, place)
            else:
                _, task, outcome, why, at_once = message
                self._kill(task, AttemptOutcome(outcome), why, at_once)

    def _next(self, now: float, place: int) -> None:
        """Starts the next command of a place. One that cannot be started has failed, and the next one is tried."""
        waiting = self.places[place]
        self._starved.discard(place)
        while waiting:
            order = waiting[0]
            task, attempt, command, timeout, variables, directory, memory, shell = order[:8]
            disk, paths = order[8:] or (0, b"")
            running = self.runner.start(
                now,
                task,
                attempt,
                os.fsdecode(command),
                timeout=timeout if timeout >= 0 else None,
                memory=memory,
                disk=disk,
                paths=[os.fsdecode(path) for path in paths.split(b"\0") if path],
                environment=split_variables(variables) if variables else (),
                directory=os.fsdecode(directory) if directory else None,
                shell=os.fsdecode(shell).split("\0")[:-1],
            )
            if running is None:
                self._starved.add(place)
                return
            waiting.popleft()
            if not isinstance(running, str):
                self.place_of[task] = place
                return
            self._add(now, unstarted_row(now, task, attempt, "failed", 127, running))
        del self.places[place]
        self._urgent = True

    def _start_starved(self, now: float) -> None:
        """Places that wait for a descriptor try again, after a task has ended or some time has passed."""
        for place in tuple(self._starved):
            self._next(now, place)

    def _ended(self, now: float, end: ProcessEnd) -> None:
        running = end.running
        at, size, tail = 0, 0, b""
        written = self.slots.size(running.slot)
        if written:
            at, size, tail = self.output.absorb(self.slots.descriptors[running.slot], written)
            if end.outcome is AttemptOutcome.OK:
                tail = b""
        self.slots.give_back(running.slot)
        task = running.task
        self._reported.discard(task)
        self._next(now, self.place_of.pop(task))
        self._start_starved(now)
        outcome = end.outcome.value
        figures = (end.status, running.started, end.ended, end.user, end.system, end.max_rss)
        if end.course:
            self._add(now, ("course", task, running.attempt, end.course))
        self._add(now, ("ended", task, running.attempt, outcome, *figures, at, size, end.message, tail, *end.counts))

    def _add(self, now: float, result: tuple[Any, ...]) -> None:
        if not self._results:
            self._oldest_result = now
        self._results.append(result)

    def _look(self, now: float) -> None:
        self.runner.look(now)
        for growth in self.runner.grown:
            self._add(now, ("grew", *growth))
            self._urgent = True
        self.runner.grown.clear()

    def _report(self) -> None:
        self.link.send(self._results)
        self._results = []
        self._urgent = False

    def _kill(self, task: int, outcome: AttemptOutcome, why: str, at_once: bool) -> None:
        if task in self.place_of:
            self.runner.kill(task, outcome, why, at_once=at_once)
            return
        now = self.clock()
        for waiting in self.places.values():
            for order in waiting:
                if order[0] == task:
                    waiting.remove(order)
                    self._add(now, unstarted_row(now, task, order[1], outcome.value, 0, why))
                    self._urgent = True
                    return

    def _tick(self, now: float) -> None:
        """Reports long-running commands, returns those that wait behind them, and checks its own memory."""
        self._next_tick = now + TICK_SECONDS
        if self.runner.measures:
            self.runner.look_at_own_peak()
        self._look(now)
        self._start_starved(now)
        if self.output.full:
            self._add(now, ("full",))
        for running in self.runner.running.values():
            task = running.task
            if task not in self._reported:
                self._reported.add(task)
                what = (task, running.attempt, running.started, running.pid, running.boot_time, running.slot)
                self._add(now, ("running", *what))
            waiting = self.places[self.place_of[task]]
            if waiting and now - running.started > PATIENCE:
                for order in waiting:
                    self._add(now, unstarted_row(now, order[0], order[1], AttemptOutcome.UNBEGUN.value, 0, ""))
                waiting.clear()

    def close(self) -> None:
        """Kills everything that was started, including processes that escaped from their task."""
        self.runner.close()
        for pid in marked_processes(f"{self.run}:".encode()):
            kill_process(pid)
        for pid in children_of_ours():
            kill_process(pid)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                break
        self.slots.close()
        self.output.close()
        self.table.close()


def unstarted_row(now: float, task: int, attempt: int, outcome: str, status: int, why: str) -> tuple[Any, ...]:
    """Returns the result row of an attempt that was never started."""
    return ("ended", task, attempt, outcome, status, now, now, 0.0, 0.0, 0, 0, 0, why, b"", *(0,) * 12)


def split_variables(variables: bytes) -> tuple[tuple[str, str], ...]:
    """Returns the variables of an order as pairs of name and value."""
    found = []
    for entry in variables.rstrip(b"\0").split(b"\0"):
        name, _, value = os.fsdecode(entry).partition("=")
        found.append((name, value))
    return tuple(found)


def main(descriptor: int) -> None:
    """The process: boots while the run still reads the workflow, then waits for its settings."""
    for number in USER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # no reference cycles arise here, and a collection would delay the next task
    become_subreaper()
    raise_limit()
    link = MessageLink(descriptor)
    messages: list[Any] | None = []
    while messages == []:
        messages = link.receive()
    if messages is None:
        return
    os.set_blocking(descriptor, False)
    launcher = Launcher(link, messages[0])
    try:
        launcher.take(launcher.clock(), messages[1:])
        launcher.serve()
    finally:
        launcher.close()
