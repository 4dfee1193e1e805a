"""The one fold of a run's records: computes the state of a run from its ledger, for every command that shows a run.

`RunFold` interprets the records. Two subclasses store tasks and attempts, because their users need opposite things.
`shoal.ledger.status.RunStatus` serves `shoal status`, which must start fast: dictionaries and sums, no numpy.
`shoal.ledger.views.run.RunView` serves pages and reports of a million attempts: columns, which are also filled in bulk
from the bytes of a ledger, without an object for each record. This module needs no numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.core.resources import FRACTION
from shoal.ledger.records import (
    DETACHED,
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
    SourcesSeen,
    TaskEnded,
    TasksCancelled,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    TasksVanished,
    ThrottleDecided,
)
from shoal.ledger.views.core_use import ReportedUse, SpecialCores
from shoal.ledger.views.pace import CategoryPace, Chain, KnownProgress, LiveCounters, Progress, progress_of
from shoal.ledger.views.throttle import ThrottleDecisions

if TYPE_CHECKING:
    from shoal.ledger.views.attempts import Ints
    from shoal.ledger.views.core_use import Oversubscription
    from shoal.ledger.views.doomed_tasks import Doomed

UNKNOWN = "unknown"
"""Category of tasks that are not in the plan."""
LOCAL = 0
"""Number of the machine that writes the ledger."""
_NUMBER_BYTES = 4
"""Size of a task number in a column of a record."""

Span = tuple[float, float | None]
"""From when until when a node was present; None: until the end."""
NodePresence = tuple[int, float, float, float]
"""A node, its cores, and from when until when it was present."""


class RunNode(msgspec.Struct):
    """A node that took part in the run."""

    name: str
    resources: dict[str, int] = {}
    present: list[Span] = []
    last_report: NodeTold | None = None
    """Its last report in a cluster; the counters are totals of the whole run."""
    current_report: NodeTold | None = None
    """The same while the node is present; None after it has left."""

    @property
    def is_present(self) -> bool:
        return bool(self.present) and self.present[-1][1] is None

    @property
    def cores(self) -> float:
        return self.resources.get("cores", 0) / FRACTION

    def enter(self, time: float) -> None:
        if not self.is_present:
            self.present.append((time, None))

    def leave(self, time: float) -> None:
        self.current_report = None
        if self.is_present:
            self.present[-1] = (self.present[-1][0], time)


class Sums(msgspec.Struct, frozen=True):
    """Sums over all attempts at one moment, independent of how attempts are stored. For a run that has ended, `going`,
    `widths`, `rate` and `chain` have no meaning."""

    tallies: Sequence[CategoryPace]
    going: Sequence[tuple[CategoryPace, float]]
    """Running tasks: the category and the elapsed seconds of each."""
    widths: Sequence[float]
    """See `KnownProgress`."""
    rate: float
    held: float
    """Core seconds of all attempts, including the running ones."""
    last_end: float
    """When the last attempt ended."""
    chain: Chain | None


class RunFold(ABC):
    """State of the last run in the records so far; a RunStarted record resets it."""

    def __init__(self, *, skip_idle: bool = False) -> None:
        """With `skip_idle` a run that had nothing to do does not replace the one before it."""
        self.skip_idle = skip_idle
        self.runs = 0
        """How many runs have started in the records so far."""
        self.idle: RunStarted | None = None
        """A later run that had nothing to do and is skipped."""
        self._net_before: NetBegun | None = None
        self._begin(None)

    def _begin(self, start: RunStarted | None) -> None:
        self.start = start
        self.number = self.runs
        """Number of the run in the ledger, counted from 1."""
        self.end: RunEnded | None = None
        self.running: dict[int, TaskStarted] = {}
        self.unwanted: set[int] = set()
        """Tasks that a user cancelled and that have not ended otherwise."""
        self._gone: dict[int, None] = {}
        """All tasks that a user cancelled, whatever their end: their dependents cannot run from that moment on. A
        dictionary, because the order matters."""
        self.declared: dict[str, dict[str, int]] = {}
        """By category, the declared resources (the maximum of its tasks)."""
        self.special_cores = SpecialCores()
        """Tasks that request another number of cores than their category declares."""
        self.links: list[TasksLinked] = []
        self.dependencies = 0
        """Number of dependencies in `links`."""
        self._doomed: Doomed | None = None
        self._found: list[Ints] = []
        """Tasks that depend on a failed or cancelled one, in the order of discovery."""
        self.sources = 0
        self.source_bytes = 0
        self.throttle = ThrottleDecisions()
        self.net: NetBegun | None = None
        """The net that this run executes, if any."""
        self.mark: NetMarked | None = None
        """The last reported state of that net."""
        self.nodes: dict[int, RunNode] = {}
        """By number: the nodes of a cluster run, otherwise the machine that writes the ledger."""
        self.reported_use = ReportedUse()
        self.live_counters: LiveCounters | None = None
        """Live counters that the run publishes: the ledger records short tasks only when they have ended."""
        self.last_time = start.time if start else 0.0
        if start is not None:
            self.nodes[LOCAL] = RunNode(start.host, dict(start.node), [(start.time, None)])

    def take(self, record: Record) -> None:
        """Adds one record."""
        if self.idle is not None and not isinstance(record, RunStarted):
            return
        match record:
            case TaskEnded():  # nearly all of a large ledger
                if self.running:
                    self._stop_attempt(record.task, record.attempt)
                self._attempt_ended(record)
            case TaskStarted():
                self._start_attempt(record)
                self.last_time = max(self.last_time, record.time)
            case TasksCancelled():
                self.settle()
                self.unwanted.update(task for task in record.tasks if not self.is_over(task))
                self._gone |= dict.fromkeys(record.tasks)
            case TasksVanished():
                for task in record.tasks:
                    self._stop(task)
            case TasksPlanned():
                self._plan(record)
            case TasksLinked():
                self._link(record)
            case CategoriesDeclared():
                for name, amounts in zip(record.names, record.resources, strict=True):
                    self._declare(name, dict(amounts))
            case CoresAsked():
                self._ask_cores(record)
            case SourcesSeen():
                self.sources += len(record.sizes)
                self.source_bytes += sum(size for size in record.sizes if size > 0)
            case ThrottleDecided():
                self.throttle.add(record)
                self.last_time = max(self.last_time, record.time)
            case NodeSeen() | NodeLeft() | NodeTold():
                self._note_node(record)
            case NetBegun():
                self.net = self._net_before = record
            case NetMarked():
                self.net, self.mark = self._net_before, record  # a run that continues a net does not repeat NetBegun
                self.last_time = max(self.last_time, record.time)
            case RunStarted():
                self.settle()
                self.runs += 1
                self.idle = record if self.skip_idle and is_idle_after(record, self.start, self.end) else None
                if self.idle is None:
                    self._begin(with_first_start(record, self.start, self.last_time))
            case RunEnded():
                self.settle()
                self.end = record
                self.last_time = max(self.last_time, record.time)  # clocks of other nodes may be ahead

    def take_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.take(record)

    def _stop_attempt(self, task: int, attempt: int) -> None:
        """Marks an attempt and earlier ones as ended. The record of a later attempt may have come before this one."""
        started = self.running.get(task)
        if started is not None and started.attempt <= attempt:
            self._stop(task)

    def _link(self, record: TasksLinked) -> None:
        self.links.append(record)
        self.dependencies += len(record.needs) // _NUMBER_BYTES

    def _note_node(self, record: NodeSeen | NodeLeft | NodeTold) -> None:
        self.last_time = max(self.last_time, record.time)
        if isinstance(record, NodeSeen):
            self.nodes.pop(LOCAL, None)  # in a cluster run the machine that writes the ledger runs no tasks
            seen = self.nodes.setdefault(record.node, RunNode(record.name, present=[]))
            seen.resources = dict(record.resources) or seen.resources
            seen.enter(record.time)
            return
        node = self.nodes.get(record.node)
        if node is None:  # its NodeSeen record is damaged
            return
        if isinstance(record, NodeTold):
            node.last_report = node.current_report = record
            self.reported_use.take(record)
        else:
            node.leave(record.time)
            self.reported_use.leave(record.time, record.node)

    # ---- storage of tasks and attempts, implemented by the subclasses ----------------------------------------------

    @abstractmethod
    def _plan(self, record: TasksPlanned) -> None:
        """Stores names and categories of tasks."""

    @abstractmethod
    def _attempt_ended(self, record: TaskEnded) -> None:
        """Stores the end of an attempt. A final attempt also removes its task from `unwanted`."""

    @abstractmethod
    def is_planned(self, task: int) -> bool:
        """Whether it is a task with an action in this run."""

    @abstractmethod
    def is_over(self, task: int) -> bool:
        """Whether it is done or failed."""

    @abstractmethod
    def ended(self) -> int:
        """How many tasks are done or failed."""

    @abstractmethod
    def cannot_run(self) -> int:
        """How many tasks depend on a failed or cancelled one, as far as the ledger records dependencies."""

    @abstractmethod
    def _oversubscription_of_ended(self) -> Oversubscription:
        """The overlap of core use among the attempts that have ended."""

    def _start_attempt(self, record: TaskStarted) -> None:
        self.running[record.task] = record

    def _stop(self, task: int) -> None:
        self.running.pop(task, None)

    def _declare(self, category: str, amounts: dict[str, int]) -> None:
        self.declared[category] = amounts

    def _ask_cores(self, record: CoresAsked) -> None:
        self.special_cores.add(record)

    def settle(self) -> None:  # noqa: B027  a fold that counts each record at once has nothing to do
        """Processes the records that are still buffered. Every query calls this first."""

    # ---- queries ---------------------------------------------------------------------------------------------------

    @property
    def origin(self) -> float:
        """The time that all times of the run are relative to."""
        return self.start.time if self.start else 0.0

    def is_cluster(self) -> bool:
        return LOCAL not in self.nodes and bool(self.nodes)

    def total_cores(self) -> float:
        """Sum over all nodes that took part."""
        return sum(node.cores for node in self.nodes.values())

    def total_memory(self) -> int:
        """Sum over all nodes that took part, in bytes."""
        return sum(node.resources.get("memory", 0) for node in self.nodes.values())

    def presence(self, last: float) -> list[NodePresence]:
        """When which node was present."""
        if self.start is None:
            return []
        spans = [(number, node.cores, span) for number, node in self.nodes.items() for span in node.present]
        return presence_of(spans, self.origin, last)

    def running_now(self) -> int:
        """How many tasks run: the maximum of what the ledger, the live counters and the nodes report. Reports may be
        older than the ledger, so the number is limited to tasks that have not ended."""
        if self.end is not None:
            return 0
        if self.mark is not None or self.net is not None:
            return self.mark.running_now() if self.mark is not None else 0
        reported = sum(
            node.current_report.running or 0 for node in self.nodes.values() if node.current_report is not None
        )
        found = max(len(self.running), self.live_counters.running if self.live_counters is not None else 0, reported)
        total = self.to_run()
        return max(0, min(found, total - self.over())) if total else found

    def to_run(self) -> int:
        """Number of tasks of the run; 0 for a net, whose tasks are not known in advance. A repaired ledger has results
        of earlier runs after the last RunStarted record, therefore the maximum."""
        if self.start is None or not self.start.total:
            return 0
        return max(self.start.to_run, self.ended())

    def up_to_date(self) -> int:
        return max(0, self.start.total - self.to_run()) if self.start else 0

    def over(self) -> int:
        """Tasks that will not run any more: done, failed, cancelled, or dependent on a failed or cancelled one."""
        return self.ended() + self.cancelled() + self.cannot_run()

    def waiting(self) -> int:
        """Tasks that have neither ended nor started."""
        return max(0, self.to_run() - self.over() - self.running_now())

    def cancelled(self) -> int:
        """How many tasks were cancelled and will not run any more."""
        self.settle()
        found = len(self._cancelled())
        return found if self.end is None else max(found, self.end.cancelled)

    def _cancelled(self) -> set[int]:
        tasks = self.unwanted if self.end is not None else self.unwanted.difference(self.running)
        return {task for task in tasks if self.is_planned(task)}  # groups can be cancelled, too, but are no tasks

    def _find_doomed(self, failed: Collection[int] | Ints) -> list[Ints]:
        """Tasks that depend on one of `failed` or on a cancelled one; some of them may have ended otherwise."""
        if not self.links or not (len(failed) or self._gone):
            return []
        import numpy as np  # imported only after a failure, so that 'shoal status' starts fast

        from shoal.ledger.views.doomed_tasks import Doomed

        if self._doomed is None or self._doomed.links != len(self.links):
            self._doomed, self._found = Doomed(self.links), []
        lost = np.array(failed if isinstance(failed, np.ndarray) else list(failed), np.int64)
        more = self._doomed.follow(np.concatenate((lost, np.array(list(self._gone), np.int64))))
        if len(more):
            self._found.append(more)
        return self._found

    def is_oversubscribed(self) -> bool:
        """Whether attempts together were allocated more cores than exist, as a throttle may allow. Attempts without
        declared cores then share them and count with their CPU time. The live counters of the run have priority."""
        if self.live_counters is not None:
            return self.live_counters.crowded
        return bool(self.throttle) and self._oversubscription_of_ended().is_oversubscribed(self.total_cores())

    def progress_with(self, sums: Sums, now: float | None) -> Progress:
        """Progress of the run at this moment, with an estimate of its end at the present rate."""
        over, last = not self.is_in_progress(now), self.until(now)
        return progress_of(
            KnownProgress(
                self.to_run(),
                self.up_to_date(),
                0 if over else self.running_now(),
                max(0.0, last - self.origin),
                over,
                sums.tallies,
                sums.going,
                sums.widths,
                sums.rate,
                self.throttle.last is not None and self.throttle.last.state == "growing",
                self.cannot_run(),
                self.cancelled(),
                self._utilisation(sums.held, last, over),
                quiet=last - sums.last_end,
                chain=sums.chain,
            )
        )

    def _utilisation(self, held: float, last: float, over: bool) -> float | None:
        """Fraction of all cores; None if the number of cores is unknown."""
        capacity = sum(cores * (end - begin) for _, cores, begin, end in self.presence(last))
        if capacity <= 0:
            return None
        if self.is_cluster() and not over:  # running short tasks of a cluster are not in the ledger
            held = max(held, self.reported_use.core_seconds(last))
        return min(1.0, held / capacity)

    def is_in_progress(self, now: float | None) -> bool:
        """Whether the run is still in progress. `now` is given if a process holds the run's lock. Without it, a run
        without RunEnded record was killed and none of its tasks run."""
        return self.end is None and now is not None

    def may_continue_on_cluster(self) -> bool:
        """Whether a cluster may continue the run: its end is not recorded here."""
        return self.end is None or self.end.outcome == DETACHED

    def until(self, now: float | None = None) -> float:
        """The end of the run; `now` while it is in progress; the last known time of a run that was killed."""
        return self.last_time if self.end is not None or now is None else max(now, self.last_time)


def has_nothing_to_do(start: RunStarted) -> bool:
    """Whether everything is up to date. A net counts no tasks in advance, so this is false for it."""
    return start.total > 0 and start.to_run == 0


def is_idle_after(start: RunStarted, before: RunStarted | None, end: RunEnded | None) -> bool:
    """Whether a run had nothing to do and the one before it ended in an orderly way: then the one before is shown. A
    run that continues an unfinished one is part of it."""
    if before is None or end is None or end.outcome == DETACHED or before.run == start.run:
        return False
    return has_nothing_to_do(start)


def with_first_start(start: RunStarted, before: RunStarted | None, last: float) -> RunStarted:
    """Returns `start` with the time from which the run is to be shown. A run that a client attaches to again keeps its
    name, and what has ended meanwhile is recorded now. So it continues from its last known moment, not from the time of
    attaching."""
    if before is None or before.run != start.run:
        return start
    return msgspec.structs.replace(start, time=min(start.time, max(before.time, last)))


def presence_of(spans: Iterable[tuple[int, float, Span]], origin: float, last: float) -> list[NodePresence]:
    """When which node was present within a run. Nodes that were seen first count from the start of the run, because
    they were present before they were first queried."""
    known = list(spans)
    first = min((begin for *_, (begin, _) in known), default=origin)
    found = []
    for number, cores, (begin, end) in known:
        since = origin if begin == first else max(begin, origin)
        found.append((number, cores, since, max(since, last if end is None else min(end, last))))
    return found


def within(begin: float, end: float, origin: float) -> float:
    """Seconds of an attempt that lie within its run. An attempt may begin before the record of its run: the client
    attached later, or clocks differ."""
    return max(0.0, end - max(begin, origin))
