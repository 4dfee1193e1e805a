"""How a workflow's last run stands, from its ledger: while it goes on, from any terminal, or afterwards.

`RunState` is the fold over records and does no I/O; `Follower` reads what was added to the ledger since last time. What
earlier runs have left behind for the planner is in `shoal.engine.history`.
"""

from __future__ import annotations

import os
from collections import deque
from enum import Enum

import msgspec

from shoal.engine.pace import time_left, work_left
from shoal.engine.workspace import Holder, Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import (
    CategoriesDeclared,
    NetBegun,
    NetMarked,
    Record,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
    decode,
)

RATE_SECONDS = 10.0
_RECENT = 5000
_OF_DISK = " of disk"
"""In the message of an attempt that was ended for what it wrote; of others with that outcome it was memory."""


class Phase(Enum):
    """What has become of a run."""

    NEVER = "never run"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    """It has written no end, and no process holds its lock."""


class CategoryState(msgspec.Struct):
    """The tasks of one category in a run."""

    planned: int = 0
    done: int = 0
    failed: int = 0
    running: int = 0
    seconds: float = 0.0
    declared: dict[str, int] = {}
    """What its tasks ask for by themselves."""
    most_memory: int = 0
    most_cores: float = 0.0
    most_disk: int = 0
    """The largest footprint of the outputs of one task."""
    exhausted_at: int = 0
    """The largest size of memory that an attempt exceeded."""
    first_size: int = 0
    """What the last first attempt was given of memory."""
    retries: int = 0
    allocated: float = 0.0
    used: float = 0.0
    """Bytes of memory times seconds, given and made use of."""

    def measure(self, record: TaskEnded) -> None:
        """What an attempt used."""
        seconds = record.ended - record.started
        memory = max(record.max_rss, record.usage.tree_memory)
        if record.memory_limit:
            self.allocated += record.memory_limit * seconds
            if record.attempt == 1:
                self.first_size = record.memory_limit
        if not record.final:
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
    """Whether the attempt was ended for the memory it used, and not for its disk."""
    return record.outcome == "exhausted" and _OF_DISK not in record.message


def cores_used(record: TaskEnded) -> float:
    """The cores an attempt kept busy at its busiest; on average where nothing else is recorded."""
    if record.usage.cores:
        return record.usage.cores / 1000
    seconds = record.ended - record.started
    return (record.user + record.system) / seconds if seconds > 0 else 0.0


