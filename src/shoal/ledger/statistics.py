"""Running totals of a run in the process that executes it: counters and progress for the display, O(1) per task; and
the live counters that it publishes for other processes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from shoal.core.graph import Graph
from shoal.core.task import Profile
from shoal.ledger.records import TaskStarted, ThrottleDecided
from shoal.ledger.views.core_use import Oversubscription
from shoal.ledger.views.pace import (
    CategoryPace,
    Chain,
    ConcurrencyHistory,
    KnownProgress,
    LiveCounters,
    Longest,
    Progress,
    Rate,
    progress_of,
    steps_of_longest,
)
from shoal.ledger.views.throttle import throttle_note

if TYPE_CHECKING:
    from shoal.ledger.workspace import LockHolder


SLOWEST_KEPT = 5
FAILURES_KEPT = 20


class CategoryTotals(msgspec.Struct):
    """Totals over the tasks of one category."""

    running: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    longest: float = 0.0
    most_memory: int = 0
    good: float = 0.0
    """Seconds of the successful attempts."""
    squares: float = 0.0
    """Sum of their squares."""


class TaskFailure(msgspec.Struct, frozen=True):
    """A task that failed finally."""

    task: int
    name: str
    attempt: int
    message: str
    tail: bytes


class Statistics:
    """Totals of one run."""

    def __init__(self, total: int, up_to_date: int, started: float, cores: float) -> None:
        self.total = total
        """Tasks of the targets that have an action."""
        self.up_to_date = up_to_date
        self.started = started
        self.ended = started
        self.cores = cores
        self.took_part = 0.0
        """Cores of all nodes of a cluster that took part; 0: `cores` applies."""
        self.offered = 0.0
        """Core seconds that the nodes of a cluster have provided; 0: all cores were present all the time."""
        self.may_oversubscribe = False
        """A throttle decides how many tasks run, not the number of cores."""
        self.oversubscription = Oversubscription()
        """Overlap of the attempts that have ended."""
        self.is_oversubscribed = False
        """At the last check, tasks overlapped on more cores than exist: tasks without declared cores then count with
        their CPU time, not with their duration."""
        self.done = 0
        self.failed = 0
        self.cancelled = 0
        self.doomed = 0
        self.retried = 0
        self.running = 0
        self.work = 0.0
        """Core seconds of all attempts."""
        self.shared = 0.0
        """The same if cores are shared."""
        self.seconds = 0.0
        self.cpu = 0.0
        self.categories: dict[str, CategoryTotals] = {}
        self.slowest: list[tuple[float, int]] = []
        self.failures: list[TaskFailure] = []
        self.going: dict[int, TaskStarted] = {}
        """Attempts that have been running for more than a tick, by task; empty where that is not known."""
        self.throttle: dict[tuple[str, str], ThrottleDecided] = {}
        """The last decision of the throttle, by node and category."""

    def category(self, name: str) -> CategoryTotals:
        totals = self.categories.get(name)
        if totals is None:
            totals = self.categories[name] = CategoryTotals()
        return totals

    def attempt_ended(
        self,
        task: int,
        totals: CategoryTotals,
        seconds: float,
        cpu: float,
        memory: int,
        cores: float,
        *,
        declared: bool = False,
    ) -> None:
        self.work += seconds * cores
        self.shared += seconds * cores if declared else min(cpu, seconds * (self.cores or cpu))
        self.seconds += seconds
        self.cpu += cpu
        totals.seconds += seconds
        totals.cpu += cpu
        if seconds > totals.longest:
            totals.longest = seconds
        if memory > totals.most_memory:
            totals.most_memory = memory
        slowest = self.slowest
        if len(slowest) < SLOWEST_KEPT:
            heappush(slowest, (seconds, task))
        elif seconds > slowest[0][0]:
            heappushpop(slowest, (seconds, task))

    def task_done(self, totals: CategoryTotals, seconds: float) -> None:
        self.done += 1
        totals.done += 1
        totals.good += seconds
        totals.squares += seconds * seconds

    def throttled(self, record: ThrottleDecided) -> None:
        self.may_oversubscribe = True
        self.throttle[record.node, record.category] = record

    def throttle_note(self, tallies: Mapping[str, CategoryPace]) -> str:
        """The throttle's most important limit as text, or an empty string; categories without remaining tasks are
        ignored."""
        over = [name for name, tally in tallies.items() if not tally.left()]
        return throttle_note(record for record in self.throttle.values() if record.category not in over)

    def count_running(self, places: Sequence[tuple[Profile, int]]) -> None:
        """Sets the running tasks: occupied slots, by profile of the tasks in them."""
        for totals in self.categories.values():
            totals.running = 0
        self.running = 0
        for profile, count in places:
            self.running += count
            self.category(profile.category).running += count

    def update_oversubscription(self, now: float, cores_of: Callable[[int], float]) -> None:
        """Updates `is_oversubscribed`, including the running tasks."""
        self.is_oversubscribed = self.share_cores(
            (record.time, now, cores_of(task)) for task, record in self.going.items()
        )

    def share_cores(self, more: Iterable[tuple[float, float, float]] = ()) -> bool:
        """Whether tasks share cores, by the same rule as for readers of the ledger; `more` has begin, end and cores of
        further attempts."""
        if not self.may_oversubscribe:
            return False
        oversubscription = self.oversubscription.copy()
        for span in more:
            oversubscription.add(*span)
        return oversubscription.is_oversubscribed(self.took_part or self.cores)

    def used(self, *, shared: bool) -> float:
        """Core seconds of all attempts."""
        return self.shared if shared else self.work

    def task_failed(self, failure: TaskFailure) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(failure)

    def to_run(self) -> int:
        return self.total - self.up_to_date

    def over(self) -> int:
        """Tasks of this run that will not run any more."""
        return self.done + self.failed + self.cancelled + self.doomed

    def utilisation(self) -> float:
        offered = self.offered or (self.ended - self.started) * self.cores
        used = self.used(shared=self.share_cores())
        return min(1.0, used / offered) if offered > 0 else 0.0


_MOST_FOLLOWED = 50_000
"""Maximum number of dependencies for which the longest chain is computed; that takes about 40 ms."""
_FOLLOWED_AFTER = 3.0
"""Seconds; shorter runs need no estimate of their end."""


class PlannedChain:
    """The longest chain of dependent tasks in a plan."""

    def __init__(self, graph: Graph, to_run: Sequence[int], done: Sequence[float]) -> None:
        self._graph, self._to_run = graph, to_run
        self._done = done
        """For each task when it was done, or 0."""
        self._longest: Longest | None = None

    def left(self, statistics: Statistics, tallies: Mapping[str, CategoryPace], now: float) -> Chain | None:
        """The remaining chain; None if unknown. After failures it is unknown which part of the chain can still run."""
        graph, failed = self._graph, {failure.task for failure in statistics.failures}
        if not 0 < len(graph.successors) <= _MOST_FOLLOWED or now - statistics.started < _FOLLOWED_AFTER:
            return None
        if statistics.doomed or statistics.cancelled or len(failed) < statistics.failed:
            return None
        if self._longest is None:
            runs = [False] * len(graph)
            for task in self._to_run:
                runs[task] = True
            needed = [
                task for task, (begin, end) in enumerate(pairwise(graph.successor_start)) for _ in range(begin, end)
            ]
            steps = steps_of_longest(needed, graph.successors, runs)
            self._longest = Longest(steps, lambda task: graph.profile_of(task).category)
        self._longest.look(lambda task: self._done[task] or task in failed, now)
        begun = {task: max(0.0, now - record.time) for task, record in statistics.going.items()}
        return self._longest.chain(tallies, begun)


class RunPace:
    """Computes the progress of one run from its totals; `planned` is the number of tasks of each category."""

    def __init__(
        self,
        started: float,
        planned: Mapping[str, int],
        category_of: Callable[[int], str],
        chain: PlannedChain | None = None,
    ) -> None:
        self.started = started
        self._chain = chain
        self._planned = planned
        self._category_of = category_of
        self._widths = ConcurrencyHistory()
        self._rate = Rate(started)
        self._last = started
        self._ended = 0.0
        """Seconds of attempts that had ended at the last tick."""
        self._busy = started
        """When a task was running last."""
        self._ticked = 0.0
        """Task seconds, integrated from tick to tick."""

    def update(self, statistics: Statistics, now: float) -> None:
        """Takes the totals of this moment."""
        if now <= self._last:
            return
        passed = now - self._last
        # Tasks that start and end between two ticks, or run on nodes that do not report them, count when they have
        # ended.
        running = statistics.running or (statistics.seconds - self._ended) / passed
        if running > 0:
            self._busy = now
        self._widths.add(self._last - self.started, now - self.started, running)
        self._ticked += running * passed
        self._ended = statistics.seconds
        self._rate.update(now, statistics.done)
        self._last = now

    def progress(self, statistics: Statistics, now: float) -> Progress:
        """Progress at this moment."""
        tallies = self.tallies(statistics)
        going = [
            (tallies.get(self._category_of(task), CategoryPace()), max(0.0, now - record.time))
            for task, record in statistics.going.items()
        ]
        begun = sum(seconds for _, seconds in going) if going else self._begun(statistics, tallies)
        scale = (statistics.seconds + begun) / self._ticked if self._ticked > 0 else 0.0
        elapsed = now - self.started
        return progress_of(
            KnownProgress(
                statistics.to_run(),
                statistics.up_to_date,
                statistics.running,
                elapsed,
                False,
                list(tallies.values()),
                going,
                [min(1.0, scale) * width for width in self._widths.slices(self._last - self.started)],
                self._rate.at(now),
                any(record.state == "growing" for record in statistics.throttle.values()),
                statistics.doomed,
                statistics.cancelled,
                self._utilisation(statistics, begun, elapsed),
                0.0 if going else begun,
                quiet=now - self._busy,
                chain=self._chain.left(statistics, tallies, now) if self._chain is not None else None,
            )
        )

    def tallies(self, statistics: Statistics) -> dict[str, CategoryPace]:
        """Counters by category, as in the plan."""
        found = {}
        for name, planned in self._planned.items():
            totals = statistics.category(name)
            found[name] = CategoryPace(planned, totals.done, totals.failed, totals.running, totals.good, totals.squares)
        return found

    def _begun(self, statistics: Statistics, tallies: Mapping[str, CategoryPace]) -> float:
        counted = max(0.0, self._ticked - statistics.seconds)
        tasks = sum(tally.done for tally in tallies.values())
        if not tasks:
            return counted
        mean_of_all = sum(tally.seconds for tally in tallies.values()) / tasks
        known = sum(tally.running for tally in tallies.values())
        expected = sum(tally.running * tally.mean(mean_of_all) for tally in tallies.values())
        return min(counted, expected + max(0, statistics.running - known) * mean_of_all)

    @staticmethod
    def _utilisation(statistics: Statistics, begun: float, elapsed: float) -> float | None:
        if statistics.cores * elapsed <= 0:
            return None
        used = statistics.used(shared=statistics.is_oversubscribed)
        held = used / statistics.seconds if statistics.seconds > 0 else 1.0
        return min(1.0, (used + begun * held) / (statistics.cores * elapsed))


NAME = "moment"
_SIZE = struct.Struct("<I")
_MOST_BYTES = 1 << 16


class LiveCountersWriter:
    """Publishes the live counters of a run in a file of its directory, for `shoal status` and the web page."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, NAME)
        self._published = b""

    def publish(self, statistics: Statistics) -> None:
        """Writes the counters if they have changed. Errors are ignored: the ledger's writer reports a full disk."""
        running = {name: totals.running for name, totals in statistics.categories.items() if totals.running}
        moment = LiveCounters(os.getpid(), statistics.running, running, statistics.is_oversubscribed)
        encoded = msgspec.msgpack.encode(moment)
        if len(encoded) > _MOST_BYTES - _SIZE.size:  # too many categories or too long names: publish the total only
            encoded = msgspec.msgpack.encode(msgspec.structs.replace(moment, categories={}))
        if encoded == self._published:
            return
        self._published = encoded
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # A single pwrite over the old content, without truncation, so that readers never find an empty file.
                os.pwrite(descriptor, _SIZE.pack(len(encoded)) + encoded, 0)
            finally:
                os.close(descriptor)
        except OSError:
            pass


def read_live_counters(directory: str, holder: LockHolder | None) -> LiveCounters | None:
    """The counters of the process that holds the lock; None if no process does, or it has not published any."""
    if holder is None:
        return None
    try:
        with open(os.path.join(directory, NAME), "rb") as file:
            data = file.read(_MOST_BYTES)
        size = _SIZE.unpack_from(data)[0]
        found = msgspec.msgpack.decode(data[_SIZE.size : _SIZE.size + size], type=LiveCounters)
    except (OSError, struct.error, msgspec.MsgspecError):
        return None
    return found if found.pid == holder.pid else None
