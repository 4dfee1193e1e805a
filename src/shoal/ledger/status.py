"""Status of a workflow's last run, from its ledger: while it is in progress, from any terminal, or afterwards.

`RunStatus` stores what `shoal status` needs of each task and does no I/O; `shoal.ledger.run_fold` interprets the
records. `Follower` reads incrementally what was appended to the ledger. The results of earlier runs that the planner
needs are in `shoal.ledger.history`.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import partial

import msgspec

from shoal.core.resources import FRACTION
from shoal.ledger.cluster_notes import is_submitted
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import (
    NONE_REQUESTED,
    RunStarted,
    TaskEnded,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
    decode,
)
from shoal.ledger.run_fold import UNKNOWN, RunFold, Sums, within
from shoal.ledger.statistics import read_live_counters
from shoal.ledger.views.core_use import Oversubscription
from shoal.ledger.views.pace import (
    MOST_LINKED,
    CategoryPace,
    Chain,
    ConcurrencyHistory,
    Longest,
    Progress,
    Rate,
    longest_of,
)
from shoal.ledger.views.throttle import ThrottleDecisions
from shoal.ledger.workspace import LockHolder, Workspace

_OF_DISK = " of disk"
"""Part of the message of an attempt that was killed for its disk use. Other attempts with this outcome exceeded their
memory."""


class CoreTime(msgspec.Struct):
    """Time of the tasks with the same core request."""

    seconds: float = 0.0
    """Of attempts that have ended."""
    cpu: float = 0.0
    begun: float = 0.0
    """Elapsed seconds of running attempts."""

    def add(self, seconds: float, cpu: float) -> None:
        self.seconds += seconds
        self.cpu += cpu

    def held(self, requested: int, shared: bool) -> float:
        """Core seconds. Where cores are shared, tasks that request none count with their CPU time, if that is known."""
        if requested == NONE_REQUESTED and shared:
            return self.cpu * (self.seconds + self.begun) / self.seconds if self.seconds > 0 else self.begun
        return (1.0 if requested == NONE_REQUESTED else requested / FRACTION) * (self.seconds + self.begun)


class CategoryState(CategoryPace):
    """Counters of the tasks of one category in a run."""

    spent: float = 0.0
    """Seconds of all attempts."""
    cpu: float = 0.0
    declared: dict[str, int] = msgspec.field(default_factory=dict)
    """Declared resources of one task."""
    most_memory: int = 0
    most_cores: float = 0.0
    most_disk: int = 0
    """The largest disk use of one task's outputs."""
    exhausted_at: int = 0
    """The largest memory limit that an attempt exceeded."""
    first_size: int = 0
    """The memory limit of the most recent first attempt."""
    retries: int = 0
    allocated: float = 0.0
    used: float = 0.0
    """Bytes of memory times seconds: allocated, and used."""

    def requested(self) -> int:
        """Cores that each of its tasks requests, except those in `special_cores`."""
        return self.declared.get("cores", NONE_REQUESTED)

    def measure(self, record: TaskEnded) -> None:
        """Adds the measured resources of an attempt."""
        seconds = record.ended - record.started
        memory = max(record.max_rss, record.usage.tree_memory)
        if record.memory_limit:
            self.allocated += record.memory_limit * seconds
            if record.attempt == 1:
                self.first_size = record.memory_limit
        if not record.final and record.outcome != "cancelled":
            self.retries += 1
        if record.outcome == "exhausted":
            if exceeded_memory(record):
                self.exhausted_at = max(self.exhausted_at, record.memory_limit)
            return
        if record.memory_limit:
            self.used += min(memory, record.memory_limit) * seconds
        self.most_memory = max(self.most_memory, memory)
        self.most_cores = max(self.most_cores, cores_used(record))
        self.most_disk = max(self.most_disk, record.usage.disk, sum(size for size, _ in record.outputs if size > 0))


def exceeded_memory(record: TaskEnded) -> bool:
    """Whether the attempt was killed for its memory use, and not for its disk use."""
    return record.outcome == "exhausted" and _OF_DISK not in record.message


def cores_used(record: TaskEnded) -> float:
    """Peak number of cores that the attempt used; the mean where the peak is not recorded."""
    if record.usage.cores:
        return record.usage.cores / 1000
    seconds = record.ended - record.started
    return (record.user + record.system) / seconds if seconds > 0 else 0.0


