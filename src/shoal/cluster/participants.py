"""Nodes that take part in a run, and its long attempts, as the client records them in the ledger.

Nodes get numbers in the ledger in the order in which they are seen, from 1; 0 is the machine that writes the ledger. A
node is identified by its name: one that returns under the same name is the same node. Unchanged status is not written
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

import msgspec

from shoal.cluster.agent.messages import ClusterNodeFacts
from shoal.core.resources import FRACTION
from shoal.core.store.directory import NodeInfo
from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import NodeLeft, NodeSeen, NodeTold, TaskStarted, TasksVanished
from shoal.ledger.run_fold import presence_of

LEAST_SECONDS, MOST_SECONDS = 1.0, 5.0
"""Minimum seconds between two status requests. Nodes report every second; with many nodes the client asks less
often."""
NODES_A_SECOND = 20
"""Maximum number of status records: some 5 MB in an hour."""
MEMORY_STEP = 0.01
"""Minimum change of the memory share that is recorded; it is never exactly the same twice."""

Grown = tuple[int, ...]


class _Span(msgspec.Struct):
    """The period during which a node took part."""

    begin: float
    cores: float
    end: float = inf


class Participants:
    """The nodes of one run, as seen by its client."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._numbers: dict[str, int] = {}
        self._present: set[str] = set()
        self._spans: dict[str, list[_Span]] = {}
        self._is_first = True
        """No status was seen yet. A node that joins later has done nothing for other runs."""
        self._before: dict[str, Grown] = {}
        """What each node had done for other runs before."""
        self._told: dict[str, tuple[int | float | None, ...]] = {}

    @property
    def pause(self) -> float:
        """Returns the seconds until the next status request."""
        return min(MOST_SECONDS, max(LEAST_SECONDS, len(self._present) / NODES_A_SECOND))

    def number(self, name: str, when: float) -> int:
        """Returns the number of a node, also of one that came and went between two requests; 0 if it has no name."""
        if not name:
            return 0
        return self._numbers.get(name) or self._enter(when, name, [])

    def _enter(self, when: float, name: str, resources: list[tuple[str, int]]) -> int:
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        self._ledger.add(NodeSeen(when, number, name, resources))
        self._spans.setdefault(name, []).append(_Span(when, dict(resources).get("cores", 0) / FRACTION))
        self._present.add(name)
        return number

    def _leave(self, when: float, name: str) -> None:
        self._ledger.add(NodeLeft(when, self._numbers[name]))
        self._spans[name][-1].end = when
        self._present.discard(name)
        self._told.pop(name, None)

    def joined(self, when: float, name: str, resources: list[tuple[str, int]]) -> None:
        """A node takes part from this moment on, according to the run's log."""
        if name not in self._present:
            self._enter(when, name, resources)

    def left(self, when: float, name: str) -> bool:
        """A node takes part until this moment, according to the run's log; it may have returned since. Returns whether
        it had work."""
        if name not in self._present or when < self._spans[name][-1].begin:
            return False
        had_work = self._had_work(name)
        self._leave(when, name)
        return had_work

    def _had_work(self, name: str) -> bool:
        return any(self._told.get(name, ())[-len(_SILENT) : -2])

    def cores(self) -> float:
        """Returns the maximum number of cores that took part at the same time."""
        spans = [span for each in self._spans.values() for span in each]
        changes = sorted([(span.begin, 1, span.cores) for span in spans] + [(s.end, 0, -s.cores) for s in spans])
        most = now = 0.0
        for _, _, change in changes:
            now += change
            most = max(most, now)
        return most

    def all_cores(self) -> float:
        """Returns the cores of all nodes that took part, counted as readers of the ledger count them."""
        return sum(next((span.cores for span in reversed(spans) if span.cores), 0.0) for spans in self._spans.values())

    def core_seconds(self, begin: float, end: float) -> float:
        """Returns the core-seconds that nodes have offered in this period, counted as readers of the ledger count
        them."""
        spans = ((0, s.cores, (s.begin, s.end)) for each in self._spans.values() for s in each)
        return sum(cores * (left - came) for _, cores, came, left in presence_of(spans, begin, end))

    def take(
        self, now: float, nodes: Mapping[int, NodeInfo], notes: Mapping[int, ClusterNodeFacts], since: float = 0.0
    ) -> list[str]:
        """Records the current nodes and their status; returns the names of lost nodes that had work."""
        here = {info.name: (info, notes.get(number, ClusterNodeFacts())) for number, info in nodes.items()}
        for name, (info, note) in here.items():
            if name not in self._present:
                # Nodes that are present at the first look were present when the run began.
                self._enter(since if self._is_first and since else now, name, list(info.resources.amounts))
            self._hear(now, name, note)
        gone = sorted(self._present - here.keys())
        missed = list(filter(self._had_work, gone))
        for name in gone:
            self._leave(now, name)
        self._is_first = False
        return missed

    def _hear(self, now: float, name: str, note: ClusterNodeFacts) -> None:
        if note == ClusterNodeFacts():
            return  # it has not reported yet, or the store has lost its report
        done = (note.fetched, note.stolen, note.pushed, note.fetched_files, note.hits, note.hit_bytes)
        before = self._before.setdefault(name, done if self._is_first else (0,) * len(done))
        grown = tuple(max(0, mine - earlier) for mine, earlier in zip(done, before, strict=True))
        told = (*grown, *standing(note))
        if told != self._told.get(name, (*(0 for _ in done), *_SILENT)):
            self._told[name] = told
            self._ledger.add(NodeTold(now, self._numbers[name], *told))  # type: ignore[arg-type]


