"""How a workflow's last run stands, from its ledger: while it goes on, from any terminal, or afterwards.

`RunState` is the fold over records and does no I/O; `Follower` reads what was added to the ledger since last time. What
earlier runs have left behind for the planner is in `shoal.engine.history`.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING

from shoal.engine.costs import CategoryState, Spent
from shoal.engine.moment import Moment, read_moment
from shoal.engine.workspace import Holder, Workspace
from shoal.ledger.file import LedgerReader
from shoal.ledger.records import (
    NONE_ASKED,
    CategoriesDeclared,
    CoresAsked,
    NetBegun,
    NetMarked,
    NodeLeft,
    NodeSeen,
    NodeTold,
    Record,
    RunEnded,
    RunStarted,
    TaskEnded,
    TasksCancelled,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    TasksVanished,
    ThrottleDecided,
    decode,
    numbers,
)
from shoal.model.resources import FRACTION
from shoal.view.longest import MOST_LINKED, Longest, linked, longest_of
from shoal.view.pace import CROWDED, Chain, Known, Progress, Rate, Widths, progress_of

if TYPE_CHECKING:
    from shoal.view.doomed import Doomed


class Phase(Enum):
    """What has become of a run."""

    NEVER = "never run"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    """It has written no end, and no process holds its lock."""


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
        self.done_on: dict[int, int] = {}
        """How many of these on which node."""
        self.failed: dict[int, TaskEnded] = {}
        self.last: dict[int, TaskEnded] = {}
        """The last attempt of each task that was tried, if `keeps_all`."""
        self.attempts: dict[int, int] = {}
        """How many have ended, if `keeps_all`. On a cluster their numbers do not say it: there they also rise when a
        task that was handed over together with others is handed back before it has begun."""
        self.tried: dict[int, TaskEnded] = {}
        """The last attempt of tasks of which an attempt failed or was cancelled, and that are not over."""
        self.unwanted: set[int] = set()
        """Tasks that somebody cancelled, and that are not over otherwise."""
        self.throttle: list[ThrottleDecided] = []
        """What the throttle said, in the order of time; an empty category stands for all of them."""
        self.net: NetBegun | None = None
        """Of a run of a net: which one."""
        self.mark: NetMarked | None = None
        """Of a run of a net: how it stood last."""
        self.apart: dict[int, int] = {}
        """Cores of tasks that ask for others than their category; see `CoresAsked`."""
        self._spent_apart: dict[tuple[str, int], Spent] = {}
        """The time of these, by category and cores."""
        self.moment: Moment | None = None
        """What the run says of this moment; see `shoal.engine.moment`."""
        self.nodes: dict[int, NodeSeen] = {}
        """Of a run on a cluster: who has taken part, by number."""
        self.stands: dict[int, NodeTold] = {}
        """What those said last that are there."""
        self.last_time = start.time if start else 0.0
        self._last_end = self.last_time
        self._links: list[TasksLinked] = []
        self._doomed: Doomed | None = None
        self._doomed_by, self._cannot_run = (0, 0), 0
        """By how many that failed or were cancelled so many tasks cannot run any more."""
        self._widths = Widths()
        self._held = Widths()
        """The same of the cores that they held."""
        self._rate = Rate(self.last_time)
        self._longest: tuple[int, Longest] | None = None
        """From how many links, and the longest chain in them."""

    def take(self, record: Record) -> None:
        """Adds one record."""
        match record:
            case TaskStarted():
                if record.task not in self.running:
                    self._category(record.task).running += 1
                self.running[record.task] = record
                self.last_time = max(self.last_time, record.time)
            case TasksCancelled():
                self.unwanted.update(record.tasks)
            case TasksVanished():
                for task in record.tasks:
                    self._runs_no_more(task)
            case TaskEnded():
                self._task_ended(record)
            case CategoriesDeclared():
                for category, amounts in zip(record.names, record.resources, strict=True):
                    self._named(category).declared = dict(amounts)
            case CoresAsked():
                self.apart |= zip(numbers(record.tasks), numbers(record.cores), strict=True)
            case TasksPlanned():
                for task, name, category in zip(record.first, record.names, record.categories, strict=True):
                    self.names[task] = name
                    self.category_of[task] = category
                    self._category(task).planned += 1
            case TasksLinked():
                self._links.append(record)
            case ThrottleDecided():
                self.throttle.append(record)
                self.last_time = max(self.last_time, record.time)
            case NetBegun():
                self.net = self._net_before = record
            case NetMarked():
                self.net, self.mark = self._net_before, record  # a run that goes on does not say once more of which net
                self.last_time = max(self.last_time, record.time)
            case NodeSeen():
                self.nodes[record.node] = record
                self.last_time = max(self.last_time, record.time)
            case NodeTold():
                if record.node in self.nodes:  # or the record in which it came is damaged
                    self.stands[record.node] = record
                self.last_time = max(self.last_time, record.time)
            case NodeLeft():
                self.stands.pop(record.node, None)
                self.last_time = max(self.last_time, record.time)
            case RunStarted():
                self._begin(record)
            case RunEnded():
                self.end = record
                self.last_time = max(self.last_time, record.time)  # clocks of nodes may be ahead of ours

    def _task_ended(self, record: TaskEnded) -> None:
        task = record.task
        self.last_time = max(self.last_time, record.ended)
        self._last_end = max(self._last_end, record.ended)
        category = self._category(task)
        started = self.running.get(task)
        if started is not None and started.attempt <= record.attempt:
            self._runs_no_more(task)
        seconds = record.ended - record.started
        category.spent += seconds
        category.cpu += record.user + record.system
        category.measure(record)
        if task in self.apart:
            key = self.category_of.get(task, "unknown"), self.apart[task]
            self._spent_apart.setdefault(key, Spent()).add(seconds, record.user + record.system)
        if self.start is not None:
            begin, end = record.started - self.start.time, record.ended - self.start.time
            self._widths.add(begin, end)
            self._held.add(begin, end, self._cores_of(task))
        if self.keeps_all:
            self.last[task] = record
            self.attempts[task] = self.attempts.get(task, 0) + 1
        if not record.final:
            self.tried[task] = record
            return
        self.tried.pop(task, None)
        self.unwanted.discard(task)
        if record.outcome == "ok":
            self.done.add(task)
            self.done_on[record.node] = self.done_on.get(record.node, 0) + 1
            category.add(seconds)
            self._rate.update(record.ended, len(self.done))
        else:
            self.failed[task] = record
            category.failed += 1

    def _runs_no_more(self, task: int) -> None:
        if self.running.pop(task, None) is not None:
            self._category(task).running -= 1

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
        running = self.running_of(category) if record.category else self.running_now()
        return record if running >= record.cap else None

    @property
    def is_cluster(self) -> bool:
        return bool(self.nodes)

    def node_name(self, number: int) -> str | None:
        """Of a node of a cluster; None for the machine that writes the ledger."""
        known = self.nodes.get(number)
        return known.name if known is not None else f"node {number}" if number else None

    def running_now(self) -> int:
        """How many tasks run, if the run goes on; of those that are over at once only the run itself knows."""
        if self.net is not None:
            return self.mark.running_now() if self.mark is not None else 0
        told = [stand.running or 0 for stand in self.stands.values()]
        return max(len(self.running), self.moment.running if self.moment is not None else 0, sum(told))

    def running_of(self, category: str) -> int:
        """The same of one category."""
        told = self.moment.categories.get(category, 0) if self.moment is not None else 0
        return max(self._named(category).running, told)

    def to_run(self) -> int:
        return self.start.to_run if self.start else 0

    def up_to_date(self) -> int:
        return self.start.total - self.start.to_run if self.start else 0

    def cancelled(self) -> int:
        """Tasks that somebody cancelled, and that do not run any more."""
        tasks = self.unwanted if self.end is not None else self.unwanted.difference(self.running)
        found = sum(task in self.names for task in tasks)  # groups can be cancelled, too
        return found if self.end is None else max(found, self.end.cancelled)

    def not_run(self) -> int:
        """Of a run that is over: tasks that were neither done nor failed nor cancelled."""
        return max(0, self.to_run() - len(self.done) - len(self.failed) - self.cancelled())

    def waiting(self) -> int:
        """Tasks that are neither over nor running."""
        return max(0, self.to_run() - self.over() - self.running_now())

    def over(self) -> int:
        """Tasks that will not run any more: done, failed, cancelled, or in need of one that failed or was cancelled."""
        return len(self.done) + len(self.failed) + self.cancelled() + self.cannot_run()

    def cannot_run(self) -> int:
        """How many tasks need one that failed or was cancelled, as far as the ledger says what tasks wait for."""
        lost = (len(self.failed), len(self.unwanted))
        if lost == (0, 0) or not self._links:
            return 0
        if lost != self._doomed_by:
            import numpy as np

            from shoal.view.doomed import Doomed

            if self._doomed is None or self._doomed.links != len(self._links):
                self._doomed, self._cannot_run = Doomed(self._links), 0
            found = self._doomed.fail(np.array([*self.failed, *sorted(self.unwanted)], np.int64))
            self._cannot_run += sum(task in self.names for task in found)
            self._doomed_by = lost
        return self._cannot_run

    def progress(self, now: float) -> Progress:
        """How far the run is, and when it will be over if it goes on as it does."""
        over = self.end is not None
        last = self.last_time if over else max(now, self.last_time)
        elapsed = last - self.start.time if self.start else 0.0
        begun = [started.time for started in self.running.values()]
        going = [
            (self._category(task), max(0.0, last - started.time)) for task, started in self.running.items() if not over
        ]
        return progress_of(
            Known(
                self.to_run(),
                self.up_to_date(),
                0 if over else self.running_now(),
                elapsed,
                over,
                list(self.categories.values()),
                going,
                [] if over else self._slices(elapsed, begun),
                0.0 if over else self._rate.at(last),
                bool(self.throttle) and self.throttle[-1].state == "growing",
                self.cannot_run(),
                self.cancelled(),
                self._utilisation(elapsed, last),
                quiet=last - self._last_end,
                chain=None if over else self._chain(last),
            )
        )

    def _chain(self, last: float) -> Chain | None:
        """What is left of the longest chain. If tasks cannot run any more, nobody says which of it that concerns."""
        if self.cannot_run() or self.unwanted or not 0 < linked(self._links) <= MOST_LINKED:
            return None
        if self._longest is None or self._longest[0] != len(self._links):
            self._longest = len(self._links), longest_of(self._links, self.category_of)
        longest = self._longest[1]
        longest.look(lambda task: task in self.done or task in self.failed, last)
        begun = {task: max(0.0, last - started.time) for task, started in self.running.items()}
        return longest.chain(self.categories, begun)

    def _slices(self, elapsed: float, begun: list[float]) -> list[float]:
        """How many ran at the same time; what is short on a cluster is known only when it ends."""
        began = self.start.time if self.start else 0.0
        ended = sum(category.done + category.failed + category.retries for category in self.categories.values())
        if self.is_cluster and ended and not begun:
            mean = sum(category.spent for category in self.categories.values()) / ended
            elapsed = max(elapsed / 2, elapsed - mean)
        return self._widths.slices(elapsed, [moment - began for moment in begun])

    def _utilisation(self, elapsed: float, last: float) -> float | None:
        """The share of this machine's cores; where a throttle lets more tasks run than there are, they share them."""
        cores = dict(self.start.node).get("cores", 0) / FRACTION if self.start else 0.0
        if self.is_cluster or cores * elapsed <= 0:
            return None
        kinds = {(name, each.asked()): Spent(each.spent, each.cpu) for name, each in self.categories.items()}
        for key, spent in self._spent_apart.items():
            kinds[key[0], self._named(key[0]).asked()].add(-spent.seconds, -spent.cpu)
            kinds.setdefault(key, Spent()).add(spent.seconds, spent.cpu)
        for started in self.running.values() if self.end is None else ():
            name = self.category_of.get(started.task, "unknown")
            key = name, self.apart.get(started.task, self._named(name).asked())
            kinds.setdefault(key, Spent()).begun += max(0.0, last - started.time)
        shared = self._is_crowded(cores, elapsed)
        held = sum(spent.held(asked, shared) for (_, asked), spent in kinds.items())
        return min(1.0, held / (cores * elapsed))

    def _is_crowded(self, cores: float, elapsed: float) -> bool:
        """Whether more ran together than there are cores, by what the run says, or by what its attempts tell."""
        if self.moment is not None:
            return self.moment.crowded
        if not self.throttle or self.start is None:
            return False
        held = self._held.slices(elapsed)
        for task, started in self.running.items():
            begun = (started.time - self.start.time) * len(held) / elapsed
            more = self._cores_of(task)
            held = [width + more * min(1.0, max(0.0, at + 1 - begun)) for at, width in enumerate(held)]
        return max(held, default=0.0) > CROWDED * cores

    def _cores_of(self, task: int) -> float:
        """What a task asks for, or one."""
        asked = self.apart.get(task, self._category(task).asked())
        return 1.0 if asked == NONE_ASKED else asked / FRACTION


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
        self.state.moment = read_moment(self.workspace.directory, self.holder)
        start = self.state.start
        if self.holder is not None and (start is None or start.run != self.holder.run or self.state.end is None):
            return Phase.RUNNING
        if start is None:
            return Phase.NEVER
        return Phase.ENDED if self.state.end is not None else Phase.KILLED

    def damaged_bytes(self) -> int:
        """Bytes of the ledger that cannot be read; its end, while somebody may be writing it, is not counted."""
        found = sum(stretch.size for stretch in self._reader.damage)
        return found + (self._reader.tail.size if self.holder is None else 0)

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


def running_now(workspace: Workspace) -> int | None:
    """How many tasks the run of a workflow has under way on this machine; None if it does not say, or nobody runs it.

    Reads a small file and never waits, so a server may ask as often as it likes. A ledger alone tells only of tasks
    that run for a while.
    """
    found = read_moment(workspace.directory, workspace.holder())
    return found.running if found is not None else None