class RunPhase(Enum):
    """State of a run as a whole."""

    NEVER = "never run"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    """Its end is not recorded, and no process holds its lock."""
    AWAY = "on a cluster"
    """It is in progress or has ended on a cluster, and no client is attached."""


class RunStatus(RunFold):
    """The last run in a ledger, with tasks by name and sums by category."""

    def __init__(self, keeps_all: bool = False, *, skip_idle: bool = False) -> None:
        self.keeps_all = keeps_all
        """Keep the last attempt of every task, not only of those that did not succeed."""
        super().__init__(skip_idle=skip_idle)

    def _begin(self, start: RunStarted | None) -> None:
        super()._begin(start)
        self.throttle = ThrottleDecisions(keeps_all=True)
        self.names: dict[int, str] = {}
        self.category_of: dict[int, str] = {}
        self.categories: dict[str, CategoryState] = {}
        self.done: set[int] = set()
        self._node_of: dict[int, int] = {}
        """Node of each done task that ran on another node."""
        self.done_on: dict[int, int] = {}
        """Number of done tasks by node."""
        self.failed: dict[int, TaskEnded] = {}
        self.last: dict[int, TaskEnded] = {}
        """The last attempt of each task that was attempted, if `keeps_all`."""
        self.attempts: dict[int, int] = {}
        """How many attempts have ended, if `keeps_all`. On a cluster the attempt number can be higher: it also
        increases when a task of a batch goes back to the queue before it was started."""
        self.tried: dict[int, TaskEnded] = {}
        """The last attempt of tasks with a failed or cancelled attempt that have not ended."""
        self._spent_apart: dict[tuple[str, int], CoreTime] = {}
        """Time of tasks that request another number of cores than their category, by category and cores."""
        self._last_end = self.last_time
        self._cannot_run: tuple[tuple[int, ...], set[int]] = ((), set())
        """Tasks that depend on a failed or cancelled one, with the counters for which they were computed (a cache
        key)."""
        self._widths = ConcurrencyHistory()
        self._oversubscription = Oversubscription()
        """Overlap of the attempts that have ended."""
        self._rate = Rate(self.last_time)
        self._longest: tuple[int, Longest] | None = None
        """The longest chain, with the number of links for which it was computed."""

    def _start_attempt(self, record: TaskStarted) -> None:
        if record.task not in self.running:
            self._category(record.task).running += 1
        super()._start_attempt(record)

    def _stop(self, task: int) -> None:
        if self.running.pop(task, None) is not None:
            self._category(task).running -= 1

    def _declare(self, category: str, amounts: dict[str, int]) -> None:
        super()._declare(category, amounts)
        self._named(category).declared = amounts

    def _plan(self, record: TasksPlanned) -> None:
        for task, name, category in zip(record.first, record.names, record.categories, strict=True):
            self.names[task] = name
            self.category_of[task] = category
            self._category(task).planned += 1

    def _attempt_ended(self, record: TaskEnded) -> None:
        task = record.task
        self.last_time = max(self.last_time, record.ended)
        self._last_end = max(self._last_end, record.ended)
        category = self._category(task)
        origin = self.start.time if self.start is not None else record.started
        seconds, inside = record.ended - record.started, within(record.started, record.ended, origin)
        cpu = record.user + record.system
        if not self.is_cluster():
            cpu = min(cpu, inside * self.total_cores())
        category.spent += inside
        category.cpu += cpu
        category.measure(record)
        if task in self.special_cores:
            key = self.category_of.get(task, UNKNOWN), self.special_cores.of(task, NONE_REQUESTED)
            self._spent_apart.setdefault(key, CoreTime()).add(inside, cpu)
        self._widths.add(record.ended - origin - inside, record.ended - origin)
        self._oversubscription.add(record.started, record.ended, self._cores_of(task))
        if self.keeps_all:
            self.last[task] = record
            self.attempts[task] = self.attempts.get(task, 0) + 1
        if not record.final:
            self.tried[task] = record
            return
        self.tried.pop(task, None)
        self.unwanted.discard(task)
        self._take_back(task)
        if record.outcome == "ok":
            self.done.add(task)
            if record.node:
                self._node_of[task] = record.node
            self.done_on[record.node] = self.done_on.get(record.node, 0) + 1
            category.add(seconds)
            self._rate.update(record.ended, len(self.done))
        else:
            self.failed[task] = record
            category.failed += 1

    def _take_back(self, task: int) -> None:
        """Removes an earlier end of the task, since the last one counts: a result may be lost with a node, and the task
        may fail when it runs again."""
        if task in self.done:
            self.done.remove(task)
            self.done_on[self._node_of.pop(task, 0)] -= 1
            self._category(task).done -= 1
        elif self.failed.pop(task, None) is not None:
            self._category(task).failed -= 1

    def _category(self, task: int) -> CategoryState:
        return self._named(self.category_of.get(task, UNKNOWN))

    def _named(self, name: str) -> CategoryState:
        found = self.categories.get(name)
        if found is None:
            found = self.categories[name] = CategoryState()
        return found

    def is_planned(self, task: int) -> bool:
        return task in self.names

    def is_over(self, task: int) -> bool:
        return task in self.done or task in self.failed

    def ended(self) -> int:
        return len(self.done) + len(self.failed)

    def limiting_decision(self, category: str) -> ThrottleDecided | None:
        """The throttle's decision if it prevents further tasks of the category from starting."""
        record = self.throttle.last_of("", category) or self.throttle.last_of("", "")
        if record is None or record.cap < 0:
            return None
        running = self.running_of(category) if record.category else self.running_now()
        return record if running >= record.cap else None

    def node_name(self, number: int) -> str | None:
        """Name of a cluster node; None for the machine that writes the ledger."""
        known = self.nodes.get(number)
        return None if not number else known.name if known is not None else f"node {number}"

    def running_of(self, category: str) -> int:
        """How many tasks of a category run, by the ledger or by the live counters."""
        published = self.live_counters.categories.get(category, 0) if self.live_counters is not None else 0
        found = max(self._named(category).running, published)
        return max(0, min(found, self.left_of(category))) if self.to_run() else found

    def left_of(self, category: str) -> int:
        """How many tasks of a category have not ended."""
        known, lost = self._named(category), self.lost()
        gone = sum(self.category_of.get(task) == category for task in (*self._cancelled(), *lost))
        return max(0, known.planned - known.done - known.failed - gone)

    def not_run(self) -> int:
        """Of a run that has ended: tasks that are neither done nor failed nor cancelled."""
        return max(0, self.to_run() - self.ended() - self.cancelled())

    def cannot_run(self) -> int:
        return len(self.lost())

    def lost(self) -> set[int]:
        """Tasks that cannot run because a task that they depend on has failed or was cancelled."""
        known = (len(self.failed), len(self._gone), len(self.links), len(self.done), len(self.unwanted))
        if known[:2] == (0, 0):
            return set()
        if known != self._cannot_run[0]:
            found = {task for tasks in self._find_doomed(self.failed) for task in tasks.tolist() if task in self.names}
            self._cannot_run = known, found.difference(self.done, self.failed, self.unwanted)
        return self._cannot_run[1]

    def progress(self, now: float) -> Progress:
        """Progress of the run at `now`, with an estimate of its end at the present rate."""
        over, last = self.end is not None, self.until(now)
        going = [] if over else [(self._category(task), max(0.0, last - begun)) for task, begun in self._begun()]
        return self.progress_with(
            Sums(
                list(self.categories.values()),
                going,
                [] if over else self._slices(last),
                0.0 if over else self._rate.at(last),
                self._held(last),
                self._last_end,
                None if over else self._chain(last),
            ),
            now,
        )

    def _begun(self) -> list[tuple[int, float]]:
        """Running tasks, and when their attempts started."""
        return [(task, started.time) for task, started in self.running.items()]

    def _chain(self, last: float) -> Chain | None:
        """The rest of the longest chain. None if some tasks cannot run any more, because it is unknown which part of
        the chain that affects."""
        if self.cannot_run() or self.unwanted or not 0 < self.dependencies <= MOST_LINKED:
            return None
        if self._longest is None or self._longest[0] != len(self.links):
            self._longest = len(self.links), longest_of(self.links, self.category_of)
        longest = self._longest[1]
        longest.look(self.is_over, last)
        return longest.chain(self.categories, {task: max(0.0, last - begun) for task, begun in self._begun()})

    def _slices(self, last: float) -> list[float]:
        """How many tasks ran concurrently over time. On a cluster, short tasks are known only when they end."""
        elapsed = max(0.0, last - self.origin)
        ended = sum(category.done + category.failed + category.retries for category in self.categories.values())
        if self.is_cluster() and ended and not self.running:
            mean = sum(category.spent for category in self.categories.values()) / ended
            elapsed = max(elapsed / 2, elapsed - mean)
        return self._widths.slices(elapsed, [begun - self.origin for _, begun in self._begun()])

    def _held(self, last: float) -> float:
        """Core seconds. Tasks share cores where a throttle starts more of them than there are cores."""
        kinds = {(name, each.requested()): CoreTime(each.spent, each.cpu) for name, each in self.categories.items()}
        for key, spent in self._spent_apart.items():
            kinds[key[0], self._named(key[0]).requested()].add(-spent.seconds, -spent.cpu)
            kinds.setdefault(key, CoreTime()).add(spent.seconds, spent.cpu)
        for task, begun in self._begun() if self.end is None else ():
            name = self.category_of.get(task, UNKNOWN)
            key = name, self.special_cores.of(task, self._named(name).requested())
            kinds.setdefault(key, CoreTime()).begun += within(begun, last, self.origin)
        shared = self.is_oversubscribed()
        return sum(spent.held(requested, shared) for (_, requested), spent in kinds.items())

    def _oversubscription_of_ended(self) -> Oversubscription:
        return self._oversubscription

    def _cores_of(self, task: int) -> float:
        """Cores that a task requests, or one."""
        requested = self.special_cores.of(task, self._category(task).requested())
        return 1.0 if requested == NONE_REQUESTED else requested / FRACTION


