"""What brokers say to each other. Every message tells how much its sender has to give away.

Only parcels carry tasks, so only they must not be lost: each is sent again until it is answered with
`TransferReceivedReply`, and its number lets the receiver know it again. All other messages may be lost: a question
without an answer is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeAlias

import msgspec

from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler_messages import Cramped

GENERATION_BITS = 16
"""Attempts of a later generation have higher numbers from this bit on, as the stores count them."""


class ReadyTask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task on its way, with what its broker knew of it."""

    task: int
    attempt: int = 0
    """Number of the last attempt; 0: it has never been started."""
    failures: int = 0
    losses: int = 0
    cramped: Cramped | None = None
    """Where it cannot go, because what it reads does not fit there."""

    def is_later_than(self, attempt: int) -> bool:
        """Whether it is of a later generation than this attempt of the same task."""
        return self.attempt >> GENERATION_BITS > attempt >> GENERATION_BITS


class LoadRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """An idle broker asks what there is to take."""

    round: int
    unable: tuple[int, ...] = ()
    """Lanes of which it could start nothing now, as numbered in the beginning: it would only hand their tasks on."""


class LoadReply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    round: int
    load: int


class StealRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """An idle broker asks for its share; the answer is a parcel, an empty one if there is nothing left."""

    round: int
    unable: tuple[int, ...] = ()
    """As in `LoadRequest`."""
    near: tuple[int, ...] = ()
    """Files that it has, not necessarily all of them; none if they are no matter."""


