"""Messages, events and commands of peer schedulers, the roster of nodes, and reliable transfer of tasks.

Every message carries the load of its sender: the number of tasks that it could give away. Only `TaskTransfer` carries
tasks and must not be lost. It is sent again until `TransferReceivedReply` arrives, and its number lets the receiver
recognize duplicates. All other messages may be lost: a request without a reply is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeAlias

import msgspec

from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler_messages import Cramped

GENERATION_BITS = 16
"""Lowest bit of the generation within an attempt number; stores begin a new generation when a task is placed again."""


class ReadyTask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ready task in transit, with its attempts and failures so far."""

    task: int
    attempt: int = 0
    """Number of the last attempt; 0: never started."""
    failures: int = 0
    losses: int = 0
    cramped: Cramped | None = None
    """Nodes that have no room for its inputs."""

    def is_later_than(self, attempt: int) -> bool:
        """Whether it belongs to a later generation than this attempt of the same task."""
        return self.attempt >> GENERATION_BITS > attempt >> GENERATION_BITS


class LoadRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Request of an idle scheduler for the load of a peer."""

    round: int
    unable: tuple[int, ...] = ()
    """Lanes of which the sender could start nothing now, as numbered at the start: it would only pass their tasks
    on."""


class LoadReply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    round: int
    load: int


class StealRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Request of an idle scheduler for tasks; the reply is a `TaskTransfer`, an empty one if there are none."""

    round: int
    unable: tuple[int, ...] = ()
    """As in `LoadRequest`."""
    near: tuple[int, ...] = ()
    """Files that the thief has, not necessarily all; empty if files play no role."""


