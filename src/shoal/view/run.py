"""The model of one run, built from its records as they come; everything else here is computed from it.

`feed` takes one record, `feed_ends` a batch of the only kind of which there are very many. What is shown is the run
that began last: a record that begins another one begins anew. Attempts are rows of columns, tasks are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from shoal.ledger.records import (
    CategoriesDeclared,
    NodeLeft,
    NodeSeen,
    NodeTold,
    Record,
    RunEnded,
    RunStarted,
    SourcesSeen,
    TaskEnded,
    TasksLinked,
    TasksPlanned,
    TaskStarted,
    ThrottleDecided,
)
from shoal.model.resources import FRACTION
from shoal.view.columns import Array, Column, Floats, Ints, Names
from shoal.view.ends import AnyEnd

UNKNOWN = "unknown"
_BATCH = 4096
_MOST_MESSAGES = 20_000
"""Different ones; what comes beyond that is counted as one."""
OTHER_MESSAGE = "other causes"
_CROWDED = 1.02
"""An attempt may begin a moment before the one before it is known to have ended."""


class Node(msgspec.Struct):
    """A machine that took part."""

    name: str
    resources: dict[str, int] = {}
    present: list[tuple[float, float | None]] = []
    """From when until when it was there; None: until the end."""
    fetched: int = 0
    stolen: int = 0
    pushed: int = 0

    @property
    def cores(self) -> float:
        return self.resources.get("cores", 0) / FRACTION


class Attempts:
    """All attempts that have ended, one row each, in the order of the ledger."""

    def __init__(self) -> None:
        self._task, self._node, self._category = Column("i4"), Column("i4"), Column("i4")
        self._outcome, self._final = Column("u1"), Column("?")
        self._number, self._message = Column("i4"), Column("i4")
        self._started, self._ended = Column("f8"), Column("f8")
        self._cpu, self._memory, self._limit, self._made = Column("f4"), Column("f4"), Column("f4"), Column("f4")
        self.read = 0
        self.written = 0
        """Bytes of all attempts together, from and to disks."""
        self.outcomes: list[str] = ["ok"]
        self.messages: list[str] = [""]
        self._outcome_codes: dict[str, int] = {"ok": 0}
        self._message_codes: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._task)

    def add(self, batch: Sequence[AnyEnd], categories: Array) -> None:
        """`categories` are the codes of those of the tasks. This is where the time goes that opening a ledger takes."""
        usages = [record.usage for record in batch]
        self._task.extend([record.task for record in batch])
        self._node.extend([record.node for record in batch])
        self._category.extend(categories)
        self._outcome.extend([0 if record.outcome == "ok" else self._outcome_of(record.outcome) for record in batch])
        self._final.extend([record.final for record in batch])
        self._number.extend([record.attempt for record in batch])
        self._message.extend([self._message_of(record.message) if record.message else 0 for record in batch])
        self._started.extend([record.started for record in batch])
        self._ended.extend([record.ended for record in batch])
        self._cpu.extend([record.user + record.system for record in batch])
        largest, whole = [record.max_rss for record in batch], [usage.tree_memory for usage in usages]
        self._memory.extend(np.maximum(largest, whole))
        self._limit.extend([record.memory_limit for record in batch])
        self.read += sum([usage.read_bytes for usage in usages])
        self.written += sum([usage.written_bytes for usage in usages])
        self._made.extend([usage.disk for usage in usages])

    def _outcome_of(self, text: str) -> int:
        code = self._outcome_codes.get(text)
        if code is None:
            code = self._outcome_codes[text] = len(self.outcomes)
            self.outcomes.append(text)
        return code

    def _message_of(self, text: str) -> int:
        code = self._message_codes.get(text)
        if code is None:
            if len(self.messages) >= _MOST_MESSAGES and text != OTHER_MESSAGE:
                return self._message_of(OTHER_MESSAGE)
            code = self._message_codes[text] = len(self.messages)
            self.messages.append(text)
        return code

    # The columns, not copied.

    @property
    def task(self) -> Ints:
        return self._task.values

    @property
    def node(self) -> Ints:
        return self._node.values

    @property
    def category(self) -> Ints:
        return self._category.values

    @property
    def outcome(self) -> Array:
        """Positions in `outcomes`; 0 is success."""
        return self._outcome.values

    @property
    def final(self) -> Array:
        return self._final.values

    @property
    def number(self) -> Ints:
        """Which attempt of its task it was, from 1."""
        return self._number.values

    @property
    def message(self) -> Ints:
        """Positions in `messages`."""
        return self._message.values

    @property
    def started(self) -> Floats:
        return self._started.values

    @property
    def ended(self) -> Floats:
        return self._ended.values

    @property
    def cpu(self) -> Floats:
        return self._cpu.values

    @property
    def memory(self) -> Floats:
        return self._memory.values

    @property
    def limit(self) -> Floats:
        """Bytes of memory that it might use; 0: no limit."""
        return self._limit.values

    @property
    def made(self) -> Floats:
        return self._made.values


class RunView:
    """One run."""

    def __init__(self) -> None:
        self.runs = 0
        """How many runs have begun in what was fed."""
        self._begin(None)

    def _begin(self, start: RunStarted | None) -> None:
        self.start = start
        self.end: RunEnded | None = None
        self.names = Names()
        self.categories: list[str] = []
        self._codes: dict[str, int] = {}
        self._category_of = Column("i4")
        """By task: code of its category and one; 0 for a task that was not planned."""
        self.planned: list[int] = []
        """Tasks by category."""
        self.declared: dict[str, dict[str, int]] = {}
        self.attempts = Attempts()
        self._pending: list[AnyEnd] = []
        self.running: dict[int, TaskStarted] = {}
        self.nodes: dict[int, Node] = {}
        self.throttle: list[ThrottleDecided] = []
        self.links: list[TasksLinked] = []
        self._held: Floats | None = None
        self._crowded: tuple[int, bool] | None = None
        """For so many attempts."""
        self.sources = 0
        self.source_bytes = 0
        self.last_time = start.time if start else 0.0
        if start is not None:
            self.runs += 1
            self.nodes[0] = Node(start.host, dict(start.node), [(start.time, None)])

    def feed(self, record: Record) -> None:
        """Adds one record."""
        match record:
            case TaskEnded():
                self._pending.append(record)
                self.running.pop(record.task, None)
                if len(self._pending) >= _BATCH:
                    self.settle()
            case TaskStarted():
                self.running[record.task] = record
                self.last_time = max(self.last_time, record.time)
            case TasksPlanned():
                self._plan(record)
            case TasksLinked():
                self.links.append(record)
            case CategoriesDeclared():
                for name, amounts in zip(record.names, record.resources, strict=True):
                    self.declared[name] = dict(amounts)
            case SourcesSeen():
                self.sources += len(record.sizes)
                self.source_bytes += sum(size for size in record.sizes if size > 0)
            case ThrottleDecided():
                self.throttle.append(record)
                self.last_time = max(self.last_time, record.time)
            case NodeSeen() | NodeLeft() | NodeTold():
                self._note_node(record)
            case RunStarted():
                self._begin(record)
            case RunEnded():
                self.settle()
                self.end = record
                self.last_time = max(self.last_time, record.time)

    def feed_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.feed(record)

    def feed_ends(self, batch: Sequence[AnyEnd]) -> None:
        """Adds ended attempts, in the order of the ledger."""
        self._pending += batch
        if self.running:
            for record in batch:
                self.running.pop(record.task, None)
        self.settle()

    def settle(self) -> None:
        """Puts what was fed into the columns; whoever computes something calls this first."""
        if not self._pending:
            return
        batch, self._pending = self._pending, []
        tasks = np.array([record.task for record in batch], np.int64)
        highest = int(tasks.max())
        self._category_of.reach(highest + 1)
        codes = self._category_of.values[tasks] - 1
        if (codes < 0).any():
            codes[codes < 0] = self._code(UNKNOWN)
        self.attempts.add(batch, codes)
        self.last_time = max(self.last_time, float(self.attempts.ended[-len(batch) :].max()))

    def _plan(self, record: TasksPlanned) -> None:
        self.settle()
        if not record.first:
            return
        self.names.add(record.first, record.names)
        for category in dict.fromkeys(record.categories):
            self._code(category)
        codes = np.array([self._codes[category] for category in record.categories])
        self._category_of.reach(max(record.first) + 1)
        self._category_of.values[np.asarray(record.first, np.int64)] = codes + 1
        for code, number in enumerate(np.bincount(codes, minlength=len(self.categories))):
            self.planned[code] += int(number)

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
            node.fetched, node.stolen, node.pushed = record.fetched, record.stolen, record.pushed
        elif node.present and node.present[-1][1] is None:
            node.present[-1] = (node.present[-1][0], record.time)

    # ---- what others ask -----------------------------------------------------------------------------------------

    @property
    def origin(self) -> float:
        """The moment that times are counted from."""
        return self.start.time if self.start else 0.0

    def is_cluster(self) -> bool:
        return 0 not in self.nodes and bool(self.nodes)

    def until(self, now: float | None = None) -> float:
        """The end of the run; of one that goes on, now; of one that was killed, the last moment that is known."""
        if self.end is not None or now is None:
            return self.last_time
        return max(now, self.last_time)

    def category_of(self, tasks: Ints) -> Ints:
        """Codes of the categories of tasks; -1 for those that were not planned."""
        codes = np.full(len(tasks), -1, np.int64)
        known = tasks < len(self._category_of)
        codes[known] = self._category_of.values[tasks[known]] - 1
        return codes

    def cores_of_categories(self) -> Floats:
        """Cores that a task of each category holds; 1 for those that declare none."""
        return np.array(
            [self.declared.get(name, {}).get("cores", FRACTION) / FRACTION for name in self.categories], np.float64
        )

    def is_crowded(self) -> bool:
        """Whether more attempts ran together than there are cores, as a throttle may allow: those that declare no cores
        then share them, and count with the processor time that they used."""
        rows = self.attempts
        if not self.throttle or not len(rows):
            return False
        if self._crowded is None or self._crowded[0] != len(rows):
            self._crowded = (len(rows), self._most_together() > _CROWDED * self.total_cores())
        return self._crowded[1]

    def _most_together(self) -> float:
        """The most cores that attempts held at the same time."""
        rows = self.attempts
        held = self.cores_of_categories()[rows.category]
        if (held == 1.0).all():
            begins, ends = np.sort(rows.started), np.sort(rows.ended)
            running = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
            return float(running.max())
        order = np.argsort(np.concatenate((rows.ended, rows.started)), kind="stable")
        return float(np.cumsum(np.concatenate((-held, held))[order]).max())

    def held(self) -> Floats:
        """Cores that each attempt held: what its category declares, or one; what it used where cores were shared."""
        if self._held is None or len(self._held) != len(self.attempts):
            rows = self.attempts
            found = self.cores_of_categories()[rows.category] if len(rows) else np.zeros(0)
            if self.is_crowded():
                declares = np.array(["cores" in self.declared.get(name, {}) for name in self.categories])
                took = np.maximum(rows.ended - rows.started, 1e-6)
                used = np.minimum(rows.cpu / took, self.total_cores())
                found = np.where(declares[rows.category], found, used)
            self._held = found
        return self._held

    def total_cores(self) -> float:
        """Of all nodes that took part."""
        return sum(node.cores for node in self.nodes.values())

    def total_memory(self) -> int:
        return sum(node.resources.get("memory", 0) for node in self.nodes.values())
