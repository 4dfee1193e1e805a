"""The factory: decides how many nodes there should be. Grows with the queue, shrinks when nodes are idle. Pure.

`Factory.decide` takes the state of queue and nodes at a given time and returns actions; the caller submits, drains and
cancels. It limits growth in four ways: no more nodes than would be busy for as long as they take to start, only a few
submissions at once, none for a while after failed starts, and none if earlier nodes stayed idle under the same queue.
`PollInterval` decides when the batch system is asked again. Whether a task may still start on a node whose time ends is
decided in `shoal.core.policies.retry`.
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
    """Settings of a factory."""

    minimum: int = 0
    maximum: int = 10
    idle_seconds: float = 300.0
    tasks_per_node: float = 1.0
    """Number of tasks that a node runs at the same time."""
    start_seconds: float = 60.0
    """Seconds from the request of a node to its first task; a node with less work than that is not worth starting."""
    per_round: int = 5
    """Maximum number of nodes requested at once."""
    join_seconds: float = 300.0
    """A node that runs for so long without a message from its agent is cancelled."""

    def checked(self) -> Bounds:
        """Returns the settings if they are consistent."""
        if not 0 <= self.minimum <= self.maximum:
            raise InputError(f"from {self.minimum} to {self.maximum} nodes is not a range", remedy="set min <= max")
        if self.tasks_per_node <= 0 or self.per_round < 1:
            raise InputError("a node must take at least some of a task, and a round at least one node")
        if min(self.idle_seconds, self.start_seconds, self.join_seconds) < 0:
            raise InputError("times cannot be negative")
        return self


class QueueLength(msgspec.Struct, frozen=True):
    """The tasks that nodes of this factory can run. Tasks that wait for other tasks do not count."""

    waiting: int
    running: int
    seconds_left: float | None = None
    """Expected seconds of all these tasks, one after the other; None if unknown."""


class FactoryNode(msgspec.Struct, frozen=True):
    """A node that was requested and has not ended."""

    name: str
    phase: NodePhase
    joined: bool = False
    """Whether its agent has joined."""
    running_since: float | None = None
    """Since when the batch system reports it as running."""
    idle_since: float | None = None
    """Since when it has been idle; None if it is busy."""
    ends_at: float | None = None
    draining: bool = False
    asked_at: float | None = None
    """When it was requested."""


class SubmitNodes(msgspec.Struct, frozen=True):
    """Request `count` more nodes."""

    count: int


class DrainNode(msgspec.Struct, frozen=True):
    """Let a running node finish its tasks, then end it."""

    node: str


class CancelNode(msgspec.Struct, frozen=True):
    """Cancel a node that has not begun to run, or whose agent has never joined."""

    node: str


Action = SubmitNodes | DrainNode | CancelNode


class Factory:
    """Decides for one group of nodes. Its memory is small and may be lost without harm."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds.checked()
        self._failures = 0
        self._not_before = -math.inf
        self._surplus_since: float | None = None
        self._idle_under: tuple[int, int] | None = None
        """The queue under which nodes were idle although tasks waited: more nodes would be idle as well."""

    def decide(self, now: float, queue: QueueLength, nodes: Sequence[FactoryNode]) -> list[Action]:
        """Returns the actions for now; usually none."""
        # A draining node occupies a slot of the maximum until it has ended.
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
        """Returns how many nodes to request in this round."""
        if now < self._not_before or len(useful) >= wanted:
            return 0
        if len(useful) >= self.bounds.minimum and not self._growth_helps(now, useful):
            return 0
        # Draining nodes are replaced one by one: allocations may be so short that some are always draining.
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
        """Returns how many nodes the queue can use, within the bounds."""
        bounds, tasks = self.bounds, queue.waiting + queue.running
        usable = math.ceil(tasks / bounds.tasks_per_node)
        if queue.seconds_left is not None and bounds.start_seconds > 0 and tasks:
            # Each of n nodes is busy for seconds_left / (n * tasks_per_node): require at least the time to start
            # one.
            worth = math.floor(queue.seconds_left / (bounds.tasks_per_node * bounds.start_seconds))
            usable = min(usable, max(1, worth))
        return max(bounds.minimum, min(bounds.maximum, usable))

    def reach(self, now: float, queue: QueueLength, nodes: Sequence[FactoryNode]) -> float:
        """Returns how many of the queued tasks the nodes of this factory will soon take, so that no other group counts
        them.

        Requested nodes count, unless starts are held back or the batch system lets them wait for long.
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
        """Whether a node has less time left than a new one needs to start: it counts as gone."""
        return node.ends_at is not None and node.ends_at - now < self.bounds.start_seconds

    def _growth_helps(self, now: float, useful: Sequence[FactoryNode]) -> bool:
        """Whether more nodes would help: not while a node stays idle beside queued tasks, nor under a queue that left
        others idle."""
        settled = min(self.bounds.start_seconds, self.bounds.idle_seconds)
        idle = any(node.idle_since is not None and now - node.idle_since >= settled for node in useful)
        return self._idle_under is None and not idle

    def _drain(self, now: float, queue: QueueLength, useful: Sequence[FactoryNode]) -> list[Action]:
        """Drains nodes that have been idle for long enough, the longest idle first, down to the minimum."""
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
        """Cancels waiting nodes that have been surplus for a while, the latest requested first."""
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
        """A submission failed, or a node ended before it joined: delays the next start, longer each time."""
        self._failures += 1
        self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures - 1, _MOST_DOUBLINGS))

    def node_joined(self) -> None:
        """An agent has joined: starts work."""
        self._failures = 0
        self._not_before = -math.inf

    def pause(self, now: float) -> str:
        """Returns why no node is requested at the moment; empty if starts are not held back."""
        if self._failures and now < self._not_before:
            times = "start has" if self._failures == 1 else "starts in a row have"
            return (
                f"{self._failures} {times} failed; the next is tried in {show_seconds(round(self._not_before - now))}"
            )
        if self._idle_under is not None:
            return "nodes were idle although tasks wait: these tasks do not fit on such nodes"
        return ""


class PollInterval:
    """When to ask the batch system again: soon after a change, ever less often without one."""

    def __init__(self, first: float = 1.0, growth: float = 1.5, longest: float = 60.0) -> None:
        self.first, self.growth, self.longest = first, growth, longest
        self._interval = first
        self._next = -math.inf

    def due(self, now: float) -> bool:
        return now >= self._next

    def polled(self, now: float, changed: bool) -> None:
        """The batch system was asked at `now`; `changed`: its reply differs from the last one."""
        self._interval = self.first if changed else min(self.longest, self._interval * self.growth)
        self._next = now + self._interval

    def hurry(self, now: float) -> None:
        """A node was submitted or ended: asks again soon."""
        self._interval = self.first
        self._next = min(self._next, now + self.first)

    @property
    def next(self) -> float:
        return self._next
