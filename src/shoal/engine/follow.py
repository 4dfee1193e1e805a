"""How a workflow's last run stands, from its ledger: while it goes on, from any terminal, or afterwards.

`RunState` is the fold over records and does no I/O; `Follower` reads what was added to the ledger since last time. What
earlier runs have left behind for the planner is in `shoal.engine.history`.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from shoal.engine.brought import is_brought
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
from shoal.view.crowding import Crowding
from shoal.view.longest import MOST_LINKED, Longest, linked, longest_of
from shoal.view.pace import Chain, Known, Progress, Rate, Widths, progress_of
from shoal.view.parts import Span, There, passes, since_before, there, within
from shoal.view.underway import Underway

if TYPE_CHECKING:
    from shoal.view.doomed import Doomed
    from shoal.view.run import RunView


class Phase(Enum):
    """What has become of a run."""

    NEVER = "never run"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    """It has written no end, and no process holds its lock."""
    AWAY = "on a cluster"
    """It goes on there, or has ended there, and nobody follows it."""


class RunState:
    """The last run in a ledger; a record that begins another run begins anew here, too."""

    def __init__(self, keeps_all: bool = False, *, passes_idle: bool = False) -> None:
        """With `passes_idle` a run that had nothing to do does not take the place of the one before it."""
        self.keeps_all = keeps_all
        """Keep the last attempt of every task, not only of those that did not succeed."""
        self.passes_idle = passes_idle
        self.idle: RunStarted | None = None
        """A later run that had nothing to do, and that is passed over."""
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
        self._node_of: dict[int, int] = {}
        """Where those were done that were done elsewhere."""
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
        self._gone: dict[int, None] = {}
        """Tasks that somebody cancelled, whatever became of them: what needs them is given up at that moment."""
        self._doomed: Doomed | None = None
        self._lost: set[int] = set()
        """Tasks that need one that failed or was cancelled."""
        self._doomed_by = (0, 0)
        self._cannot_run: tuple[tuple[int, ...], set[int]] = ((), set())
        """Which of them have not come to another end, and what that follows from."""
        self._widths = Widths()
        self._crowding = Crowding()
        """Of the attempts that have ended."""
        self.spans: dict[int, list[Span]] = {}
        """When the nodes of a cluster were there."""
        self._underway = Underway()
        self._rate = Rate(self.last_time)
        self._longest: tuple[int, Longest] | None = None
        """From how many links, and the longest chain in them."""

    def take(self, record: Record) -> None:
        """Adds one record."""
        if self.idle is not None and not isinstance(record, RunStarted):
            return
        match record:
            case TaskStarted():
                if record.task not in self.running:
                    self._category(record.task).running += 1
                self.running[record.task] = record
                self.last_time = max(self.last_time, record.time)
            case TasksCancelled():
                self.unwanted.update(task for task in record.tasks if task not in self.done and task not in self.failed)
                self._gone |= dict.fromkeys(record.tasks)
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
            case NodeSeen() | NodeTold() | NodeLeft():
                self._note_node(record)
            case RunStarted():
                self.idle = record if self.passes_idle and passes(record, self.start, self.end) else None
                if self.idle is None:
                    self._begin(since_before(record, self.start, self.last_time))
            case RunEnded():
                self.end = record
                self.last_time = max(self.last_time, record.time)  # clocks of nodes may be ahead of ours

    def _note_node(self, record: NodeSeen | NodeTold | NodeLeft) -> None:
        self.last_time = max(self.last_time, record.time)
        spans = self.spans.setdefault(record.node, []) if isinstance(record, NodeSeen) else self.spans.get(record.node)
        if spans is None:  # the record in which it came is damaged
            return
        if isinstance(record, NodeSeen):
            known = self.nodes.get(record.node)
            if known is not None and not record.resources:
                record = msgspec.structs.replace(record, resources=known.resources)
            self.nodes[record.node] = record
            if not spans or spans[-1][1] is not None:
                spans.append((record.time, None))
        elif isinstance(record, NodeTold):
            self.stands[record.node] = record
            self._underway.take(record)
        else:
            self.stands.pop(record.node, None)
            self._underway.leave(record.time, record.node)
            if spans[-1][1] is None:
                spans[-1] = (spans[-1][0], record.time)

    def _task_ended(self, record: TaskEnded) -> None:
        task = record.task
        self.last_time = max(self.last_time, record.ended)
        self._last_end = max(self._last_end, record.ended)
        category = self._category(task)
        started = self.running.get(task)
        if started is not None and started.attempt <= record.attempt:
            self._runs_no_more(task)
        origin = self.start.time if self.start is not None else record.started
        seconds, inside = record.ended - record.started, within(record.started, record.ended, origin)
        cpu = record.user + record.system
        if not self.is_cluster:
            cpu = min(cpu, inside * self.total_cores())
        category.spent += inside
        category.cpu += cpu
        category.measure(record)
        if task in self.apart:
            key = self.category_of.get(task, "unknown"), self.apart[task]
            self._spent_apart.setdefault(key, Spent()).add(inside, cpu)
        self._widths.add(record.ended - origin - inside, record.ended - origin)
        self._crowding.add(record.started, record.ended, self._cores_of(task))
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
        """The last word on a task counts: what was done may be lost with a node, and fail when it is made again."""
        if task in self.done:
            self.done.remove(task)
            self.done_on[self._node_of.pop(task, 0)] -= 1
            self._category(task).done -= 1
        elif self.failed.pop(task, None) is not None:
            self._category(task).failed -= 1

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
        """How many tasks run, if the run goes on; of those that are over at once only the run itself knows. What it
        said a moment ago may be behind the ledger: of a task that is over none runs."""
        if self.net is not None:
            return self.mark.running_now() if self.mark is not None else 0
        told = [stand.running or 0 for stand in self.stands.values()]
        found = max(len(self.running), self.moment.running if self.moment is not None else 0, sum(told))
        return max(0, min(found, self.to_run() - self.over())) if self.to_run() else found

    def running_of(self, category: str) -> int:
        """The same of one category."""
        told = self.moment.categories.get(category, 0) if self.moment is not None else 0
        found = max(self._named(category).running, told)
        return max(0, min(found, self.left_of(category))) if self.to_run() else found

    def left_of(self, category: str) -> int:
        """How many tasks of a category are not over."""
        known, lost = self._named(category), self.lost()
        gone = sum(self.category_of.get(task) == category for task in (*self._cancelled(), *lost))
        return max(0, known.planned - known.done - known.failed - gone)

    def to_run(self) -> int:
        """Tasks of the run. A ledger that was mended has results of earlier runs behind the head of the last one."""
        if self.start is None or not self.start.total:
            return 0
        return max(self.start.to_run, len(self.done) + len(self.failed))

    def up_to_date(self) -> int:
        return max(0, self.start.total - self.to_run()) if self.start else 0

    def cancelled(self) -> int:
        """Tasks that somebody cancelled, and that do not run any more."""
        found = len(self._cancelled())
        return found if self.end is None else max(found, self.end.cancelled)

    def _cancelled(self) -> set[int]:
        tasks = self.unwanted if self.end is not None else self.unwanted.difference(self.running)
        return {task for task in tasks if task in self.names}  # groups can be cancelled, too

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
        return len(self.lost())

    def lost(self) -> set[int]:
        """Which ones."""
        lost = (len(self.failed), len(self._gone))
        if lost == (0, 0) or not self._links:
            return set()
        if lost != self._doomed_by or self._doomed is None or self._doomed.links != len(self._links):
            import numpy as np

            from shoal.view.doomed import Doomed

            if self._doomed is None or self._doomed.links != len(self._links):
                self._doomed, self._lost = Doomed(self._links), set()
            found = self._doomed.fail(np.array([*self.failed, *self._gone], np.int64))
            self._lost.update(task for task in found if task in self.names)
            self._doomed_by = lost
        known = (*lost, len(self._lost), len(self.done), len(self.unwanted))
        if known != self._cannot_run[0]:
            self._cannot_run = known, self._lost.difference(self.done, self.failed, self.unwanted)
        return self._cannot_run[1]

    def progress(self, now: float) -> Progress:
        """How far the run is, and when it will be over if it goes on as it does."""
        over = self.end is not None
        last = self.last_time if over else max(now, self.last_time)
        elapsed = max(0.0, last - self.start.time) if self.start else 0.0
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
        """The share of all cores; where a throttle lets more tasks run than there are, they share them."""
        origin = self.start.time if self.start else 0.0
        cores = self.total_cores()
        capacity = sum(there * (end - begin) for _, there, begin, end in self._there(last))
        if capacity <= 0:
            return None
        kinds = {(name, each.asked()): Spent(each.spent, each.cpu) for name, each in self.categories.items()}
        for key, spent in self._spent_apart.items():
            kinds[key[0], self._named(key[0]).asked()].add(-spent.seconds, -spent.cpu)
            kinds.setdefault(key, Spent()).add(spent.seconds, spent.cpu)
        for started in self.running.values() if self.end is None else ():
            name = self.category_of.get(started.task, "unknown")
            key = name, self.apart.get(started.task, self._named(name).asked())
            kinds.setdefault(key, Spent()).begun += within(started.time, last, origin)
        shared = self._is_crowded(cores)
        held = sum(spent.held(asked, shared) for (_, asked), spent in kinds.items())
        if self.is_cluster and self.end is None:  # what is short and has not ended there is in no record
            held = max(held, self._underway.core_seconds(last))
        return min(1.0, held / capacity)

    def total_cores(self) -> float:
        """Of all machines that took part."""
        if self.is_cluster:
            return sum(dict(node.resources).get("cores", 0) for node in self.nodes.values()) / FRACTION
        return dict(self.start.node).get("cores", 0) / FRACTION if self.start else 0.0

    def _there(self, last: float) -> list[There]:
        """When machines were there."""
        if self.start is None:
            return []
        if not self.is_cluster:
            return [(0, self.total_cores(), self.start.time, max(last, self.start.time))]
        cores = {number: dict(node.resources).get("cores", 0) / FRACTION for number, node in self.nodes.items()}
        spans = [(number, cores[number], span) for number, each in self.spans.items() for span in each]
        return there(spans, self.start.time, last)

    def _is_crowded(self, cores: float) -> bool:
        """Whether more ran together than there are cores, by what the run says, or by what its attempts tell."""
        if self.moment is not None:
            return self.moment.crowded
        return bool(self.throttle) and self._crowding.is_crowded(cores)

    def _cores_of(self, task: int) -> float:
        """What a task asks for, or one."""
        asked = self.apart.get(task, self._category(task).asked())
        return 1.0 if asked == NONE_ASKED else asked / FRACTION


class Follower:
    """Follows the ledger of one workflow."""

    def __init__(self, workspace: Workspace, keeps_all: bool = False, *, passes_idle: bool = False) -> None:
        self.workspace = workspace
        self._new_state = partial(RunState, keeps_all, passes_idle=passes_idle)
        self._told = self._new_state()
        self.state = self._told
        """Of the last run; of one that has taken the lock and written nothing, nothing is known yet."""
        self.holder: Holder | None = None
        self._reader = LedgerReader(workspace.ledger)
        self._identity = (0, 0)

    def refresh(self) -> Phase:
        """Reads what was added, and finds out whether the run still goes on."""
        # Who holds the lock is asked first: a run that ends in between is then seen as ended, never as killed.
        self.holder = self.workspace.holder()
        is_away = self.holder is None and is_brought(self.workspace)
        self._notice_new_ledger()
        for payload in self._reader.payloads():
            record = decode(payload)
            if record is not None:
                self._told.take(record)
        self.state = self._told if self._is_told() else self._new_state()
        start = self.state.start
        goes_on = start is None or (self.state.end is None and self.state.idle is None)
        self.state.moment = read_moment(self.workspace.directory, self.holder) if goes_on else None
        if self.holder is not None and goes_on:
            return Phase.RUNNING
        if is_away:
            return Phase.AWAY
        if start is None:
            return Phase.NEVER
        return Phase.ENDED if self.state.end is not None else Phase.KILLED

    def _is_told(self) -> bool:
        """Whether the ledger tells of the run that holds the lock, if one does."""
        if self.holder is None or not self.holder.run:
            return True
        return any(run is not None and run.run == self.holder.run for run in (self._told.start, self._told.idle))

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
            self._told = self._new_state()


def listen(view: RunView, workspace: Workspace, is_live: bool) -> None:
    """Tells a view what the run says of this moment, on this machine: a ledger alone tells only of tasks that run for a
    while. Reads a small file and never waits, so a server may ask as often as it likes."""
    found = read_moment(workspace.directory, workspace.holder()) if is_live else None
    view.said_running = found.running if found is not None else 0
    view.said_crowded = found.crowded if found is not None else None