class Follower:
    """Follows the ledger of one workflow while it grows."""

    def __init__(self, workspace: Workspace, keeps_all: bool = False, *, skip_idle: bool = False) -> None:
        self.workspace = workspace
        self._new_state = partial(RunStatus, keeps_all, skip_idle=skip_idle)
        self._latest = self._new_state()
        self.state = self._latest
        """Status of the last run. Empty if a run has taken the lock and written nothing yet."""
        self.holder: LockHolder | None = None
        self._reader = LedgerReader(workspace.ledger)
        self._identity = (0, 0)

    def refresh(self) -> RunPhase:
        """Reads what was appended, and determines the phase of the run."""
        # The lock is read before the ledger. A run that ends in between is then reported as ended, never as killed.
        self.holder = self.workspace.holder()
        is_away = self.holder is None and is_submitted(self.workspace)
        self._notice_new_ledger()
        for payload in self._reader.payloads():
            record = decode(payload)
            if record is not None:
                self._latest.take(record)
        self.state = self._latest if self._has_current_run() else self._new_state()
        start = self.state.start
        goes_on = start is None or (self.state.end is None and self.state.idle is None)
        self.state.live_counters = read_live_counters(self.workspace.directory, self.holder) if goes_on else None
        if self.holder is not None and goes_on:
            return RunPhase.RUNNING
        if is_away:
            return RunPhase.AWAY
        if start is None:
            return RunPhase.NEVER
        return RunPhase.ENDED if self.state.end is not None else RunPhase.KILLED

    def _has_current_run(self) -> bool:
        """Whether the ledger contains the run that holds the lock, if one does."""
        if self.holder is None or not self.holder.run:
            return True
        return any(run is not None and run.run == self.holder.run for run in (self._latest.start, self._latest.idle))

    def damaged_bytes(self) -> int:
        """Unreadable bytes of the ledger. Its end is not counted while a run may be writing it."""
        found = sum(stretch.size for stretch in self._reader.damage)
        return found + (self._reader.tail.size if self.holder is None else 0)

    def _notice_new_ledger(self) -> None:
        """A run that repairs the ledger replaces the file; the new one is read from its beginning."""
        try:
            found = os.stat(self.workspace.ledger)
        except OSError:
            return
        identity = (found.st_dev, found.st_ino)
        if identity != self._identity:
            self._identity = identity
            self._reader = LedgerReader(self.workspace.ledger)
            self._latest = self._new_state()


def listen(run: RunFold, workspace: Workspace, is_live: bool) -> None:
    """Gives a fold the live counters of the run, if it is in progress on this machine: a ledger alone records only
    longer tasks while they run. Reads a small file and never blocks, so a server may call it often."""
    run.live_counters = read_live_counters(workspace.directory, workspace.holder()) if is_live else None