class TaskTransfer(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Tasks that the receiver has from now on."""

    number: int
    """Counts what the sender has sent; 0 for an empty parcel, which nobody needs to acknowledge."""
    tickets: list[ReadyTask]
    load: int = 0
    round: int = 0
    """The thief's round; 0: it was not asked for, the tasks are sent because they belong there or were dealt."""
    settled: int = 0
    """All parcels with lower numbers have been acknowledged: the receiver may forget them."""
    dealt: bool = False
    """The tasks came here because they must go somewhere: whoever is idle may have them."""


class TransferReceivedReply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A parcel has arrived."""

    number: int
    load: int = 0


class WorkAvailableEvent(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """There is something to take here; told to those who went away empty-handed."""

    load: int


Message: TypeAlias = LoadRequest | LoadReply | StealRequest | TaskTransfer | TransferReceivedReply | WorkAvailableEvent


class Roster:
    """All brokers there are, in a form that those of a large simulated cluster can share."""

    def __init__(self, ids: Iterable[int], has: Mapping[int, Resources] | None = None) -> None:
        """`has`: what each of them has, labels included, if that is known."""
        self.ids = list(ids)
        self.known = frozenset(self.ids)
        self._has = has or {}
        self._able: dict[Resources, list[int]] = {}
        self._preferred: dict[tuple[Resources, tuple[str, ...]], list[int]] = {}

    def cores(self, node: int) -> int:
        """Of one of them, at least 1."""
        return max(1, self._has[node].get("cores") // FRACTION) if node in self._has else 1

    def able(self, request: Resources) -> list[int]:
        """Those on which such a task could run when nothing else does; none if it is not known what they have."""
        found = self._able.get(request)
        if found is None:
            has = self._has
            kinds = {id(one): not request.lacking_in(one) for one in {id(one): one for one in has.values()}.values()}
            found = self._able[request] = [node for node in self.ids if node in has and kinds[id(has[node])]]
        return found

    def roomy(self, request: Resources, cramped: Cramped) -> list[int]:
        """Of those that are able, the ones that may have room for what such a task reads; a disk of which nothing is
        known is large enough."""
        disks = {node: self.disk(node) for node in self.able(request) if node not in cramped.tried}
        return [node for node, disk in disks.items() if not disk or disk >= cramped.need]

    def disk(self, node: int) -> int:
        """Bytes; 0 if nothing is known of it."""
        return self._has[node].get("disk")

    def largest_disk(self, request: Resources) -> int:
        """Of those that are able."""
        return max(map(self.disk, self.able(request)), default=0)

    def preferred(self, request: Resources, labels: tuple[str, ...]) -> list[int]:
        """Of those that are able the ones that carry most of these labels, and at least one of them."""
        found = self._preferred.get((request, labels))
        if found is None:
            carried = [(sum(1 for label in labels if self._has[node].get(label)), node) for node in self.able(request)]
            most = max((count for count, _ in carried), default=0)
            found = [node for count, node in carried if count == most] if most else []
            self._preferred[request, labels] = found
        return found

    def others(self) -> int:
        """How many there are beside one of them."""
        return len(self.ids) - 1


class TasksPlaced(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: these tasks are ready, and this broker is to find a node for each."""

    tickets: list[ReadyTask]
    holdings: list[tuple[tuple[int, int], ...]] = []
    """Per ticket: where its inputs are, as pairs of node and bytes; empty: none of the tasks reads anything."""
    to: str = ""
    """`all` or a label: what need not be anywhere is dealt out to all nodes, or those with the label. Else it stays."""


class PeerMessageReceived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: a message has arrived."""

    peer: int
    message: Message


class PeersChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: these are the brokers from now on; those that are not among them any more are gone for good."""

    roster: Roster


class QueueNearlyEmpty(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: less is left to do than there are cores (or that is over): data does not decide any more."""

    is_so: bool = True


class PolicyChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Event: another policy from now on; what is queued is not placed anew, but released if the policy does that."""

    policy: str


class Send(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: send a message. The tickets of a parcel belong to the peer from then on."""

    peer: int
    message: Message


class Prefetch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: this task will probably start here soon; its inputs may be fetched already."""

    task: int


class HandBack(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Command: this node cannot run the task now or ever; whoever knows all nodes is to find another."""

    ticket: ReadyTask
    lacking: Resources | None = None
    for_room: bool = False
    """The broker knows where it may go: it wants the ticket back, of a new generation."""


FIRST_PAUSE = 0.5
LONGEST_PAUSE = 8.0
"""Seconds before a parcel that nobody has acknowledged is sent again; doubling up to the longest."""


class UnacknowledgedTransfer(msgspec.Struct):
    """A parcel that has been sent."""

    peer: int
    parcel: TaskTransfer
    due: float
    pause: float


class Transfers:
    """Both directions of one broker."""

    def __init__(self) -> None:
        self.stolen = 0
        """Tasks that came because they were asked for."""
        self.pushed = 0
        """Tasks that came because what they read is here."""
        self.unsettled: dict[int, UnacknowledgedTransfer] = {}
        self._last = 0
        self._seen: dict[int, set[int]] = {}
        """By peer: numbers of parcels that have arrived and may arrive again."""
        self._floor: dict[int, int] = {}
        """By peer: all parcels with lower numbers have arrived."""

    def wrap(
        self, now: float, peer: int, tickets: list[ReadyTask], load: int, round: int = 0, *, dealt: bool = False
    ) -> TaskTransfer:
        """A parcel that will be repeated until it is settled."""
        self._last += 1
        oldest = next(iter(self.unsettled), self._last)
        parcel = TaskTransfer(self._last, tickets, load, round, oldest, dealt)
        self.unsettled[self._last] = UnacknowledgedTransfer(peer, parcel, now + FIRST_PAUSE, FIRST_PAUSE)
        return parcel

    def settle(self, number: int) -> None:
        self.unsettled.pop(number, None)

    def is_fresh(self, peer: int, parcel: TaskTransfer) -> bool:
        """Whether it arrives for the first time; from then on it does not."""
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
        """What is to be sent again."""
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
        """Nobody but these will send or acknowledge anything any more."""
        self.unsettled = {number: kept for number, kept in self.unsettled.items() if kept.peer in known}
        self._seen = {peer: seen for peer, seen in self._seen.items() if peer in known}
        self._floor = {peer: floor for peer, floor in self._floor.items() if peer in known}
