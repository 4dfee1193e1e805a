"""The model of one run, built from its records as they come; everything else here is computed from it.

`feed` takes one record, `feed_ends` a batch of the only kind of which there are very many. What is shown is the run
that began last: a record that begins another one begins anew. Attempts are rows of columns, tasks are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

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
from shoal.model.resources import FRACTION
from shoal.view.attempts import Attempts
from shoal.view.columns import Array, Column, Floats, Ints, Names
from shoal.view.cores import Apart, are_declared, as_cores
from shoal.view.crowding import Crowding
from shoal.view.doomed import Doomed
from shoal.view.ends import EndColumns, columns_of
from shoal.view.parts import There, passes, since_before, there
from shoal.view.throttled import Throttled
from shoal.view.together import Together
from shoal.view.underway import Underway

UNKNOWN = "unknown"
_BATCH = 4096
_NUMBER_BYTES = 4
"""Of a task in a column of a record."""


class Node(msgspec.Struct):
    """A machine that took part."""

    name: str
    resources: dict[str, int] = {}
    present: list[tuple[float, float | None]] = []
    """From when until when it was there; None: until the end."""
    told: NodeTold | None = None
    """What it said last, in a cluster."""

    @property
    def fetched(self) -> int:
        return self.told.fetched if self.told is not None else 0

    @property
    def stolen(self) -> int:
        return self.told.stolen if self.told is not None else 0

    @property
    def pushed(self) -> int:
        return self.told.pushed if self.told is not None else 0

    @property
    def is_there(self) -> bool:
        return bool(self.present) and self.present[-1][1] is None

    @property
    def cores(self) -> float:
        return self.resources.get("cores", 0) / FRACTION


class RunView:
    """One run."""

    def __init__(self, *, passes_idle: bool = False) -> None:
        """With `passes_idle` a run that had nothing to do does not take the place of the one before it."""
        self.passes_idle = passes_idle
        self.runs = 0
        """How many runs have begun in what was fed."""
        self.net_before: NetBegun | None = None
        self._begin(None)

    def _begin(self, start: RunStarted | None) -> None:
        self.start = start
        self.number = self.runs
        """Which run of the ledger it is, from 1."""
        self.is_passing = False
        """What is fed is of a run that is passed over."""
        self.end: RunEnded | None = None
        self.names = Names()
        self.categories: list[str] = []
        self._codes: dict[str, int] = {}
        self._category_of = Column("i4")
        """By task: code of its category and one; 0 for a task that was not planned."""
        self.planned: list[int] = []
        """Tasks by category."""
        self.declared: dict[str, dict[str, int]] = {}
        """By category, the most that a task of it asks for."""
        self.apart = Apart()
        """Tasks that ask for other cores than that."""
        self.attempts = Attempts(start.to_run if start else 0)
        self._pending: list[TaskEnded] = []
        self.running: dict[int, TaskStarted] = {}
        self.nodes: dict[int, Node] = {}
        self.underway = Underway()
        self.said_running = 0
        """Tasks that the run itself says run at this moment: of short ones the ledger tells when they have ended."""
        self.said_crowded: bool | None = None
        """Whether the run itself says that tasks share cores; None: it says nothing."""
        self.throttle = Throttled()
        self.links: list[TasksLinked] = []
        self.dependencies = 0
        """How many they have."""
        self.depths: tuple[tuple[int, int], Ints] | None = None
        """Of tasks in the graph, when that had so many links and tasks; see `shoal.view.critical`."""
        self.net: NetBegun | None = None
        """Of a run of a net: which one."""
        self.mark: NetMarked | None = None
        """Of a run of a net: how it stood last."""
        self.cancelled: set[int] = set()
        """Tasks that somebody cancelled, and that are not over otherwise."""
        self._gone: dict[int, None] = {}
        """Tasks that somebody cancelled, whatever became of them: what needs them is given up at that moment."""
        self._word = Column("i4")
        """By task: the row of the attempt that was the last word on it, and one; 0 for a task that is not over."""
        self.doomed: Doomed | None = None
        self._cannot_run: list[Ints] = []
        """Tasks that need one that failed or was cancelled."""
        self._held: tuple[int, bool, Floats] | None = None
        """For so many attempts, and whether they shared cores."""
        self._crowding = 0, Crowding()
        """Of so many attempts."""
        self._most_memory = Together()
        self.sources = 0
        self.source_bytes = 0
        self.last_time = start.time if start else 0.0
        if start is not None:
            self.nodes[0] = Node(start.host, dict(start.node), [(start.time, None)])

    def feed(self, record: Record) -> None:
        """Adds one record."""
        if self.is_passing and not isinstance(record, RunStarted):
            return
        match record:
            case TaskEnded():
                self._pending.append(record)
                self._ended(record.task, record.attempt)
                if len(self._pending) >= _BATCH:
                    self.settle()
            case TaskStarted():
                self.running[record.task] = record
                if not self.categories:  # the records of the plan are damaged
                    self._code(UNKNOWN)
                self.last_time = max(self.last_time, record.time)
            case TasksCancelled():
                self.cancelled.update(record.tasks)
                self._gone |= dict.fromkeys(record.tasks)
            case TasksVanished():
                for task in record.tasks:
                    self.running.pop(task, None)
            case TasksPlanned():
                self._plan(record)
            case TasksLinked():
                self.links.append(record)
                self.dependencies += len(record.needs) // _NUMBER_BYTES
            case CategoriesDeclared():
                for name, amounts in zip(record.names, record.resources, strict=True):
                    self.declared[name] = dict(amounts)
                self._held, self._crowding = None, (0, Crowding())
            case CoresAsked():
                self.apart.add(record)
                self._held, self._crowding = None, (0, Crowding())
            case SourcesSeen():
                self.sources += len(record.sizes)
                self.source_bytes += sum(size for size in record.sizes if size > 0)
            case ThrottleDecided():
                self.throttle.add(record)
                self.last_time = max(self.last_time, record.time)
            case NodeSeen() | NodeLeft() | NodeTold():
                self._note_node(record)
            case NetBegun():
                self.net = self.net_before = record
            case NetMarked():
                self.net, self.mark = self.net_before, record  # a run that goes on does not say again of which net
                self.last_time = max(self.last_time, record.time)
            case RunStarted():
                self.settle()
                self.runs += 1
                self.is_passing = self.passes_idle and passes(record, self.start, self.end)
                if not self.is_passing:
                    self._begin(since_before(record, self.start, self.last_time))
            case RunEnded():
                self.settle()
                self.end = record
                self.last_time = max(self.last_time, record.time)

    def feed_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.feed(record)

    def feed_ends(self, batch: EndColumns) -> None:
        """Adds ended attempts, in the order of the ledger; attempts that began after them may have been fed before."""
        if self.is_passing:
            return
        self.settle()
        if self.running:
            for task, number in zip(batch.task.tolist(), batch.number.tolist(), strict=True):
                self._ended(task, number)
        self._add(batch)

    def _ended(self, task: int, attempt: int) -> None:
        """An attempt runs no more, nor do those before it; a later one may have been told of already."""
        started = self.running.get(task)
        if started is not None and started.attempt <= attempt:
            del self.running[task]

    def settle(self) -> None:
        """Puts what was fed into the columns; whoever computes something calls this first."""
        if self._pending:
            batch, self._pending = self._pending, []
            self._add(columns_of(batch))

    def _add(self, batch: EndColumns) -> None:
        if not len(batch.task):
            return
        self._category_of.reach(int(batch.task.max()) + 1)
        codes = self._category_of.values[batch.task] - 1
        if (codes < 0).any():
            codes[codes < 0] = self._code(UNKNOWN)
        first = len(self.attempts)
        self.attempts.add(batch, codes)
        self._note_words(batch, first)
        if self.cancelled:
            self.cancelled.difference_update(batch.task[batch.final].tolist())
        self.last_time = max(self.last_time, float(batch.ended.max()))

    def _note_words(self, batch: EndColumns, first: int) -> None:
        """The last word on a task counts: what was done may be lost with a node, and fail when it is made again."""
        rows = np.flatnonzero(batch.final)
        if not len(rows):
            return
        tasks, places = batch.task[rows], first + rows + 1
        self._word.reach(int(tasks.max()) + 1)
        words = self._word.values
        before = words[tasks]
        words[tasks] = places
        again = words[tasks] != places
        if before.any() or again.any():
            self.attempts.final[before[before > 0] - 1] = False
            self.attempts.final[places[again] - 1] = False

    def _plan(self, record: TasksPlanned) -> None:
        self.settle()
        if not record.first:
            return
        tasks = np.array(record.first, np.int64)
        self.names.add(tasks, record.names)
        try:
            codes = np.array(list(map(self._codes.__getitem__, record.categories)))
        except KeyError:  # there is a new one among them
            codes = np.array([self._code(category) for category in record.categories])
        self._category_of.reach(int(tasks.max()) + 1)
        self._category_of.values[tasks] = codes + 1
        for code, number in enumerate(np.bincount(codes, minlength=len(self.categories)).tolist()):
            self.planned[code] += number

    def _code(self, category: str) -> int:
        code = self._codes.get(category)
        if code is None:
            code = self._codes[category] = len(self.categories)
            self.categories.append(category)
            self.planned.append(0)
        return code

    def _note_node(self, record: NodeSeen | NodeLeft | NodeTold) -> None:
        self.last_time = max(self.last_time, record.time)
        if isinstance(record, NodeSeen):
            self.nodes.pop(0, None)  # the machine that writes the ledger runs nothing itself
            known = self.nodes.setdefault(record.node, Node(record.name, present=[]))
            known.resources = dict(record.resources) or known.resources
            if not known.present or known.present[-1][1] is not None:
                known.present.append((record.time, None))
            return
        node = self.nodes.get(record.node)
        if node is None:
            return
        if isinstance(record, NodeTold):
            node.told = record
            self.underway.take(record)
            return
        self.underway.leave(record.time, record.node)
        if node.present and node.present[-1][1] is None:
            node.present[-1] = (node.present[-1][0], record.time)

    # ---- what others ask -----------------------------------------------------------------------------------------

    @property
    def origin(self) -> float:
        """The moment that times are counted from."""
        return self.start.time if self.start else 0.0

    def is_cluster(self) -> bool:
        return 0 not in self.nodes and bool(self.nodes)

    def running_now(self) -> int:
        """How many tasks run, if the run goes on: by what was started here, or by what run or nodes say. What they said
        a moment ago may be behind the ledger: of a task that is over none runs."""
        if self.end is not None:
            return 0
        if self.mark is not None:
            return self.mark.running_now()
        told = [node.told.running or 0 for node in self.nodes.values() if node.told is not None and node.is_there]
        found = max(len(self.running), self.said_running, sum(told))
        total = self.to_run()
        return max(0, min(found, total - self.over())) if total else found

    def to_run(self) -> int:
        """Tasks of the run; 0 of a net, of which nobody knows it. A ledger that was mended has results of earlier runs
        behind the head of the last one."""
        if self.start is None or not self.start.total:
            return 0
        self.settle()
        return max(self.start.to_run, int(self.attempts.final.sum()))

    def over(self) -> int:
        """Tasks that will not run any more."""
        self.settle()
        return int(self.attempts.final.sum()) + self.cancelled_now() + self.cannot_run()

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

    def category_of(self, tasks: Ints) -> Ints:
        """Codes of the categories of tasks; -1 for those that were not planned."""
        codes = np.full(len(tasks), -1, np.int64)
        known = tasks < len(self._category_of)
        codes[known] = self._category_of.values[tasks[known]] - 1
        return codes

    def cores_of_categories(self) -> Floats:
        """Cores that a task of each category holds unless it is one of those apart; 1 where none are declared."""
        return np.array(
            [self.declared.get(name, {}).get("cores", FRACTION) / FRACTION for name in self.categories], np.float64
        )

    def cores_of(self, tasks: Ints, codes: Ints, unplanned: float = 1.0) -> Floats:
        """Cores that an attempt of each of these tasks holds: what the task declares, or one. `codes` are those of
        their categories; -1, or one more than there are, stands for a task that was not planned."""
        found: Floats = np.append(self.cores_of_categories(), unplanned)[codes]
        rows, asked = self.apart.among(tasks)
        found[rows] = as_cores(asked)
        return found

    def declare_cores(self, tasks: Ints, codes: Ints) -> Array:
        """Whether each of these tasks declares how many cores it holds."""
        found: Array = np.array([*("cores" in self.declared.get(name, {}) for name in self.categories), False])[codes]
        rows, asked = self.apart.among(tasks)
        found[rows] = are_declared(asked)
        return found

    def is_crowded(self) -> bool:
        """Whether attempts together held more cores than there are, as a throttle may allow: those that declare no
        cores then share them, and count with the processor time that they used."""
        if self.said_crowded is not None:
            return self.said_crowded
        if not self.throttle:
            return False
        rows, (known, crowding) = self.attempts, self._crowding
        if known < len(rows):
            cores = self.cores_of(rows.task[known:], rows.category[known:])
            crowding.add_all(rows.started[known:], rows.ended[known:], cores)
            self._crowding = len(rows), crowding
        return crowding.is_crowded(self.total_cores())

    def most_memory(self) -> float:
        """The most bytes that attempts used at the same time, if each had its peak for as long as it ran."""
        self.settle()
        rows = self.attempts
        return self._most_memory.most(rows, lambda late: rows.memory[late].astype(np.float64))

    def held(self) -> Floats:
        """Cores that each attempt held: what its task declares, or one; what it used where cores were shared."""
        rows, crowded = self.attempts, self.is_crowded()
        if self._held is None or self._held[:2] != (len(rows), crowded):
            found = self.cores_of(rows.task, rows.category)
            if crowded:
                took = np.maximum(rows.ended - rows.started, 1e-6)
                used = np.minimum(rows.cpu / took, self.total_cores())
                found = np.where(self.declare_cores(rows.task, rows.category), found, used)
            self._held = (len(rows), crowded, found)
        return self._held[2]

    def cannot_run(self) -> int:
        """How many tasks need one that failed or was cancelled, as far as the ledger says what tasks wait for."""
        return int(self.are_doomed().sum())

    def are_doomed(self) -> Array:
        """By task: whether it needs one that failed or was cancelled, and has not come to another end."""
        self.settle()
        rows = self.attempts
        failed = rows.task[rows.final & (rows.outcome != 0)]
        lost = np.concatenate((failed, np.array(list(self._gone), failed.dtype))) if self._gone else failed
        found: Array = np.zeros(len(self._category_of), bool)
        if not len(lost) or not self.links:
            return found
        if self.doomed is None or self.doomed.links != len(self.links):
            self.doomed, self._cannot_run = Doomed(self.links), []
        more = self.doomed.follow(lost)
        if len(more):
            self._cannot_run.append(more)
        for tasks in self._cannot_run:
            found[tasks[tasks < len(found)]] = True
        found &= self._category_of.values > 0
        word = self._word.values[: len(found)]
        found[: len(word)] &= word == 0
        if self.cancelled:
            found[[task for task in self.cancelled if task < len(found)]] = False
        return found

    def cancelled_now(self) -> int:
        """How many tasks were cancelled, and do not run any more."""
        self.settle()
        tasks = self.cancelled if self.end is not None else self.cancelled.difference(self.running)
        # Groups can be cancelled, too, and are not planned.
        found = int((self.category_of(np.array(sorted(tasks), np.int64)) >= 0).sum()) if tasks else 0
        return found if self.end is None else max(found, self.end.cancelled)

    def total_cores(self) -> float:
        """Of all nodes that took part."""
        return sum(node.cores for node in self.nodes.values())

    def there(self, last: float) -> list[There]:
        """When machines were there."""
        spans = [(number, node.cores, span) for number, node in self.nodes.items() for span in node.present]
        return there(spans, self.origin, last)

    def within(self) -> Floats:
        """What each attempt took of the run: what is attached to began before its record, and clocks differ."""
        rows = self.attempts
        found: Floats = np.maximum(0.0, rows.ended - np.maximum(rows.started, self.origin))
        return found

    def after(self, moments: Floats) -> Floats:
        """Moments as seconds since the run began."""
        found: Floats = np.maximum(0.0, moments - self.origin)
        return found

    def total_memory(self) -> int:
        return sum(node.resources.get("memory", 0) for node in self.nodes.values())
