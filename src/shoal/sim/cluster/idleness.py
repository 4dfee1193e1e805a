"""No core stays idle beside a peer's task that it might run: what the onlooker of a cluster holds members to.

Two rules. At every moment of a run, a member that looks for work has an alarm set for the moment at which it goes on
looking. And where no message gets lost, a member with a free core and empty queues has asked each of its peers within
`Rounds.longest_search`. If one and the same peer had Shared tasks all that time that it would give to this member, the
promise is broken. Seconds are added for links that are slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.broker.member import Member
from shoal.broker.peers import TasksAsked
from shoal.sim.node import Violation

if TYPE_CHECKING:
    from shoal.sim.cluster.faulty import FaultyRun

WAYS = 6
"""Messages that follow each other until a task has come: a question and its answer twice, once more for one that came
when nothing was there, and the word that the peer is there at all."""
ROUNDING = 1e-6


class Idleness:
    """One for each run."""

    def __init__(self, run: FaultyRun) -> None:
        self.run = run
        self._idle: dict[int, tuple[float, tuple[int, ...]]] = {}
        """By node that looks for work: since when, and what it can start nothing of all that time."""
        self._rich: dict[int, dict[int, float]] = {}
        """By node and lane of its Shared tasks: since when there are some."""
        self.longest = 0.0
        """The largest part of what is allowed that a member has been idle beside a task."""

    def after(self, node: int) -> None:
        """A member has heard something, and what it said has been done."""
        member, now = self.run.members.get(node), self.run.now
        if member is None:
            self._idle.pop(node, None)
            self._rich.pop(node, None)
            return
        if member.rounds.is_searching(member.roster):
            unable = member.rounds.unable()
            if node not in self._idle or self._idle[node][1] != unable:
                self._idle[node] = now, unable
            self._expect_alarm(node, member)
        else:
            self._idle.pop(node, None)
        origin, before = member.broker.origin, self._rich.get(node, {})
        lanes = {origin(lane) for lane in member.tiers.shared.lanes()}
        self._rich[node] = {lane: before.get(lane, now) for lane in lanes}

    def _expect_alarm(self, node: int, member: Member) -> None:
        rounds, alarm = member.rounds, self.run.alarms[node]
        goes_on = rounds.deadline if rounds.is_open else rounds.next_try
        if alarm.when > max(goes_on, self.run.now) + ROUNDING:
            raise Violation(f"node {node} looks for work until {goes_on:g} and is woken at {alarm.when:g}")

    def look_around(self, since: float) -> None:
        """From the moment `since` on nothing goes wrong any more."""
        for node, (idle, unable) in self._idle.items():
            if node in self.run.known and node in self.run.members:
                self._look_at(node, max(idle, since), unable)

    def _look_at(self, node: int, since: float, unable: tuple[int, ...]) -> None:
        run, member = self.run, self.run.members[node]
        others = sum(1 for other in run.known if other != node)
        allowed = member.rounds.longest_search(others) + WAYS * run.spec.latency
        if run.now - since <= allowed * self.longest:
            return
        asked = TasksAsked(0, unable, member.rounds.near())
        for other in run.known:
            if other == node or other not in run.members:
                continue
            broker, rich = run.members[other].broker, self._rich.get(other, {})
            lanes = {broker.origin(broker.columns.lane[task]) for task in run.members[other].chosen_for(node, asked)}
            beside = max((run.now - max(since, rich[lane]) for lane in lanes if lane in rich), default=0.0)
            self.longest = max(self.longest, beside / allowed)
            if beside > allowed:
                raise Violation(
                    f"node {node} has been idle for {beside:g} s beside tasks that node {other} would give to it;"
                    f" {allowed:g} s are allowed"
                )
