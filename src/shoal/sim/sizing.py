"""Replay of a trace of peaks and times under a way of sizing: throughput, waste and retries in virtual time.

Nodes hold one resource. A task gets what the policy says when it starts; if its peak is larger it runs for nothing,
for its full time (the slow-peaks model: peaks come last), and is tried again ahead of the tasks not yet started. The
first of those that fit nowhere has a node kept free for it. Where traces come from is left to `sizing_traces`, the ways
of sizing to `sizing_modes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from shoal.errors import InputError

MOST_PASSED = 30
"""So many retries that do not fit are passed over in search of one that does."""


class Trace(msgspec.Struct):
    """Tasks in the order in which they become ready; the columns are equally long."""

    peaks: list[float]
    times: list[float]
    categories: list[str] = []
    """Empty if all tasks are of one category."""

    def category(self, task: int) -> str:
        return self.categories[task] if self.categories else ""


class Policy(Protocol):
    """A way of sizing: told of every attempt, asked before every attempt."""

    def ask(self, task: int, tried: Sequence[float]) -> float:
        """The size for the next attempt of a task, after attempts of these sizes were exhausted."""

    def completed(self, task: int, tried: Sequence[float]) -> None: ...
    def exhausted(self, task: int, size: float, tried: Sequence[float]) -> None: ...


class Outcome(msgspec.Struct):
    """What one replay came to."""

    tasks: int
    makespan: float
    retries: int
    allocated: float
    """Size times time, over all attempts."""
    used: float
    """Peak times time, over all tasks."""

    @property
    def throughput(self) -> float:
        """Tasks per unit of time."""
        return self.tasks / self.makespan if self.makespan else 0.0

    @property
    def waste(self) -> float:
        """The share of what was allocated that was of no use."""
        return 1.0 - self.used / self.allocated if self.allocated else 0.0


def check(trace: Trace, node: float) -> None:
    """Refuses a task that no node can hold."""
    for number, peak in enumerate(trace.peaks, 1):
        if peak > node:
            raise InputError(
                f"task {number} peaks at {peak:g}, but a node has only {node:g}",
                remedy="give the size of a larger node with --node",
            )


def replay(trace: Trace, policy: Policy, node: float, workers: int) -> Outcome:
    """Runs all tasks of the trace on equal nodes and says how it went."""
    return _Replay(trace, policy, node, workers).run()


class _Replay:
    """The state of one replay."""

    def __init__(self, trace: Trace, policy: Policy, node: float, workers: int) -> None:
        self.trace = trace
        self.policy = policy
        self.size = node
        self.slack = 1e-9 * node
        """Sums of fractions are not exact."""
        self.free = [node] * workers
        self.kept: int | None = None
        """The node on which nothing new starts until the first of the waiting retries fits there."""
        self.fresh = 0
        self.again: deque[int] = deque()
        self.tried: dict[int, list[float]] = {}
        self.running: list[tuple[float, int, int, int, float]] = []
        """A heap of (end, serial, task, node, size)."""
        self.serial = 0
        self.now = 0.0
        self.outcome = Outcome(len(trace.peaks), 0.0, 0, 0.0, 0.0)

    def run(self) -> Outcome:
        self._start_what_fits()
        while self.running:
            self.now = self.running[0][0]
            while self.running and self.running[0][0] == self.now:
                _, _, task, node, size = heappop(self.running)
                self.free[node] += size
                self._end(task, size)
            self._start_what_fits()
        self.outcome.makespan = self.now
        return self.outcome

    def _end(self, task: int, size: float) -> None:
        peak, seconds = self.trace.peaks[task], self.trace.times[task]
        self.outcome.allocated += size * seconds
        if peak <= size:
            self.outcome.used += peak * seconds
            self.policy.completed(task, self.tried.pop(task, ()))
            return
        assert size < self.size, "a task larger than the node was let in"
        self.outcome.retries += 1
        tried = self.tried.setdefault(task, [])
        self.policy.exhausted(task, size, tried)
        tried.append(size)
        self.again.append(task)

    def _start_what_fits(self) -> None:
        passed: deque[int] = deque()
        while self.again and len(passed) < MOST_PASSED:
            task = self.again.popleft()
            if not self._start(task, self.tried[task], first=not passed):
                passed.append(task)
        if passed and self.kept is None:
            self.kept = max(range(len(self.free)), key=self.free.__getitem__)
        self.again.extendleft(reversed(passed))
        while self.fresh < len(self.trace.peaks) and self._start(self.fresh, ()):
            self.fresh += 1

    def _start(self, task: int, tried: Sequence[float], first: bool = False) -> bool:
        """Starts a task where there is room for it, if anywhere; the kept node is for the first of the retries."""
        size = min(self.size, self.policy.ask(task, tried))
        for node, free in enumerate(self.free):
            if free >= size - self.slack and (first or node != self.kept):
                self.free[node] -= size
                self.serial += 1
                heappush(self.running, (self.now + self.trace.times[task], self.serial, task, node, size))
                if first:
                    self.kept = None
                return True
        return False
