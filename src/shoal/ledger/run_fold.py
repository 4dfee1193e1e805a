"""The one fold of a run's records: what each kind of record means for the run, for every command that shows a run.

`RunFold` interprets the records. What it keeps of single tasks and attempts is left to two subclasses, because their
users need opposite things. `shoal.ledger.status.RunStatus` answers `shoal status` at once: dictionaries and sums, no
numpy. `shoal.ledger.views.run.RunView` draws pages and reports of a million attempts: columns, which are also filled in
bulk from the bytes of a ledger, without an object for each record. Everything else is here, and needs no numpy.
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
from shoal.ledger.views.core_use import SpecialCores, Underway
from shoal.ledger.views.pace import CategoryPace, Chain, KnownProgress, LiveCounters, Progress, progress_of
from shoal.ledger.views.throttle import ThrottleDecisions

if TYPE_CHECKING:
    from shoal.ledger.views.attempts import Ints
    from shoal.ledger.views.core_use import Crowding
    from shoal.ledger.views.doomed_tasks import Doomed

UNKNOWN = "unknown"
"""Category of tasks that were not planned."""
LOCAL = 0
"""Number of the machine that writes the ledger."""
_NUMBER_BYTES = 4
"""Of a task in a column of a record."""

Span = tuple[float, float | None]
"""From when until when a machine was there; None: until the end."""
There = tuple[int, float, float, float]
"""A machine, its cores, and from when until when it was there."""


class RunNode(msgspec.Struct):
    """A machine that took part."""

    name: str
    resources: dict[str, int] = {}
    present: list[Span] = []
    told: NodeTold | None = None
    """What it said last, in a cluster; this counts all that it has done."""
    stands: NodeTold | None = None
    """The same while it is there; None after it has left."""

    @property
    def is_there(self) -> bool:
        return bool(self.present) and self.present[-1][1] is None

    @property
    def cores(self) -> float:
        return self.resources.get("cores", 0) / FRACTION

    def enter(self, time: float) -> None:
        if not self.is_there:
            self.present.append((time, None))

    def leave(self, time: float) -> None:
        self.stands = None
        if self.is_there:
            self.present[-1] = (self.present[-1][0], time)


class Sums(msgspec.Struct, frozen=True):
    """What attempts add up to at one moment, in whatever form they are kept. Of a run that is over, `going`, `widths`,
    `rate` and `chain` say nothing."""

    tallies: Sequence[CategoryPace]
    going: Sequence[tuple[CategoryPace, float]]
    """Running tasks: of which category, and what seconds each has behind it."""
    widths: Sequence[float]
    """See `KnownProgress`."""
    rate: float
    held: float
    """Core seconds of all attempts, those under way included."""
    last_end: float
    """When an attempt ended last."""
    chain: Chain | None


class RunFold(ABC):
    """The last run in what was taken; a record that begins another run begins anew here, too."""

    def __init__(self, *, passes_idle: bool = False) -> None:
        """With `passes_idle` a run that had nothing to do does not take the place of the one before it."""
        self.passes_idle = passes_idle
        self.runs = 0
        """How many runs have begun in what was taken."""
        self.idle: RunStarted | None = None
        """A later run that had nothing to do, and that is passed over."""
        self._net_before: NetBegun | None = None
        self._begin(None)

    def _begin(self, start: RunStarted | None) -> None:
        self.start = start
        self.number = self.runs
        """Which run of the ledger it is, from 1."""
        self.end: RunEnded | None = None
        self.running: dict[int, TaskStarted] = {}
        self.unwanted: set[int] = set()
        """Tasks that somebody cancelled, and that are not over otherwise."""
        self._gone: dict[int, None] = {}
        """Tasks that somebody cancelled, whatever became of them: what needs them is given up at that moment."""
        self.declared: dict[str, dict[str, int]] = {}
        """By category, the most that a task of it asks for."""
        self.apart = SpecialCores()
        """Tasks that ask for other cores than that."""
        self.links: list[TasksLinked] = []
        self.dependencies = 0
        """How many they have."""
        self._doomed: Doomed | None = None
        self._found: list[Ints] = []
        """Tasks that need one that failed or was cancelled, in the order in which that was found."""
        self.sources = 0
        self.source_bytes = 0
        self.throttle = ThrottleDecisions()
        self.net: NetBegun | None = None
        """Of a run of a net: which one."""
        self.mark: NetMarked | None = None
        """Of a run of a net: how it stood last."""
        self.nodes: dict[int, RunNode] = {}
        """By number. Of a run on a cluster, its nodes; otherwise the machine that writes the ledger."""
        self.underway = Underway()
        self.moment: LiveCounters | None = None
        """What the run itself says of this moment: of short tasks the ledger tells when they have ended."""
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
                self.net, self.mark = self._net_before, record  # a run that goes on does not say again of which net
                self.last_time = max(self.last_time, record.time)
            case RunStarted():
                self.settle()
                self.runs += 1
                self.idle = record if self.passes_idle and passes(record, self.start, self.end) else None
                if self.idle is None:
                    self._begin(since_before(record, self.start, self.last_time))
            case RunEnded():
                self.settle()
                self.end = record
                self.last_time = max(self.last_time, record.time)  # clocks of nodes may be ahead of ours

    def take_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.take(record)

    def _stop_attempt(self, task: int, attempt: int) -> None:
        """An attempt runs no more, nor do those before it; a later one may have been told of already."""
        started = self.running.get(task)
        if started is not None and started.attempt <= attempt:
            self._stop(task)

    def _link(self, record: TasksLinked) -> None:
        self.links.append(record)
        self.dependencies += len(record.needs) // _NUMBER_BYTES

    def _note_node(self, record: NodeSeen | NodeLeft | NodeTold) -> None:
        self.last_time = max(self.last_time, record.time)
        if isinstance(record, NodeSeen):
            self.nodes.pop(LOCAL, None)  # the machine that writes the ledger runs nothing itself
            seen = self.nodes.setdefault(record.node, RunNode(record.name, present=[]))
            seen.resources = dict(record.resources) or seen.resources
            seen.enter(record.time)
            return
        node = self.nodes.get(record.node)
        if node is None:  # the record in which it came is damaged
            return
        if isinstance(record, NodeTold):
            node.told = node.stands = record
            self.underway.take(record)
        else:
            node.leave(record.time)
            self.underway.leave(record.time, record.node)

    # ---- what is kept of tasks and attempts, in one form or another ------------------------------------------------

    @abstractmethod
    def _plan(self, record: TasksPlanned) -> None:
        """Notes names and categories of tasks."""

    @abstractmethod
    def _attempt_ended(self, record: TaskEnded) -> None:
        """Notes the end of an attempt. With the last word on a task it is not `unwanted` any more."""

    @abstractmethod
    def is_planned(self, task: int) -> bool:
        """Whether it is a task that runs something in this run."""

    @abstractmethod
    def is_over(self, task: int) -> bool:
        """Whether it is done or has failed."""

    @abstractmethod
    def ended(self) -> int:
        """How many tasks are done or have failed."""

    @abstractmethod
    def cannot_run(self) -> int:
        """How many tasks need one that failed or was cancelled, as far as the ledger says what tasks wait for."""

    @abstractmethod
    def _ended_together(self) -> Crowding:
        """The cores that attempts held together, of those that have ended."""

    def _start_attempt(self, record: TaskStarted) -> None:
        self.running[record.task] = record

    def _stop(self, task: int) -> None:
        self.running.pop(task, None)

    def _declare(self, category: str, amounts: dict[str, int]) -> None:
        self.declared[category] = amounts

    def _ask_cores(self, record: CoresAsked) -> None:
        self.apart.add(record)

    def settle(self) -> None:  # noqa: B027  nothing to do where each record is counted at once
        """Counts what was taken; who computes something calls this first."""

    # ---- what others ask -------------------------------------------------------------------------------------------

    @property
    def origin(self) -> float:
        """The moment that times are counted from."""
        return self.start.time if self.start else 0.0

    def is_cluster(self) -> bool:
        return LOCAL not in self.nodes and bool(self.nodes)

    def total_cores(self) -> float:
        """Of all machines that took part."""
        return sum(node.cores for node in self.nodes.values())

    def total_memory(self) -> int:
        """The same in bytes."""
        return sum(node.resources.get("memory", 0) for node in self.nodes.values())

    def there(self, last: float) -> list[There]:
        """When machines were there."""
        if self.start is None:
            return []
        spans = [(number, node.cores, span) for number, node in self.nodes.items() for span in node.present]
        return there(spans, self.origin, last)

    def running_now(self) -> int:
        """How many tasks run: by what was started here, or by what run or nodes say. What they said a moment ago may be
        behind the ledger: of a task that is over none runs."""
        if self.end is not None:
            return 0
        if self.mark is not None or self.net is not None:
            return self.mark.running_now() if self.mark is not None else 0
        told = sum(node.stands.running or 0 for node in self.nodes.values() if node.stands is not None)
        found = max(len(self.running), self.moment.running if self.moment is not None else 0, told)
        total = self.to_run()
        return max(0, min(found, total - self.over())) if total else found

    def to_run(self) -> int:
        """Tasks of the run; 0 of a net, of which nobody knows it. A ledger that was mended has results of earlier runs
        behind the head of the last one."""
        if self.start is None or not self.start.total:
            return 0
        return max(self.start.to_run, self.ended())

    def up_to_date(self) -> int:
        return max(0, self.start.total - self.to_run()) if self.start else 0

    def over(self) -> int:
        """Tasks that will not run any more: done, failed, cancelled, or in need of one that failed or was cancelled."""
        return self.ended() + self.cancelled() + self.cannot_run()

    def waiting(self) -> int:
        """Tasks that are neither over nor running."""
        return max(0, self.to_run() - self.over() - self.running_now())

    def cancelled(self) -> int:
        """How many tasks were cancelled, and do not run any more."""
        self.settle()
        found = len(self._cancelled())
        return found if self.end is None else max(found, self.end.cancelled)

    def _cancelled(self) -> set[int]:
        tasks = self.unwanted if self.end is not None else self.unwanted.difference(self.running)
        return {task for task in tasks if self.is_planned(task)}  # groups can be cancelled, too

    def _find_doomed(self, failed: Collection[int] | Ints) -> list[Ints]:
        """Tasks that need one of these, or one that was cancelled; some of them may have come to another end."""
        if not self.links or not (len(failed) or self._gone):
            return []
        import numpy as np  # only once something has failed

        from shoal.ledger.views.doomed_tasks import Doomed

        if self._doomed is None or self._doomed.links != len(self.links):
            self._doomed, self._found = Doomed(self.links), []
        lost = np.array(failed if isinstance(failed, np.ndarray) else list(failed), np.int64)
        more = self._doomed.follow(np.concatenate((lost, np.array(list(self._gone), np.int64))))
        if len(more):
            self._found.append(more)
        return self._found

    def is_crowded(self) -> bool:
        """Whether attempts together held more cores than there are, as a throttle may allow. Those that declare no
        cores then share them, and count with the processor time that they used. The run itself knows it best."""
        if self.moment is not None:
            return self.moment.crowded
        return bool(self.throttle) and self._ended_together().is_crowded(self.total_cores())

    def progress_with(self, sums: Sums, now: float | None) -> Progress:
        """How far the run is at this moment, and when it will be over if it goes on as it does."""
        over, last = not self.goes_on(now), self.until(now)
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
        """The share of all cores; None if nobody knows how many there were."""
        capacity = sum(cores * (end - begin) for _, cores, begin, end in self.there(last))
        if capacity <= 0:
            return None
        if self.is_cluster() and not over:  # what is short and has not ended there is in no record
            held = max(held, self.underway.core_seconds(last))
        return min(1.0, held / capacity)

    def goes_on(self, now: float | None) -> bool:
        """Whether anybody still writes it. `now` is given for a run that somebody has: without it, one that has not
        ended was killed, and nothing of it runs."""
        return self.end is None and now is not None

    def goes_on_elsewhere(self) -> bool:
        """Whether a cluster may go on with it: nobody has written its end here."""
        return self.end is None or self.end.outcome == DETACHED

    def until(self, now: float | None = None) -> float:
        """The end of the run; of one that goes on, now; of one that was killed, the last moment that is known."""
        return self.last_time if self.end is not None or now is None else max(now, self.last_time)


def has_nothing_to_do(start: RunStarted) -> bool:
    """Everything is up to date; a net, of which nobody knows how many tasks it will have, counts none at all."""
    return start.total > 0 and start.to_run == 0


def passes(start: RunStarted, before: RunStarted | None, end: RunEnded | None) -> bool:
    """Whether a run had nothing to do while the one before it came to its own end: then that one is shown. What goes on
    with a run that did not come to its end is a part of it."""
    if before is None or end is None or end.outcome == DETACHED or before.run == start.run:
        return False
    return has_nothing_to_do(start)


def since_before(start: RunStarted, before: RunStarted | None, last: float) -> RunStarted:
    """The same, beginning where its story begins. A run that is attached to again goes on under its old name, and what
    has ended meanwhile is recorded now: it goes on from the last moment that is known of it, not from now."""
    if before is None or before.run != start.run:
        return start
    return msgspec.structs.replace(start, time=min(start.time, max(before.time, last)))


def there(spans: Iterable[tuple[int, float, Span]], origin: float, last: float) -> list[There]:
    """When machines were there within a run. Those that were seen first had been there before anybody looked."""
    known = list(spans)
    first = min((begin for *_, (begin, _) in known), default=origin)
    found = []
    for number, cores, (begin, end) in known:
        since = origin if begin == first else max(begin, origin)
        found.append((number, cores, since, max(since, last if end is None else min(end, last))))
    return found


def within(begin: float, end: float, origin: float) -> float:
    """Seconds of an attempt that lie in its run: what is attached to began before its record, and clocks differ."""
    return max(0.0, end - max(begin, origin))
