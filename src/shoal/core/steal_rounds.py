"""Work stealing from the thief's side: rounds in which an idle scheduler asks peers for their load, then for tasks.

A round ends with a transfer of tasks, or when no asked peer has any. Rounds never stop for good: the interval between
them grows up to a limit. Peers are asked in a random order that is drawn again for each search, so every peer is asked
within `rounds_for_all` rounds. An idle core is therefore idle for at most `longest_search` while a task that it could
run waits elsewhere. `shoal.core.peer_scheduler` processes received tasks and requests from peers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, inf
from random import Random
from typing import TYPE_CHECKING

from shoal.core.peer_messages import LoadReply, LoadRequest, Roster, Send, StealRequest, TaskTransfer
from shoal.core.policies.placement import ANYWHERE
from shoal.core.policies.stealing import RetryInterval, Stealing
from shoal.core.resources import FRACTION
from shoal.core.scheduler import Scheduler

if TYPE_CHECKING:
    from shoal.core.peer_scheduler import MemberCommand


LONGEST_JITTER = 1.5
"""Largest factor by which `RetryInterval` stretches an interval."""


class PeerOrder:
    """Random order of requests to peers: no peer is asked twice before all others were asked once."""

    def __init__(self, here: int, random: Random) -> None:
        self._here, self._random = here, random
        self._roster: Roster | None = None
        self._at = 0
        self._stride = 1

    def begin_anew(self) -> None:
        """Draws a new order."""
        self._roster = None

    def next(self, roster: Roster, count: int) -> list[int]:
        """The next `count` peers; there must be as many."""
        ids, size = roster.ids, len(roster.ids)
        if roster is not self._roster:
            self._roster = roster
            self._at = int(self._random.random() * size)
            self._stride = 1 + int(self._random.random() * (size - 1))
            while gcd(self._stride, size) != 1:  # else some would never be reached
                self._stride = 1 + int(self._random.random() * (size - 1))
        found: list[int] = []
        while len(found) < count:
            peer = ids[self._at]
            self._at = (self._at + self._stride) % size
            if peer != self._here:
                found.append(peer)
        return found


class StealRounds:
    """The thief's side of one scheduler."""

    def __init__(self, here: int, scheduler: Scheduler, stealing: Stealing, random: Random) -> None:
        self._here, self._scheduler, self._stealing, self._random = here, scheduler, stealing, random
        self._pace = RetryInterval(stealing, random)
        self._walk = PeerOrder(here, random)
        self._round = 0
        self.is_open = False
        """Whether a round is in progress."""
        self._outstanding = 0
        """Number of outstanding replies."""
        self._answers: list[tuple[int, int]] = []
        """Load and peer of the replies with a load above 0."""
        self.deadline = inf
        self.declined: dict[int, float] = {}
        """By peer: when it last declined a steal request; cleared when this node has work."""
        self.next_try = 0.0
        self.promising = ANYWHERE
        """A peer that recently reported a load."""
        self._cores_at = scheduler.contract.names.index("cores")
        needs = [dict(need).get(self._cores_at, 0) for need in scheduler.contract.needs]
        self._least = min((need for need in needs if need), default=FRACTION)
        self.near: Callable[[], tuple[int, ...]] = tuple
        """Files of this node for steal requests; empty if files play no role."""
        self._real_lanes = sum(1 for need in scheduler.contract.needs if need)
        """Number of lanes whose tasks need resources."""
        self._counts_cores = not any(lane.elastic for lane in scheduler.lanes)
        """Whether a free core is really idle; under a throttle, tasks without declared cores do not allocate any."""

    def idle_cores(self) -> int:
        """Number of cores on which a task could start immediately; under a throttle, the number of tasks."""
        if self._scheduler.contract.caps:
            room, lanes = self._scheduler.contract.room, self._scheduler.lanes
            return max((room(lane) for lane, made in enumerate(lanes) if made.origin < 0), default=0)
        return max(0, self._scheduler.contract.free[self._cores_at] // self._least)

    def is_searching(self, roster: Roster) -> bool:
        """Whether a core is free and no task waits for it here, so that rounds continue."""
        scheduler = self._scheduler
        if not self._stealing.enabled or not roster.others():
            return False
        if scheduler.draining or scheduler.awaiting_ready or (scheduler.queue and not self._counts_cores):
            return False
        if not self.idle_cores() or self._has_work():  # cheap test first: runs at every start and end of a task
            return False
        return not self._is_unable(self.unable())  # otherwise the next task that ends makes room, if any can

    def _has_work(self) -> bool:
        """Whether the queued tasks suffice; not if they are too large for the free cores.

        If a lane was passed over too often, cores are kept back for it, and tasks from peers could not use them either.
        """
        scheduler = self._scheduler
        if not scheduler.queue or not self._counts_cores:
            return bool(scheduler.queue)
        fits, lanes = scheduler.contract.fits, scheduler.lanes
        return any(fits(lane) or lanes[lane].passed_over >= scheduler.patience for lane in scheduler.queue.lanes())

    def _is_unable(self, unable: tuple[int, ...]) -> bool:
        """Whether these are all lanes."""
        return bool(unable) and len(unable) == self._real_lanes

    def rounds_for_all(self, others: int) -> int:
        """Number of rounds within which every peer is asked, counted from any moment: one round may be in progress
        then."""
        return -(-others // self._stealing.asked(others)) + 1 if others else 0

    def longest_search(self, others: int) -> float:
        """Seconds within which each of `others` peers is asked for tasks, if no message is lost."""
        stealing = self._stealing
        pause = LONGEST_JITTER * max(stealing.longest_interval, stealing.part_of_task * self._longest_task())
        waiting = stealing.patience * (2 + stealing.asked(others))  # one wait for the loads, one for each steal request
        return self.rounds_for_all(others) * (pause + waiting)

    def _longest_task(self) -> float:
        return max((lane.mean_duration for lane in self._scheduler.lanes if lane.mean_duration), default=0.0)

    def unable(self) -> tuple[int, ...]:
        """Lanes of which no task could start now; empty if there is only one lane."""
        fits, lanes = self._scheduler.contract.fits, self._scheduler.lanes
        if len(lanes) == 1 and not self._scheduler.contract.hopeless:
            return ()
        return tuple([lane for lane, made in enumerate(lanes) if made.origin < 0 and not fits(lane)])

    def begin(self, now: float, roster: Roster, commands: list[MemberCommand]) -> None:
        """Opens a round if it is due."""
        if not self.is_searching(roster):
            return
        unable = self.unable()
        asked = self._walk.next(roster, self._stealing.asked(roster.others()))
        if self.promising != ANYWHERE and self.promising not in asked:
            asked.append(self.promising)
        self.promising = ANYWHERE
        self._open(now, len(asked))
        question = LoadRequest(self._round, unable)
        for peer in asked:
            commands.append(Send(peer, question))

    def ask_at_once(self, now: float, peer: int, commands: list[MemberCommand]) -> None:
        """Opens a round with a single peer that has reported work."""
        self.promising = peer
        if not self.is_open and not self._has_work() and self.idle_cores() and not self._scheduler.draining:
            unable = self.unable()
            if self._is_unable(unable):
                return
            self._open(now, 0)
            self.promising = ANYWHERE
            commands.append(Send(peer, StealRequest(self._round, unable, self.near())))

    def _open(self, now: float, asked: int) -> None:
        self._round += 1
        self.is_open = True
        self._outstanding = asked
        self._answers = []
        self.deadline = now + self._stealing.patience

    def on_load_reply(self, now: float, peer: int, reply: LoadReply, commands: list[MemberCommand]) -> None:
        """Processes a load reply; the last one selects the victim. Late replies of earlier rounds count, too."""
        if reply.round == self._round and self._outstanding:
            self._outstanding -= 1
            if reply.load:
                self._answers.append((reply.load, peer))
            if not self._outstanding:
                self.next_victim(now, commands)
        elif reply.load and self._outstanding:
            if all(peer != other for _, other in self._answers):
                self._answers.append((reply.load, peer))
        elif reply.load:
            self.ask_at_once(now, peer, commands)

    def next_victim(self, now: float, commands: list[MemberCommand]) -> None:
        """Sends a steal request to the peer with the largest load; if none is left, the round has failed."""
        self._outstanding = 0
        if self._has_work():  # it has arrived in another way
            self.is_open = False
            return
        if self._answers:
            best = max(self._answers)
            self._answers.remove(best)
            self.deadline = now + self._stealing.patience
            commands.append(Send(best[1], StealRequest(self._round, self.unable(), self.near())))
            return
        self.is_open = False
        self.next_try = now + self._pace.next(self._longest_task())

    def has_declined(self, now: float, peer: int) -> None:
        """Records that a peer has replied without tasks."""
        self.declined[peer] = now

    def is_answered_by(self, parcel: TaskTransfer) -> bool:
        """Whether this transfer is the reply to the current steal request."""
        return self.is_open and parcel.round == self._round and not self._outstanding

    def close(self) -> None:
        """Ends a successful round."""
        self.is_open = False

    def has_work(self) -> None:
        """Resets the search: the next one begins with the shortest interval."""
        self._pace.reset()
        self._walk.begin_anew()
        self.declined.clear()
        self.next_try = 0.0

    def forget_others(self, known: frozenset[int]) -> None:
        """Drops peers that are not in `known`."""
        self._answers = [(load, peer) for load, peer in self._answers if peer in known]
        self.declined = {peer: when for peer, when in self.declined.items() if peer in known}
        if self.promising not in known:
            self.promising = ANYWHERE
