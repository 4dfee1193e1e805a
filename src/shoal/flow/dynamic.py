"""The flow of a run whose tasks are not known beforehand: they are added at any time, with what they need.

It remembers only links between tasks that are not over: a task that needs nothing and that nobody needs never appears
here, and one that is over leaves nothing behind, so a run of any length takes no more room than what waits in it. What
a task is, and what its result is, is up to others. Every operation costs O(1) per link.
"""

from __future__ import annotations

from collections.abc import Iterable


class DynamicFlow:
    """`add` tasks, then `complete` or `fail` them; the numbers of tasks are never used again."""

    def __init__(self) -> None:
        self._missing: dict[int, int] = {}
        """How many of its needs each waiting task still lacks."""
        self._followers: dict[int, list[int]] = {}
        """Who needs a task; some of them may be doomed already."""

    def __bool__(self) -> bool:
        """Whether anything waits for anything."""
        return bool(self._followers)

    def waits(self, task: int) -> bool:
        """Whether the task was added and still lacks something."""
        return task in self._missing

    def add(self, task: int, needs: Iterable[int]) -> bool:
        """Take a task that needs others, none of which is over; returns whether it is ready at once."""
        wanted = dict.fromkeys(needs)
        assert task not in self._missing and task not in wanted, f"task {task} was added before or needs itself"
        if not wanted:
            return True
        self._missing[task] = len(wanted)
        for need in wanted:
            self._followers.setdefault(need, []).append(task)
        return False

    def complete(self, tasks: Iterable[int]) -> list[int]:
        """Record that these tasks are done; returns those that became ready, in a fixed order."""
        missing, followers = self._missing, self._followers
        ready = []
        for task in tasks:
            assert task not in missing, f"task {task} completed while it waits"
            for follower in followers.pop(task, ()):
                left = missing.get(follower)
                if left is None:
                    continue  # doomed meanwhile
                if left > 1:
                    missing[follower] = left - 1
                else:
                    del missing[follower]
                    ready.append(follower)
        return ready

    def fail(self, task: int) -> list[int]:
        """Record that a task has failed, which may still wait itself; returns all that can therefore never run."""
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
