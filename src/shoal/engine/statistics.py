"""Running totals of a run, for the progress display and the summary; O(1) per task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappush, heappushpop

import msgspec

from shoal.ledger.records import TaskStarted, ThrottleDecided
from shoal.model.task import Profile
from shoal.view.crowding import Crowding
from shoal.view.pace import Tally
from shoal.view.words import throttle_note

SLOWEST_KEPT = 5
FAILURES_KEPT = 20


class CategoryTotals(msgspec.Struct):
    """What the tasks of one category have cost so far."""

    running: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    longest: float = 0.0
    most_memory: int = 0
    good: float = 0.0
    """Seconds of the attempts with which tasks succeeded."""
    squares: float = 0.0
    """The same, each squared."""


class Failure(msgspec.Struct, frozen=True):
    """A task that failed for good."""

    task: int
    name: str
    attempt: int
    message: str
    tail: bytes


class Statistics:
    """Totals of one run."""

    def __init__(self, total: int, up_to_date: int, started: float, cores: float) -> None:
        self.total = total
        """Tasks of the targets that run something."""
        self.up_to_date = up_to_date
        self.started = started
        self.ended = started
        self.cores = cores
        self.took_part = 0.0
        """Cores of all nodes that took part in a cluster; 0: those above."""
        self.offered = 0.0
        """Core seconds that the nodes of a cluster have offered; 0: all cores were there all the time."""
        self.may_crowd = False
        """A throttle has said how many tasks run, not the number of cores."""
        self.crowding = Crowding()
        """Of the attempts that have ended."""
        self.is_crowded = False
        """More tasks ran than there are cores, as it was seen last: those that declare no cores count with the
        processor time that they used, not with the time they took."""
        self.done = 0
        self.failed = 0
        self.cancelled = 0
        self.doomed = 0
        self.retried = 0
        self.running = 0
        self.work = 0.0
        """Core seconds of all attempts."""
        self.shared = 0.0
        """The same where cores are shared."""
        self.seconds = 0.0
        self.cpu = 0.0
        self.categories: dict[str, CategoryTotals] = {}
        self.slowest: list[tuple[float, int]] = []
        self.failures: list[Failure] = []
        self.going: dict[int, TaskStarted] = {}
        """Attempts that have been under way for more than a tick, by task; none where that is not known."""
        self.throttle: dict[tuple[str, str], ThrottleDecided] = {}
        """What the throttle said last, by node and category."""

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
        self.may_crowd = True
        self.throttle[record.node, record.category] = record

    def throttle_note(self, tallies: Mapping[str, Tally]) -> str:
        """What the throttle holds back most, or nothing; it says nothing more of a category that is over."""
        over = [name for name, tally in tallies.items() if not tally.left()]
        return throttle_note(record for record in self.throttle.values() if record.category not in over)

    def count_running(self, places: Sequence[tuple[Profile, int]]) -> None:
        """What runs at this moment: places in use, by profile of the tasks in them."""
        for totals in self.categories.values():
            totals.running = 0
        self.running = 0
        for profile, count in places:
            self.running += count
            self.category(profile.category).running += count

    def look(self, now: float, cores_of: Callable[[int], float]) -> None:
        """Sees whether tasks share cores, with those that are under way."""
        self.is_crowded = self.share_cores((record.time, now, cores_of(task)) for task, record in self.going.items())

    def share_cores(self, more: Iterable[tuple[float, float, float]] = ()) -> bool:
        """Whether they do, as those that read the ledger find it; `more` has begin, end and cores of further ones."""
        if not self.may_crowd:
            return False
        crowding = self.crowding.copy()
        for span in more:
            crowding.add(*span)
        return crowding.is_crowded(self.took_part or self.cores)

    def used(self, *, shared: bool) -> float:
        """Core seconds of all attempts."""
        return self.shared if shared else self.work

    def task_failed(self, failure: Failure) -> None:
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
