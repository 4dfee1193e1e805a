"""Who holds the extents of an allocation now: the handle says who did at first, the holders who has joined them since.

A holder that does not answer is waited for as long as the cluster counts it among its nodes. `here` is None for a
program that holds nothing itself; it finds out on its own which nodes there are, agents are told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from shoal.errors import InputError
from shoal.memory.books import FreedError, UnknownError
from shoal.memory.handle import Allocation
from shoal.memory.here import Here
from shoal.memory.layout import Record, merged, shown
from shoal.memory.peers import Peers
from shoal.memory.protocol import Place, RecordAsked, RecordTold, as_allocation

PATIENCE_SECONDS = 20.0
"""How long a holder that does not answer is waited for: longer than the cluster takes to give a node up."""
NEWS_SECONDS = 5.0
"""Within this time every node has heard of a new one."""
PAUSE_SECONDS = 0.2
NOBODY = -1


class Whereabouts:
    """The nodes, and which of them has what."""

    def __init__(self, peers: Peers, here: Here | None, look: Callable[[], Mapping[int, Place]] | None) -> None:
        """`look` finds out anew which nodes there are, for whoever is not told."""
        self.peers, self.here = peers, here
        self.number = NOBODY
        self.nodes: dict[int, Place] = {}
        self._seen: set[int] = set()
        """Nodes that were there at some time."""
        self._look = look
        self._guard = threading.Lock()
        self._newer: dict[str, Allocation] = {}
        """Allocations whose extents have found other holders than their handles say."""

    def tell(self, number: int, nodes: Mapping[int, Place]) -> None:
        """Which nodes there are, and which of them this is. Who is another node than before holds nothing any more."""
        if self.number not in (NOBODY, number) and self.here is not None:
            self.here.drop_all()
        self.number, self.nodes = number, dict(nodes)
        self._seen.update(nodes)

    def place_of(self, number: int) -> Place:
        """Where a node's memory is to be had; an OSError if it is not there."""
        place = self.nodes.get(number)
        if place is None:
            raise ConnectionRefusedError(f"node {number} is gone")
        return place

    def forget(self, allocation: Record) -> None:
        """It is freed."""
        with self._guard:
            self._newer.pop(allocation.id, None)

    def with_holder(
        self, allocation: Record, index: int, use: Callable[[int, Allocation], None], *, own_first: bool
    ) -> None:
        """Does something with the first holder of an extent that answers; waits for those that may still answer."""
        begun = time.monotonic()
        while True:
            record = self.newest(allocation)
            holders = [holder for holder in record.extents[index].holders if holder in self.nodes]
            if own_first and self.number in holders:
                holders.sort(key=lambda holder: holder != self.number)
            trouble: Exception | None = None
            for holder in holders:
                try:
                    use(holder, record)
                    return
                except FreedError:
                    raise
                except (UnknownError, OSError) as error:
                    trouble = trouble if isinstance(trouble, UnknownError) else error
            if not self._found_newer(record):
                if isinstance(trouble, UnknownError):
                    raise trouble
                waited = time.monotonic() - begun
                is_gone = not holders and self._seen.issuperset(record.extents[index].holders)
                if is_gone or waited > (PATIENCE_SECONDS if holders else NEWS_SECONDS):
                    raise lost(record, index)
                time.sleep(PAUSE_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        if self._look is not None:
            self.nodes = dict(self._look())
            self._seen.update(self.nodes)

    def newest(self, allocation: Record) -> Allocation:
        """What is known of an allocation; extents without replicas never find other holders."""
        if allocation.replicas > 1:
            newer = self.here.known(allocation) if self.here is not None else None
            if newer is None:
                with self._guard:
                    newer = self._newer.get(allocation.id)
            if newer is not None:
                return as_allocation(merged(newer, allocation))
        return as_allocation(allocation)

    def _found_newer(self, record: Allocation) -> bool:
        """Asks everybody whether extents have found other holders."""
        if record.replicas == 1:
            return False
        for number, place in list(self.nodes.items()):
            if number == self.number:
                continue
            try:
                told = self.peers.ask(place, RecordAsked(record))
            except (InputError, OSError):
                continue
            assert isinstance(told, RecordTold)
            newer = merged(record, told.record)
            if newer is not record:
                with self._guard:
                    self._newer[record.id] = as_allocation(newer)
                return True
        return False

    def holding(self, allocation: Record) -> tuple[Allocation, dict[int, list[int]]]:
        """What is known of an allocation, and by number which extents the nodes have that answer."""
        record, held = self.newest(allocation), dict[int, list[int]]()
        trouble: InputError | None = None
        numbers = {holder: None for extent in record.extents for holder in extent.holders}
        for number in list(numbers) if record.replicas == 1 else list(self.nodes):
            try:
                if number == self.number and self.here is not None:
                    known, indexes = self.here.record(record)
                elif number in self.nodes:
                    told = self.peers.ask(self.place_of(number), RecordAsked(record))
                    assert isinstance(told, RecordTold)
                    known, indexes = told.record, told.indexes
                else:
                    continue
            except InputError as error:
                if number in numbers:
                    trouble = error if trouble is None or isinstance(error, FreedError) else trouble
                continue
            except OSError:
                continue
            held[number] = indexes
            record = as_allocation(merged(record, known))
        if not held and trouble is not None:
            raise trouble
        return record, held


def lost(record: Record, index: int) -> InputError:
    extent = record.extents[index]
    return InputError(
        f"bytes {extent.begin} to {extent.end} of allocation {shown(record)} are lost with the nodes that held them",
        remedy="make them again; with replicas=2 an allocation outlives a node",
    )
