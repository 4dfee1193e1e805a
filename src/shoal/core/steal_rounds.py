"""Looking for work: the rounds in which an idle broker asks a few others what they have, and the richest for a share.

A round ends with a parcel, or with nobody left to ask. It never stops for good: the time between two rounds grows to a
limit. Peers are asked in turn, in an order drawn anew for each search, so that every one of them has been asked after
`rounds_for_all` rounds: an idle core is not idle for longer than `longest_search` beside a task that it may take.
What is done with a parcel, and when somebody else may take from us, is left to `shoal.core.peer_scheduler`.
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
"""`RetryInterval` stretches an interval by this at most."""


class PeerOrder:
    """The order in which a thief asks its peers: nobody is asked a second time before all others were asked once."""

    def __init__(self, here: int, random: Random) -> None:
        self._here, self._random = here, random
        self._roster: Roster | None = None
        self._at = 0
        self._stride = 1

    def begin_anew(self) -> None:
        """In another order."""
        self._roster = None

    def next(self, roster: Roster, count: int) -> list[int]:
        """The next `count` of the others, of whom there are as many."""
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
    """The thief's side of one broker."""

    def __init__(self, here: int, broker: Scheduler, stealing: Stealing, random: Random) -> None:
        self._here, self._broker, self._stealing, self._random = here, broker, stealing, random
        self._pace = RetryInterval(stealing, random)
        self._walk = PeerOrder(here, random)
        self._round = 0
        self.is_open = False
        """A round is under way."""
        self._asked = 0
        """Answers that are still to come."""
        self._answers: list[tuple[int, int]] = []
        """Load and peer, of those who have something."""
        self.deadline = inf
        self.declined: dict[int, float] = {}
        """When peers that were asked for tasks have given nothing; since there was something to do."""
        self.next_try = 0.0
        self.promising = ANYWHERE
        """A peer that told of a load lately."""
        self._cores_at = broker.contract.names.index("cores")
        needs = [dict(need).get(self._cores_at, 0) for need in broker.contract.needs]
        self._least = min((need for need in needs if need), default=FRACTION)
        self.near: Callable[[], tuple[int, ...]] = tuple
        """The files that we have, if whoever gives us tasks is to know that."""
        self._real_lanes = sum(1 for need in broker.contract.needs if need)
        """Lanes whose tasks ask for something."""
        self._counts_cores = not any(lane.elastic for lane in broker.lanes)
        """Whether free cores are known to be idle: where a throttle decides, tasks that declare none take none."""

    def idle_cores(self) -> int:
        """Cores on which something could start at once; under a throttle, how many tasks could."""
        if self._broker.contract.caps:
            room, lanes = self._broker.contract.room, self._broker.lanes
            return max((room(lane) for lane, made in enumerate(lanes) if made.origin < 0), default=0)
        return max(0, self._broker.contract.free[self._cores_at] // self._least)

    def is_searching(self, roster: Roster) -> bool:
        """Whether there is a free core and nothing here for it, so that rounds follow each other."""
        broker = self._broker
        if not self._stealing.enabled or not roster.others():
            return False
        if broker.draining or broker.awaiting_ready or (broker.queue and not self._counts_cores):
            return False
        if not self.idle_cores() or self._has_work():  # in this order: it is asked for every task that starts or ends
            return False
        return not self._is_unable(self.unable())  # else whatever ends next makes room, if anything can

    def _has_work(self) -> bool:
        """Whether what waits here is enough: it need not be where it is too large for the cores that are left.

        A lane that was passed over too often has them kept, and nobody is asked for what would go before it.
        """
        broker = self._broker
        if not broker.queue or not self._counts_cores:
            return bool(broker.queue)
        fits, lanes = broker.contract.fits, broker.lanes
        return any(fits(lane) or lanes[lane].passed_over >= broker.patience for lane in broker.queue.lanes())

    def _is_unable(self, unable: tuple[int, ...]) -> bool:
        """Whether these are all lanes there are."""
        return bool(unable) and len(unable) == self._real_lanes

    def rounds_for_all(self, others: int) -> int:
        """After so many rounds each of the others has been asked since any given moment: one may be under way then."""
        return -(-others // self._stealing.asked(others)) + 1 if others else 0

    def longest_search(self, others: int) -> float:
        """Seconds after which each of so many others has been asked for tasks, if no message gets lost."""
        stealing = self._stealing
        pause = LONGEST_JITTER * max(stealing.longest_interval, stealing.part_of_task * self._longest_task())
        asking = stealing.patience * (2 + stealing.asked(others))  # all what they have, and each for its share
        return self.rounds_for_all(others) * (pause + asking)

    def _longest_task(self) -> float:
        return max((lane.mean_duration for lane in self._broker.lanes if lane.mean_duration), default=0.0)

    def unable(self) -> tuple[int, ...]:
        """Lanes of which nothing could be started at once; with a single one that goes without saying."""
        fits, lanes = self._broker.contract.fits, self._broker.lanes
        if len(lanes) == 1 and not self._broker.contract.hopeless:
            return ()
        return tuple([lane for lane, made in enumerate(lanes) if made.origin < 0 and not fits(lane)])

    def begin(self, now: float, roster: Roster, commands: list[MemberCommand]) -> None:
        """Nothing waits here, and it is time for a round."""
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
        """Somebody says that there is something to take: a round with nobody else in it."""
        self.promising = peer
        if not self.is_open and not self._has_work() and self.idle_cores() and not self._broker.draining:
            unable = self.unable()
            if self._is_unable(unable):
                return
            self._open(now, 0)
            self.promising = ANYWHERE
            commands.append(Send(peer, StealRequest(self._round, unable, self.near())))

    def _open(self, now: float, asked: int) -> None:
        self._round += 1
        self.is_open = True
        self._asked = asked
        self._answers = []
        self.deadline = now + self._stealing.patience

    def load_told(self, now: float, peer: int, told: LoadReply, commands: list[MemberCommand]) -> None:
        """An answer; the last one decides whom we ask. One of an earlier round is as good: links may be slow."""
        if told.round == self._round and self._asked:
            self._asked -= 1
            if told.load:
                self._answers.append((told.load, peer))
            if not self._asked:
                self.next_victim(now, commands)
        elif told.load and self._asked:
            if all(peer != other for _, other in self._answers):
                self._answers.append((told.load, peer))
        elif told.load:
            self.ask_at_once(now, peer, commands)

    def next_victim(self, now: float, commands: list[MemberCommand]) -> None:
        """Asks the richest of those who have answered for a share; if there is none the round has failed."""
        self._asked = 0
        if self._has_work():  # it has come by another way
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
        """A peer has answered, and gives nothing."""
        self.declined[peer] = now

    def is_answered_by(self, parcel: TaskTransfer) -> bool:
        """Whether this parcel is what we have asked for."""
        return self.is_open and parcel.round == self._round and not self._asked

    def close(self) -> None:
        """The round has brought something."""
        self.is_open = False

    def has_work(self) -> None:
        """There is something to do again: the next search begins quickly."""
        self._pace.reset()
        self._walk.begin_anew()
        self.declined.clear()
        self.next_try = 0.0

    def forget_others(self, known: frozenset[int]) -> None:
        """Nobody but these can be asked any more."""
        self._answers = [(load, peer) for load, peer in self._answers if peer in known]
        self.declined = {peer: when for peer, when in self.declined.items() if peer in known}
        if self.promising not in known:
            self.promising = ANYWHERE
