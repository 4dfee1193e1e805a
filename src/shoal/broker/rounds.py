"""Looking for work: the rounds in which an idle broker asks a few others what they have, and the richest for a share.

A round ends with a parcel, or with nobody left to ask. It never stops for good: the time between two rounds grows to a
limit. What is done with a parcel, and when somebody else may take from us, is left to `shoal.broker.member`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING

from shoal.broker.broker import Broker
from shoal.broker.peers import LoadAsked, LoadTold, Parcel, Roster, Send, TasksAsked
from shoal.model.resources import FRACTION
from shoal.policy.balance import Pace, Stealing
from shoal.policy.placement import ANYWHERE

if TYPE_CHECKING:
    from shoal.broker.member import MemberCommand


class Rounds:
    """The thief's side of one broker."""

    def __init__(self, here: int, broker: Broker, stealing: Stealing, random: Random) -> None:
        self._here, self._broker, self._stealing, self._random = here, broker, stealing, random
        self._pace = Pace(stealing, random)
        self._round = 0
        self.is_open = False
        """A round is under way."""
        self._asked = 0
        """Answers that are still to come."""
        self._answers: list[tuple[int, int]] = []
        """Load and peer, of those who have something."""
        self.deadline = inf
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

    def idle_cores(self) -> int:
        """Cores on which something could start at once; under a throttle, how many tasks could."""
        if self._broker.contract.caps:
            room, lanes = self._broker.contract.room, self._broker.lanes
            return max((room(lane) for lane, made in enumerate(lanes) if made.origin < 0), default=0)
        return max(0, self._broker.contract.free[self._cores_at] // self._least)

    def _unable(self) -> tuple[int, ...]:
        """Lanes of which nothing could be started at once; with a single one that goes without saying."""
        fits, lanes = self._broker.contract.fits, self._broker.lanes
        if len(lanes) == 1 and not self._broker.contract.hopeless:
            return ()
        return tuple([lane for lane, made in enumerate(lanes) if made.origin < 0 and not fits(lane)])

    def begin(self, now: float, roster: Roster, commands: list[MemberCommand]) -> None:
        """Nothing waits here, and it is time for a round."""
        if not self._stealing.enabled or not roster.others():
            return
        broker = self._broker
        if broker.draining or broker.awaiting_ready or broker.queue or not self.idle_cores():
            return
        unable = self._unable()
        if unable and len(unable) == self._real_lanes:
            return  # whatever ends next makes room, if anything can
        asked = roster.sample(self._random, self._here, self._stealing.asked(roster.others()))
        if self.promising != ANYWHERE and self.promising not in asked:
            asked[0] = self.promising
        self.promising = ANYWHERE
        self._open(now, len(asked))
        question = LoadAsked(self._round, unable)
        for peer in asked:
            commands.append(Send(peer, question))

    def ask_at_once(self, now: float, peer: int, commands: list[MemberCommand]) -> None:
        """Somebody says that there is something to take: a round with nobody else in it."""
        self.promising = peer
        if not self.is_open and not self._broker.queue and self.idle_cores() and not self._broker.draining:
            unable = self._unable()
            if unable and len(unable) == self._real_lanes:
                return
            self._open(now, 0)
            self.promising = ANYWHERE
            commands.append(Send(peer, TasksAsked(self._round, unable, self.near())))

    def _open(self, now: float, asked: int) -> None:
        self._round += 1
        self.is_open = True
        self._asked = asked
        self._answers = []
        self.deadline = now + self._stealing.patience

    def load_told(self, now: float, peer: int, told: LoadTold, commands: list[MemberCommand]) -> None:
        """An answer; the last one decides whom we ask."""
        if told.round == self._round and self._asked:
            self._asked -= 1
            if told.load:
                self._answers.append((told.load, peer))
            if not self._asked:
                self.next_victim(now, commands)
        elif told.load:
            self.promising = peer

    def next_victim(self, now: float, commands: list[MemberCommand]) -> None:
        """Asks the richest of those who have answered for a share; if there is none the round has failed."""
        self._asked = 0
        if self._broker.queue:  # something has come by another way
            self.is_open = False
            return
        if self._answers:
            best = max(self._answers)
            self._answers.remove(best)
            self.deadline = now + self._stealing.patience
            commands.append(Send(best[1], TasksAsked(self._round, self._unable(), self.near())))
            return
        self.is_open = False
        longest = max((lane.mean_duration for lane in self._broker.lanes if lane.mean_duration), default=0.0)
        self.next_try = now + self._pace.next(longest)

    def is_answered_by(self, parcel: Parcel) -> bool:
        """Whether this parcel is what we have asked for."""
        return self.is_open and parcel.round == self._round and not self._asked

    def close(self) -> None:
        """The round has brought something."""
        self.is_open = False

    def has_work(self) -> None:
        """There is something to do again: the next search begins quickly."""
        self._pace.reset()
        self.next_try = 0.0

    def forget_others(self, known: frozenset[int]) -> None:
        """Nobody but these can be asked any more."""
        self._answers = [(load, peer) for load, peer in self._answers if peer in known]
        if self.promising not in known:
            self.promising = ANYWHERE
