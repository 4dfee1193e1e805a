"""Dependency tracking: which tasks are ready, done or can never run, for static (`DagFlow`) and growing graphs.

Tasks without an action (groups, sources) use no core. They complete here when their last predecessor completes, so
neither scheduler nor runner ever sees them. Every operation takes a batch and costs O(1) per edge.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum

import msgspec

from shoal.core.graph import Graph


class TaskStatus(IntEnum):
    """Status of a task. `READY` covers everything from being ready to running."""

    WAITING = 0
    READY = 1
    DONE = 2
    FAILED = 3
    DOOMED = 4
    """A task that it depends on failed or was cancelled, so it can never run."""
    EXCLUDED = 5
    """Not needed for the targets of this run."""


class FlowState(msgspec.Struct, frozen=True):
    """Counts of tasks that run something, by status."""

    waiting: int
    ready: int
    done: int
    failed: int
    doomed: int


class DagFlow:
    """Dependencies of a static graph: call `ready()` once, then `complete()` and `fail()` as results arrive."""

    def __init__(self, graph: Graph, wanted: bytearray | None = None) -> None:
        self.graph = graph
        self.pending = array("i", graph.pending)
        if wanted is None:
            self.status = bytearray(len(graph))
        else:
            self.status = bytearray(TaskStatus.WAITING if mark else TaskStatus.EXCLUDED for mark in wanted)

    def ready(self, already_done: Iterable[int] = ()) -> list[int]:
        """The tasks that are ready at the start, given those done by an earlier run. Call it once, first of all."""
        status, pending = self.status, self.pending
        done = list(dict.fromkeys(already_done))
        for task in done:
            status[task] = TaskStatus.DONE
        actions = self.graph.actions
        found: list[int] = []
        groups: list[int] = []
        for task, count in enumerate(pending):
            if not count and status[task] == TaskStatus.WAITING:
                if actions[task] is None:
                    groups.append(task)
                else:
                    status[task] = TaskStatus.READY
                    found.append(task)
        found += self._release(done + groups)
        return found

    def complete(self, tasks: Iterable[int]) -> list[int]:
        """Records these tasks as done; returns those that became ready, in a fixed order."""
        finished = list(tasks)
        status = self.status
        for task in finished:
            assert status[task] == TaskStatus.READY, f"task {task} completed while {TaskStatus(status[task]).name}"
            status[task] = (
                TaskStatus.DONE
            )  # set immediately, so that a task listed twice fails the assertion before it is counted twice
        return self._release(finished)

    def _release(self, finished: list[int]) -> list[int]:
        status, pending, actions = self.status, self.pending, self.graph.actions
        start, successors = self.graph.successor_start, self.graph.successors
        found: list[int] = []
        for task in finished:  # the list grows during the loop: a completed group releases its own successors
            status[task] = TaskStatus.DONE
            begin, end = start[task], start[task + 1]
            if begin == end:
                continue
            for child in successors[begin:end]:
                pending[child] -= 1
                if not pending[child] and status[child] == TaskStatus.WAITING:
                    if actions[child] is None:
                        finished.append(child)
                    else:
                        status[child] = TaskStatus.READY
                        found.append(child)
        return found

    def fail(self, tasks: Iterable[int]) -> list[int]:
        """Records these tasks as failed for good; returns the tasks that can therefore never run.

        Waiting tasks are allowed, too: the user may cancel a task before it is ready.
        """
        status = self.status
        stack: list[int] = []
        for task in tasks:
            assert status[task] <= TaskStatus.READY, f"task {task} failed while {TaskStatus(status[task]).name}"
            status[task] = TaskStatus.FAILED
            stack.append(task)
        return self._doom(stack)

    def _doom(self, stack: list[int]) -> list[int]:
        status = self.status
        doomed: list[int] = []
        while stack:
            for child in self.graph.successors_of(stack.pop()):
                if status[child] == TaskStatus.WAITING:
                    status[child] = TaskStatus.DOOMED
                    doomed.append(child)
                    stack.append(child)
        return doomed

    def state(self) -> FlowState:
        """Counts over the tasks that run something; O(tasks)."""
        counts = [0] * len(TaskStatus)
        for status, action in zip(self.status, self.graph.actions, strict=True):
            if action is not None:
                counts[status] += 1
        return FlowState(counts[0], counts[1], counts[2], counts[3], counts[4])


class DynamicFlow:
    """Dependencies of a growing graph: `add` tasks, then `complete` or `fail` them. Task numbers are never reused."""

    def __init__(self) -> None:
        self._missing: dict[int, int] = {}
        """By waiting task: number of dependencies that are not done yet."""
        self._followers: dict[int, list[int]] = {}
        """By task: the tasks that depend on it; some of them may be doomed already."""

    def __bool__(self) -> bool:
        """Whether any task waits for another one."""
        return bool(self._followers)

    def waits(self, task: int) -> bool:
        """Whether the task was added and still waits for a dependency."""
        return task in self._missing

    def add(self, task: int, needs: Iterable[int]) -> bool:
        """Adds a task that depends on unfinished tasks; returns whether it is ready immediately."""
        wanted = dict.fromkeys(needs)
        assert task not in self._missing and task not in wanted, f"task {task} was added before or needs itself"
        if not wanted:
            return True
        self._missing[task] = len(wanted)
        for need in wanted:
            self._followers.setdefault(need, []).append(task)
        return False

    def complete(self, tasks: Iterable[int]) -> list[int]:
        """Records these tasks as done; returns those that became ready, in a fixed order."""
        missing, followers = self._missing, self._followers
        ready = []
        for task in tasks:
            assert task not in missing, f"task {task} completed while it waits"
            for follower in followers.pop(task, ()):
                left = missing.get(follower)
                if left is None:
                    continue  # doomed in the meantime
                if left > 1:
                    missing[follower] = left - 1
                else:
                    del missing[follower]
                    ready.append(follower)
        return ready

    def fail(self, task: int) -> list[int]:
        """Records a task, waiting or not, as failed; returns all tasks that can therefore never run."""
        missing, followers = self._missing, self._followers
        missing.pop(task, None)
        doomed: list[int] = []
        unexplored = [task]
        while unexplored:
            for follower in followers.pop(unexplored.pop(), ()):
                if missing.pop(follower, None) is not None:
                    doomed.append(follower)
                    unexplored.append(follower)
        return doomed