class TaskTransfer(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Tasks that belong to the receiver from now on."""

    number: int
    """Sequence number of the sender; 0 for an empty transfer, which needs no acknowledgement."""
    tickets: list[ReadyTask]
    load: int = 0
    round: int = 0
    """Number of the thief's round; 0: not requested, the tasks were pushed to their data or distributed."""
    settled: int = 0
    """All transfers with lower numbers have been acknowledged: the receiver may forget them."""
    dealt: bool = False
    """The tasks were distributed, not placed by data: peers may steal them."""


class TransferReceivedReply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Acknowledges a transfer."""

    number: int
    load: int = 0


class WorkAvailableEvent(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Informs peers whose steal requests failed that this node has work now."""

    load: int


Message: TypeAlias = LoadRequest | LoadReply | StealRequest | TaskTransfer | TransferReceivedReply | WorkAvailableEvent


class Roster:
    """The nodes of the cluster and their resources, in a form that simulated nodes can share."""

    def __init__(self, ids: Iterable[int], has: Mapping[int, Resources] | None = None) -> None:
        """`has`: resources of each node, labels included, if known."""
        self.ids = list(ids)
        self.known = frozenset(self.ids)
        self._has = has or {}
        self._able: dict[Resources, list[int]] = {}
        self._preferred: dict[tuple[Resources, tuple[str, ...]], list[int]] = {}

    def cores(self, node: int) -> int:
        """Whole cores of a node, at least 1."""
        return max(1, self._has[node].get("cores") // FRACTION) if node in self._has else 1

    def able(self, request: Resources) -> list[int]:
        """Nodes on which such a task could run when nothing else does; empty if their resources are unknown."""
        found = self._able.get(request)
        if found is None:
            has = self._has
            kinds = {id(one): not request.lacking_in(one) for one in {id(one): one for one in has.values()}.values()}
            found = self._able[request] = [node for node in self.ids if node in has and kinds[id(has[node])]]
        return found

    def roomy(self, request: Resources, cramped: Cramped) -> list[int]:
        """Nodes of `able` that may have room for the inputs of such a task; a disk of unknown size counts as large
        enough."""
        disks = {node: self.disk(node) for node in self.able(request) if node not in cramped.tried}
        return [node for node, disk in disks.items() if not disk or disk >= cramped.need]

    def disk(self, node: int) -> int:
        """Disk of a node in bytes; 0 if unknown."""
        return self._has[node].get("disk")

    def largest_disk(self, request: Resources) -> int:
        """Largest disk of the nodes that are able to run such a task."""
        return max(map(self.disk, self.able(request)), default=0)

    def preferred(self, request: Resources, labels: tuple[str, ...]) -> list[int]:
        """Able nodes that carry the largest number of these labels, and at least one."""
        found = self._preferred.get((request, labels))
        if found is None:
            carried = [(sum(1 for label in labels if self._has[node].get(label)), node) for node in self.able(request)]
            most = max((count for count, _ in carried), default=0)
            found = [node for count, node in carried if count == most] if most else []
            self._preferred[request, labels] = found
        return found

    def others(self) -> int:
        """Number of other nodes."""
        return len(self.ids) - 1


class TasksPlaced(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: these tasks are ready, and this scheduler must find a node for each."""

    tickets: list[ReadyTask]
    holdings: list[tuple[tuple[int, int], ...]] = []
    """Per task: locations of its inputs as pairs of node and bytes; empty: none of the tasks reads anything."""
    to: str = ""
    """`all` or a label: tasks without a required node are distributed over all nodes, or those with the label; empty:
    they stay here."""


class PeerMessageReceived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: a message has arrived."""

    peer: int
    message: Message


class PeersChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: the roster has changed; nodes that are no longer listed are lost for good."""

    roster: Roster


class QueueNearlyEmpty(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: fewer tasks are left than there are cores (or no longer so); data does not decide placement any more."""

    is_so: bool = True


class PolicyChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: the policy has changed; queued tasks are not placed again, but released if the new policy releases
    tasks."""

    policy: str


class Send(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: send a message. The tasks of a transfer belong to the peer from then on."""

    peer: int
    message: Message


class Prefetch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: this task will probably start here soon; its inputs may be fetched."""

    task: int


class HandBack(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: this node cannot run the task; the agent that knows all nodes must find another one."""

    ticket: ReadyTask
    lacking: Resources | None = None
    for_room: bool = False
    """The scheduler knows another node: it only needs the task back with a new generation."""


FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
"""Longest interval in seconds before a transfer without acknowledgement is sent again; intervals double up to it."""


class UnacknowledgedTransfer(msgspec.Struct):
    """A transfer that has been sent and not acknowledged."""

    peer: int
    parcel: TaskTransfer
    due: float
    pause: float


class Transfers:
    """Reliable sending and receiving of transfers between one scheduler and its peers."""

    def __init__(self) -> None:
        self.stolen = 0
        """Number of tasks received on request."""
        self.pushed = 0
        """Number of tasks received because their inputs are here."""
        self.unsettled: dict[int, UnacknowledgedTransfer] = {}
        self._last = 0
        self._seen: dict[int, set[int]] = {}
        """By peer: numbers of received transfers that may arrive again."""
        self._floor: dict[int, int] = {}
        """By peer: all transfers with lower numbers have arrived."""

    def wrap(
        self, now: float, peer: int, tickets: list[ReadyTask], load: int, round: int = 0, *, dealt: bool = False
    ) -> TaskTransfer:
        """Creates a transfer that is resent until it is settled."""
        self._last += 1
        oldest = next(iter(self.unsettled), self._last)
        parcel = TaskTransfer(self._last, tickets, load, round, oldest, dealt)
        self.unsettled[self._last] = UnacknowledgedTransfer(peer, parcel, now + FIRST_PAUSE, FIRST_PAUSE)
        return parcel

    def settle(self, number: int) -> None:
        self.unsettled.pop(number, None)

    def is_fresh(self, peer: int, parcel: TaskTransfer) -> bool:
        """Whether the transfer arrives for the first time; records it as received."""
        seen = self._seen.setdefault(peer, set())
        floor = self._floor.get(peer, 0)
        if parcel.number < floor or parcel.number in seen:
            return False
        if parcel.settled > floor:
            self._floor[peer] = parcel.settled
            self._seen[peer] = seen = {number for number in seen if number >= parcel.settled}
        seen.add(parcel.number)
        if parcel.round:
            self.stolen += len(parcel.tickets)
        elif not parcel.dealt:
            self.pushed += len(parcel.tickets)
        return True

    def due(self, now: float) -> list[tuple[int, TaskTransfer]]:
        """Transfers that must be sent again."""
        found = []
        for unsettled in self.unsettled.values():
            if unsettled.due <= now:
                unsettled.pause = min(2 * unsettled.pause, LONGEST_PAUSE)
                unsettled.due = now + unsettled.pause
                found.append((unsettled.peer, unsettled.parcel))
        return found

    def next_due(self) -> float:
        return min((unsettled.due for unsettled in self.unsettled.values()), default=inf)

    def forget_others(self, known: frozenset[int]) -> None:
        """Drops the state of all peers that are not in `known`: they will neither send nor acknowledge anything."""
        self.unsettled = {number: kept for number, kept in self.unsettled.items() if kept.peer in known}
        self._seen = {peer: seen for peer, seen in self._seen.items() if peer in known}
        self._floor = {peer: floor for peer, floor in self._floor.items() if peer in known}
