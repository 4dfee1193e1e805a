"""Which nodes take part in a run, and what they tell, for its ledger: they get numbers there as they are seen.

Numbers begin at 1, since 0 is the machine that writes the ledger. A node goes by its name: one that comes back under
the same name is the same. What nodes tell that has not changed is not written again.
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
"""Nodes tell once a second how they are doing; the client looks as often, or seldomer if there are many of them."""
NODES_A_SECOND = 20
"""So many are written down: some 5 MB in an hour."""
MEMORY_STEP = 0.01
"""The share of memory in use is never twice the same; what changes by less is no news."""

Grown = tuple[int, ...]


class _Span(msgspec.Struct):
    """From when until when a node took part."""

    begin: float
    cores: float
    end: float = inf


class Participants:
    """The nodes of one run, as its client sees them."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._numbers: dict[str, int] = {}
        self._present: set[str] = set()
        self._spans: dict[str, list[_Span]] = {}
        self._is_first = True
        """This is the first look; whoever comes later has done nothing for other runs."""
        self._before: dict[str, Grown] = {}
        """What each node had done for other runs."""
        self._told: dict[str, tuple[int | float | None, ...]] = {}

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return min(MOST_SECONDS, max(LEAST_SECONDS, len(self._present) / NODES_A_SECOND))

    def number(self, name: str, when: float) -> int:
        """The number of a node, also of one that came and went between two looks; 0 if it has no name."""
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
        """A node takes part from this moment on, as the log of the run has it."""
        if name not in self._present:
            self._enter(when, name, resources)

    def left(self, when: float, name: str) -> bool:
        """A node takes part until this moment, as the log has it; by now it may be back. Whether it had work."""
        if name not in self._present or when < self._spans[name][-1].begin:
            return False
        had_work = self._had_work(name)
        self._leave(when, name)
        return had_work

    def _had_work(self, name: str) -> bool:
        return any(self._told.get(name, ())[-len(_SILENT) : -2])

    def cores(self) -> float:
        """The most cores that were there at the same time."""
        spans = [span for each in self._spans.values() for span in each]
        changes = sorted([(span.begin, 1, span.cores) for span in spans] + [(s.end, 0, -s.cores) for s in spans])
        most = now = 0.0
        for _, _, change in changes:
            now += change
            most = max(most, now)
        return most

    def all_cores(self) -> float:
        """Of all nodes that took part, as those count that read the ledger."""
        return sum(next((span.cores for span in reversed(spans) if span.cores), 0.0) for spans in self._spans.values())

    def core_seconds(self, begin: float, end: float) -> float:
        """What nodes have offered in this time, as those count that read the ledger."""
        spans = ((0, s.cores, (s.begin, s.end)) for each in self._spans.values() for s in each)
        return sum(cores * (left - came) for _, cores, came, left in presence_of(spans, begin, end))

    def take(
        self, now: float, nodes: Mapping[int, NodeInfo], notes: Mapping[int, ClusterNodeFacts], since: float = 0.0
    ) -> list[str]:
        """Those who are there at this moment, and what they say of themselves; returns who is gone that had work."""
        here = {info.name: (info, notes.get(number, ClusterNodeFacts())) for number, info in nodes.items()}
        for name, (info, note) in here.items():
            if name not in self._present:
                # Those that are there at the first look were there when the run began.
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
            return  # it has not said anything yet, or the books have lost it
        done = (note.fetched, note.stolen, note.pushed, note.fetched_files, note.hits, note.hit_bytes)
        before = self._before.setdefault(name, done if self._is_first else (0,) * len(done))
        grown = tuple(max(0, mine - earlier) for mine, earlier in zip(done, before, strict=True))
        told = (*grown, *standing(note))
        if told != self._told.get(name, (*(0 for _ in done), *_SILENT)):
            self._told[name] = told
            self._ledger.add(NodeTold(now, self._numbers[name], *told))  # type: ignore[arg-type]


def standing(note: ClusterNodeFacts) -> tuple[int | float | None, ...]:
    """How a node stands at this moment, as `NodeTold` has it: running, wait, local, shared, cores and memory."""
    if not note.up_seconds:
        return _SILENT
    handed_over = note.running - note.places if note.run else 0  # they start here and nowhere else
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
"""Node, task, attempt, and for how many seconds."""


class LongAttempts:
    """The attempts of one run, as its client hears of them."""

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        """`is_open` tells whether a task may still run."""
        self._is_open = is_open
        self._known: dict[int, TaskStarted] = {}
        self._ended: dict[int, int] = {}
        """By task that may run again: its last attempt that has ended. What nodes say may be older than that."""
        self._missed: set[int] = set()
        """Attempts that were not named the last time; their end may be on its way."""

    def ended(self, task: int, attempt: int) -> None:
        known = self._known.get(task)
        if known is not None and known.attempt <= attempt:
            del self._known[task]
        if self._is_open(task):
            self._ended[task] = max(attempt, self._ended.get(task, 0))
        else:
            self._ended.pop(task, None)

    def hear(self, now: float, said: Iterable[Said]) -> tuple[list[TaskStarted], TasksVanished | None]:
        """What is new since the last time."""
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