class RunState:
    """The last run in a ledger; a record that begins another run begins anew here, too."""

    def __init__(self, keeps_all: bool = False) -> None:
        self.keeps_all = keeps_all
        """Keep the last attempt of every task, not only of those that did not succeed."""
        self._net_before: NetBegun | None = None
        self._begin(None)

    def _begin(self, start: RunStarted | None) -> None:
        self.start = start
        self.end: RunEnded | None = None
        self.names: dict[int, str] = {}
        self.category_of: dict[int, str] = {}
        self.categories: dict[str, CategoryState] = {}
        self.running: dict[int, TaskStarted] = {}
        self.done: set[int] = set()
        self.failed: dict[int, TaskEnded] = {}
        self.last: dict[int, TaskEnded] = {}
        """The last attempt of each task that was tried, if `keeps_all`."""
        self.tried: dict[int, TaskEnded] = {}
        """The last attempt of tasks of which an attempt failed or was cancelled, and that are not over."""
        self.throttle: list[ThrottleDecided] = []
        """What the throttle said, in the order of time; an empty category stands for all of them."""
        self.net: NetBegun | None = None
        """Of a run of a net: which one."""
        self.mark: NetMarked | None = None
        """Of a run of a net: how it stood last."""
        self.seconds = 0.0
        self.last_time = start.time if start else 0.0
        self._ends: deque[float] = deque(maxlen=_RECENT)

    def take(self, record: Record) -> None:
        """Adds one record."""
        match record:
            case TaskStarted():
                self.running[record.task] = record
                self._category(record.task).running += 1
                self.last_time = max(self.last_time, record.time)
            case TaskEnded():
                self._task_ended(record)
            case CategoriesDeclared():
                for category, amounts in zip(record.names, record.resources, strict=True):
                    self._named(category).declared = dict(amounts)
            case TasksPlanned():
                for task, name, category in zip(record.first, record.names, record.categories, strict=True):
                    self.names[task] = name
                    self.category_of[task] = category
                    self._category(task).planned += 1
            case ThrottleDecided():
                self.throttle.append(record)
                self.last_time = max(self.last_time, record.time)
            case NetBegun():
                self.net = self._net_before = record
            case NetMarked():
                self.net, self.mark = self._net_before, record  # a run that goes on does not say once more of which net
                self.last_time = max(self.last_time, record.time)
            case RunStarted():
                self._begin(record)
            case RunEnded():
                self.end = record
                self.last_time = record.time

    def _task_ended(self, record: TaskEnded) -> None:
        task = record.task
        self.last_time = max(self.last_time, record.ended)
        category = self._category(task)
        if self.running.pop(task, None) is not None:
            category.running -= 1
        self.seconds += record.ended - record.started
        category.seconds += record.ended - record.started
        category.measure(record)
        if self.keeps_all:
            self.last[task] = record
        if not record.final:
            self.tried[task] = record
            return
        self.tried.pop(task, None)
        if record.outcome == "ok":
            self.done.add(task)
            category.done += 1
            self._ends.append(record.ended)
        else:
            self.failed[task] = record
            category.failed += 1

    def _category(self, task: int) -> CategoryState:
        return self._named(self.category_of.get(task, "unknown"))

    def _named(self, name: str) -> CategoryState:
        found = self.categories.get(name)
        if found is None:
            found = self.categories[name] = CategoryState()
        return found

    def throttled(self) -> dict[tuple[str, str], ThrottleDecided]:
        """What the throttle said last, by node and category; this machine has no name."""
        return {(record.node, record.category): record for record in self.throttle}

    def held_back(self, category: str) -> ThrottleDecided | None:
        """What the throttle says if it lets no further task of the category start."""
        known = self.throttled()
        record = known.get(("", category)) or known.get(("", ""))
        if record is None or record.cap < 0:
            return None
        running = self._named(category).running if record.category else len(self.running)
        return record if running >= record.cap else None

    def to_run(self) -> int:
        return self.start.to_run if self.start else 0

    def up_to_date(self) -> int:
        return self.start.total - self.start.to_run if self.start else 0

    def waiting(self) -> int:
        """Tasks that are neither over nor running."""
        return max(0, self.to_run() - len(self.done) - len(self.failed) - len(self.running))

    def rate(self, now: float) -> float:
        """Tasks done per second in the last few seconds before `now`."""
        recent = [moment for moment in self._ends if moment > now - RATE_SECONDS]
        began = self.start.time if self.start else now
        oldest = recent[0] if len(recent) == _RECENT else max(began, now - RATE_SECONDS)
        return len(recent) / (now - oldest) if recent and now > oldest else 0.0

    def time_left(self, now: float) -> float | None:
        """Seconds until the end if it goes on as it does; None if nothing can be said yet."""
        if self.start is None:
            return None
        done, left = {}, {}
        for name, category in self.categories.items():
            ended = category.done + category.failed
            left[name] = max(0, category.planned - ended)
            if ended:
                done[name] = (ended, category.seconds)
        begun = sum(now - started.time for started in self.running.values())
        passed = now - self.start.time
        width = (self.seconds + begun) / passed if passed > 0 else 0.0
        return time_left(work_left(left, done), begun, width, self.rate(now), sum(left.values()))


class Follower:
    """Follows the ledger of one workflow."""

    def __init__(self, workspace: Workspace, keeps_all: bool = False) -> None:
        self.workspace = workspace
        self.state = RunState(keeps_all)
        self.holder: Holder | None = None
        self._reader = LedgerReader(workspace.ledger)
        self._identity = (0, 0)

    def refresh(self) -> Phase:
        """Reads what was added, and finds out whether the run still goes on."""
        # Who holds the lock is asked first: a run that ends in between is then seen as ended, never as killed.
        self.holder = self.workspace.holder()
        self._notice_new_ledger()
        for payload in self._reader.payloads():
            record = decode(payload)
            if record is not None:
                self.state.take(record)
        start = self.state.start
        if self.holder is not None and (start is None or start.run != self.holder.run or self.state.end is None):
            return Phase.RUNNING
        if start is None:
            return Phase.NEVER
        return Phase.ENDED if self.state.end is not None else Phase.KILLED

    def _notice_new_ledger(self) -> None:
        """A run that mends the ledger puts another file in its place; that one is read from its beginning."""
        try:
            found = os.stat(self.workspace.ledger)
        except OSError:
            return
        identity = (found.st_dev, found.st_ino)
        if identity != self._identity:
            self._identity = identity
            self._reader = LedgerReader(self.workspace.ledger)
            self.state = RunState(self.state.keeps_all)