def standing(note: ClusterNodeFacts) -> tuple[int | float | None, ...]:
    """Returns the fields of a `NodeTold` record: running, wait, local, shared, cores and memory."""
    if not note.up_seconds:
        return _SILENT
    handed_over = note.running - note.places if note.run else 0  # handed-over tasks start here and nowhere else
    return (
        max(0, note.places - note.fetching) if note.run else note.running,
        note.fetching + note.resting,
        note.local + handed_over,
        note.shared,
        note.cores_held,
        round(round(note.memory_used / MEMORY_STEP) * MEMORY_STEP, 2),
    )


_SILENT: tuple[int | float | None, ...] = (None, 0, 0, 0, 0, 0.0)


Said = tuple[int, int, int, float]
"""Node, task, attempt, and its age in seconds."""


class LongAttempts:
    """The long attempts of one run, as its client learns of them."""

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        """`is_open` returns whether a task may still run."""
        self._is_open = is_open
        self._known: dict[int, TaskStarted] = {}
        self._ended: dict[int, int] = {}
        """By task that may run again: the last attempt that has ended. Reports of nodes may be older than that."""
        self._missed: set[int] = set()
        """Attempts that were missing in the last report; their end may be on its way."""

    def ended(self, task: int, attempt: int) -> None:
        known = self._known.get(task)
        if known is not None and known.attempt <= attempt:
            del self._known[task]
        if self._is_open(task):
            self._ended[task] = max(attempt, self._ended.get(task, 0))
        else:
            self._ended.pop(task, None)

    def hear(self, now: float, said: Iterable[Said]) -> tuple[list[TaskStarted], TasksVanished | None]:
        """Takes reports; returns the attempts that are new and those that have vanished since the last call."""
        begun: list[TaskStarted] = []
        named: set[int] = set()
        for node, task, attempt, seconds in said:
            if attempt <= self._ended.get(task, 0) or not self._is_open(task):
                continue
            named.add(task)
            known = self._known.get(task)
            if known is None or known.attempt < attempt:
                self._known[task] = TaskStarted(task, attempt, now - seconds, 0, 0.0, -1, node)
                begun.append(self._known[task])
        missing = {task for task in self._known if task not in named}
        gone = sorted(missing & self._missed)
        for task in gone:
            del self._known[task]
        self._missed = missing.difference(gone)
        return begun, TasksVanished(now, gone) if gone else None
