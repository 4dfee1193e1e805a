"""Distribution of ready tasks where data does not decide: by required and preferred labels, or evenly over nodes.

- A task that this node can never run goes to a node that can; such nodes are used in turn.
- A task that prefers labels goes to a node that carries them: the one with most of its data, else in turn, starting
  here if this node qualifies. It is local there, as if its data were there, and is released if it would wait too long.
- The first tasks of a run can be distributed over all nodes, or those with a label, by a hash of the task number and
  in proportion to their cores, as in MATRIX. They enter the shared queue there.

A `Distribution` collects the decisions for one batch; the peer scheduler sends it in transfers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from shoal.core.peer_messages import ReadyTask, Roster
from shoal.core.policies.placement import ANYWHERE, Holdings
from shoal.core.resources import Resources, requiring
from shoal.core.scheduler import Lane
from shoal.core.scheduler_messages import Cramped

ALL = "all"
LARGEST_PARCEL = 10_000
"""Maximum number of tasks in one transfer."""
_SCATTER = 2_654_435_761
"""Multiplier of the hash: an odd number near 2^32 divided by the golden ratio spreads neighbouring task numbers."""
_MASK = (1 << 32) - 1


class Distribution:
    """The tasks of a batch that go to other nodes: pushed into local queues, or dealt into shared queues."""

    def __init__(self) -> None:
        self._pushed: dict[int, list[ReadyTask]] = {}
        self._dealt: dict[int, list[ReadyTask]] = {}

    def push(self, node: int, ticket: ReadyTask) -> None:
        """Sends the task to the local queue of the node."""
        self._pushed.setdefault(node, []).append(ticket)

    def deal(self, node: int, ticket: ReadyTask) -> None:
        """Sends the task to the shared queue of the node, from which peers may steal it."""
        self._dealt.setdefault(node, []).append(ticket)

    def parcels(self) -> Iterator[tuple[int, list[ReadyTask], bool]]:
        """Yields node, tasks of one transfer, and whether they were dealt."""
        for by_node, is_dealt in ((self._pushed, False), (self._dealt, True)):
            for node, tickets in by_node.items():
                for at in range(0, len(tickets), LARGEST_PARCEL):
                    yield node, tickets[at : at + LARGEST_PARCEL], is_dealt


class Distributor:
    """Finds nodes for the tasks of one scheduler."""

    def __init__(self, here: int, lanes: Sequence[Lane], roster: Roster) -> None:
        self._here, self._lanes = here, lanes
        self.has_preferences = any(lane.prefers for lane in lanes)
        """Whether any task prefers labels."""
        self._turn = here
        """Position of the round-robin over nodes; starts at a different node for each scheduler."""
        self.set_roster(roster)

    def set_roster(self, roster: Roster) -> None:
        self._roster = roster
        self._shares: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        """By lane and target (`all` or a label): nodes, and cumulative sums of their cores."""
        self._limits: dict[int, frozenset[int] | None] = {}
        """By lane: nodes that can run its tasks; None: all known nodes."""

    def allowed(self, lane: int, holdings: Holdings) -> Holdings:
        """The holdings on nodes that can run such a task: data on other nodes does not help it."""
        if lane not in self._limits:
            able = self._roster.able(self._lanes[lane].resources)
            self._limits[lane] = frozenset(able) if able and len(able) < len(self._roster.ids) else None
        limit = self._limits[lane]
        return holdings if limit is None else [pair for pair in holdings if pair[0] in limit]

    def is_homogeneous(self) -> bool:
        """Whether every node can run every task, as far as known."""
        return all(len(self._roster.able(lane.resources)) in (0, len(self._roster.ids)) for lane in self._lanes)

    def another(self, lane: int) -> int:
        """The next node that can run what this node cannot; `ANYWHERE` if none is known."""
        able = self._roster.able(self._lanes[lane].resources)
        return self._in_turn([node for node in able if node != self._here])

    def roomy(self, lane: int, cramped: Cramped) -> int:
        """The next node that may have room for the inputs of a task; `ANYWHERE` if none is known."""
        nodes = self._roster.roomy(self._lanes[lane].resources, cramped)
        return self._in_turn([node for node in nodes if node != self._here])

    def preferred(self, lane: int, holdings: Holdings, dealt: dict[int, int]) -> int:
        """The preferred node of a task; `ANYWHERE` if there is none. `dealt` counts the tasks of this batch by lane."""
        made = self._lanes[lane]
        if not made.prefers:
            return ANYWHERE
        nodes = self._roster.preferred(made.resources, made.prefers)
        most, best = 0, ANYWHERE
        for node, amount in holdings:
            if node in nodes and (amount > most or (amount == most and node == self._here)):
                most, best = amount, node
        if best != ANYWHERE or self._here not in nodes:
            return best if best != ANYWHERE else self._in_turn(nodes)
        at = dealt.get(lane, nodes.index(self._here))
        dealt[lane] = at + 1
        return nodes[at % len(nodes)]

    def _in_turn(self, nodes: Sequence[int]) -> int:
        if not nodes:
            return ANYWHERE
        self._turn += 1
        return nodes[self._turn % len(nodes)]

    def share_of(self, task: int, lane: int, to: str) -> int:
        """The node to which a task is dealt; `ANYWHERE` if no target node can run it."""
        found = self._shares.get((lane, to))
        if found is None:
            nodes = self._meant(self._lanes[lane].resources, to)
            found = self._shares[lane, to] = nodes, list(accumulate(map(self._roster.cores, nodes)))
        nodes, ends = found
        if not nodes:
            return ANYWHERE
        return nodes[bisect_right(ends, (task * _SCATTER & _MASK) * ends[-1] >> 32)]

    def _meant(self, request: Resources, to: str) -> list[int]:
        if to == ALL:
            return self._roster.able(request) or self._roster.ids
        return self._roster.able(requiring(request, [to]))
