"""How many nodes there should be: grows with what the queue can use, shrinks when nodes are idle. Pure: time is told.

`Factory.decide` is called with how things stand and says what to do; whoever calls it submits, drains and cancels. It
holds four things back: more nodes than would be busy for as long as they take to start, more than a few submissions at
once, starts while starts fail, and growth where what was started before stayed idle under the same queue.
`PollInterval` says when the batch system is asked again. Whether a task may still be begun on a node that will be taken
away is in `shoal.core.policies.retry`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shoal.cluster.nodes.starters import NodePhase
from shoal.core.quantities import show_seconds
from shoal.errors import InputError

FIRST_PAUSE = 5.0
LONGEST_PAUSE = 600.0
_MOST_DOUBLINGS = 12


class Bounds(msgspec.Struct, frozen=True):
    """What the user sets."""

    minimum: int = 0
    maximum: int = 10
    idle_seconds: float = 300.0
    tasks_per_node: float = 1.0
    """How many tasks one node runs at the same time."""
    start_seconds: float = 60.0
    """How long a node takes from being asked for to its first task; a shorter job is not worth one."""
    per_round: int = 5
    """The most nodes asked for at once."""
    join_seconds: float = 300.0
    """A node that runs for so long without a word from its agent is given up."""

    def checked(self) -> Bounds:
        """Itself, if it makes sense."""
        if not 0 <= self.minimum <= self.maximum:
            raise InputError(f"from {self.minimum} to {self.maximum} nodes is not a range", remedy="set min <= max")
        if self.tasks_per_node <= 0 or self.per_round < 1:
            raise InputError("a node must take at least some of a task, and a round at least one node")
        if min(self.idle_seconds, self.start_seconds, self.join_seconds) < 0:
            raise InputError("times cannot be negative")
        return self


class QueueLength(msgspec.Struct, frozen=True):
    """The work, as far as nodes of this factory can do it. Tasks that wait for others do not count."""

    waiting: int
    running: int
    seconds_left: float | None = None
    """Expected seconds of all these tasks together, one after the other; None if nobody knows."""


class FactoryNode(msgspec.Struct, frozen=True):
    """A node that was asked for and has not ended."""

    name: str
    phase: NodePhase
    joined: bool = False
    """Whether its agent has been heard of."""
    running_since: float | None = None
    """Since when the batch system has had it running."""
    idle_since: float | None = None
    """Since when it has had nothing to do; None if it is at work."""
    ends_at: float | None = None
    draining: bool = False
    asked_at: float | None = None
    """When it was asked for."""


class SubmitNodes(msgspec.Struct, frozen=True):
    """Ask for so many more nodes."""

    count: int


class DrainNode(msgspec.Struct, frozen=True):
    """Let a running node finish what it has, and end."""

    node: str


class CancelNode(msgspec.Struct, frozen=True):
    """Take back a node that has not begun to run, or whose agent was never heard of."""

    node: str


Action = SubmitNodes | DrainNode | CancelNode


class Factory:
    """Decides for one group of nodes; what it remembers is small and may be lost without harm."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds.checked()
        self._failures = 0
        self._not_before = -math.inf
        self._surplus_since: float | None = None
        self._idle_under: tuple[int, int] | None = None
        """The queue under which nodes were drained although tasks waited: more of the same would idle as well."""

    def decide(self, now: float, queue: QueueLength, nodes: Sequence[FactoryNode]) -> list[Action]:
        """What to do now; nothing most of the time."""
        # Only a node that has not ended counts; one on its way out still fills a place until it has.
        present = [node for node in nodes if node.phase is not NodePhase.ENDED]
        silent = [node for node in present if self._is_silent(node, now)]
        useful = [
            node for node in present if not node.draining and node not in silent and not self._leaves_soon(node, now)
        ]
        wanted = self.wanted(queue)
        if self._idle_under not in (None, (queue.waiting, queue.running)):
            self._idle_under = None
        actions: list[Action] = [CancelNode(node.name) for node in silent]
        count = self._missing(now, wanted, useful, len(present))
        if count > 0:
            self._surplus_since = None
            return [*actions, SubmitNodes(count)]
        return [*actions, *self._cancel(now, wanted, useful), *self._drain(now, queue, useful)]

    def _missing(self, now: float, wanted: int, useful: Sequence[FactoryNode], present: int) -> int:
        """How many nodes to ask for in this round."""
        if now < self._not_before or len(useful) >= wanted:
            return 0
        if len(useful) >= self.bounds.minimum and not self._growth_helps(now, useful):
            return 0
        # Those on their way out are replaced one by one: allocations may be so short that all of them always are.
        room = min(self.bounds.maximum, 2 * wanted) - present
        return min(wanted - len(useful), room, self.bounds.per_round)

    def _is_silent(self, node: FactoryNode, now: float) -> bool:
        return (
            node.phase is NodePhase.RUNNING
            and not node.joined
            and node.running_since is not None
            and now - node.running_since >= self.bounds.join_seconds
        )

    def wanted(self, queue: QueueLength) -> int:
        """How many nodes the queue can use, within the bounds."""
        bounds, tasks = self.bounds, queue.waiting + queue.running
        usable = math.ceil(tasks / bounds.tasks_per_node)
        if queue.seconds_left is not None and bounds.start_seconds > 0 and tasks:
            # Each of n nodes is busy for seconds_left / (n * tasks_per_node): not less than it takes to start one.
            worth = math.floor(queue.seconds_left / (bounds.tasks_per_node * bounds.start_seconds))
            usable = min(usable, max(1, worth))
        return max(bounds.minimum, min(bounds.maximum, usable))

    def reach(self, now: float, queue: QueueLength, nodes: Sequence[FactoryNode]) -> float:
        """How many of the waiting tasks the nodes of this factory will take before long, so that no other needs to.

        Nodes that are still to come count, unless starting is held back or the batch system lets them wait for long.
        """
        present = [node for node in nodes if node.phase is not NodePhase.ENDED and not node.draining]
        slow = any(
            node.phase is NodePhase.WAITING
            and node.asked_at is not None
            and now - node.asked_at > self.bounds.join_seconds
            for node in present
        )
        if slow or self.pause(now):
            count = sum(node.phase is NodePhase.RUNNING for node in present)
        else:
            count = max(len(present), self.wanted(queue))
        return max(0.0, count * self.bounds.tasks_per_node - queue.running)

    def _leaves_soon(self, node: FactoryNode, now: float) -> bool:
        """A node with less time left than a new one takes to come is as good as gone."""
        return node.ends_at is not None and node.ends_at - now < self.bounds.start_seconds

    def _growth_helps(self, now: float, useful: Sequence[FactoryNode]) -> bool:
        """Not while a node has had time to find work and did not, nor under the queue that left others idle."""
        settled = min(self.bounds.start_seconds, self.bounds.idle_seconds)
        idle = any(node.idle_since is not None and now - node.idle_since >= settled for node in useful)
        return self._idle_under is None and not idle

    def _drain(self, now: float, queue: QueueLength, useful: Sequence[FactoryNode]) -> list[Action]:
        """Lets go of nodes that have been idle for long enough, the longest idle first, down to the minimum."""
        idle = [
            node
            for node in useful
            if node.phase is NodePhase.RUNNING
            and node.idle_since is not None
            and now - node.idle_since >= self.bounds.idle_seconds
        ]
        idle.sort(key=lambda node: (node.idle_since, node.name))
        spare = max(0, len(useful) - self.bounds.minimum)
        chosen = idle[:spare]
        if chosen and queue.waiting:
            self._idle_under = (queue.waiting, queue.running)
        return [DrainNode(node.name) for node in chosen]

    def _cancel(self, now: float, wanted: int, useful: Sequence[FactoryNode]) -> list[Action]:
        """Takes back what still waits and has been too much for a while, the latest asked for first."""
        waiting = [node for node in useful if node.phase is NodePhase.WAITING]
        surplus = min(len(useful) - wanted, len(waiting))
        if surplus <= 0:
            self._surplus_since = None
            return []
        if self._surplus_since is None:
            self._surplus_since = now
        if now - self._surplus_since < self.bounds.idle_seconds:
            return []
        self._surplus_since = None
        return [CancelNode(node.name) for node in waiting[len(waiting) - surplus :]]

    def start_failed(self, now: float) -> None:
        """A submission was refused, or a node ended unheard of: the next start waits, longer each time."""
        self._failures += 1
        self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS))

    def node_joined(self) -> None:
        """An agent was heard of: starting works."""
        self._failures = 0
        self._not_before = -math.inf

    def pause(self, now: float) -> str:
        """Why no node is asked for at the moment, in words; nothing if starting is not held back."""
        if self._failures and now < self._not_before:
            times = "start has" if self._failures == 1 else "starts in a row have"
            return (
                f"{self._failures} {times} failed; the next is tried in {show_seconds(round(self._not_before - now))}"
            )
        if self._idle_under is not None:
            return "nodes were idle although tasks wait: these tasks do not fit on such nodes"
        return ""


class PollInterval:
    """When to ask the batch system again: soon after something changed, ever less often while nothing does."""

    def __init__(self, first: float = 1.0, growth: float = 1.5, longest: float = 60.0) -> None:
        self.first, self.growth, self.longest = first, growth, longest
        self._interval = first
        self._next = -math.inf

    def due(self, now: float) -> bool:
        return now >= self._next

    def polled(self, now: float, changed: bool) -> None:
        """Asked at `now`; `changed` if the answer was another one than before."""
        self._interval = self.first if changed else min(self.longest, self._interval * self.growth)
        self._next = now + self._interval

    def hurry(self, now: float) -> None:
        """Something was submitted or ended: an answer is worth having soon."""
        self._interval = self.first
        self._next = min(self._next, now + self.first)

    @property
    def next(self) -> float:
        return self._next
