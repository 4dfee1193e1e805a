"""Which nodes take part in a run, for its ledger: they get numbers there as they are seen, and are told to have left.

Numbers begin at 1, since 0 is the machine that writes the ledger. A node goes by its name: one that comes back under
the same name is the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.agent.messages import NodeNote
from shoal.ledger.file import LedgerWriter
from shoal.ledger.records import NodeLeft, NodeSeen, NodeTold
from shoal.store.directory import NodeInfo

LOOK_SECONDS = 5.0
"""So often the cluster is asked who is there."""


class Roll:
    """The nodes of one run, as its client sees them."""

    def __init__(self, ledger: LedgerWriter) -> None:
        self._ledger = ledger
        self._numbers: dict[str, int] = {}
        self._present: set[str] = set()
        self._before: dict[str, tuple[int, int, int]] = {}
        """What each node had done when it was seen first: other runs may have been there before."""
        self._told: dict[str, tuple[int, int, int]] = {}

    def number(self, name: str, when: float) -> int:
        """The number of a node, also of one that came and went between two looks; 0 if it has no name."""
        if not name:
            return 0
        return self._numbers.get(name) or self._enter(when, name, [])

    def _enter(self, when: float, name: str, resources: list[tuple[str, int]]) -> int:
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        self._ledger.add(NodeSeen(when, number, name, resources))
        return number

    def take(self, now: float, nodes: Mapping[int, NodeInfo], notes: Mapping[int, NodeNote]) -> None:
        """Those who are there at this moment, and what they say of themselves."""
        here = {info.name: (info, notes.get(number, NodeNote())) for number, info in nodes.items()}
        for name, (info, note) in here.items():
            if name not in self._present:
                self._enter(now, name, list(info.resources.amounts))
            done = (note.fetched, note.stolen, note.pushed)
            before = self._before.setdefault(name, done)
            fetched, stolen, pushed = (
                max(0, now_done - earlier) for now_done, earlier in zip(done, before, strict=True)
            )
            if (fetched, stolen, pushed) != self._told.get(name, (0, 0, 0)):
                self._told[name] = (fetched, stolen, pushed)
                self._ledger.add(NodeTold(now, self._numbers[name], fetched, stolen, pushed))
        for name in sorted(self._present - here.keys()):
            self._ledger.add(NodeLeft(now, self._numbers[name]))
        self._present = set(here)
