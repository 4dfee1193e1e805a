"""Runs controllers against the modelled node as a driver would live: samples, endings, periods, caps.

What there is to run never ends unless the scenario says so. The controller sees what a node can sense, with noise; what
is kept of a run is the work that was really done, which it cannot see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from shoal.policy.throttle.controller import Controller, Verdict
from shoal.policy.throttle.readings import SAMPLE_SECONDS, Sample
from shoal.policy.throttle.throttle import Throttle
from shoal.sim.throttle.node import FluidNode
from shoal.sim.throttle.scenario import LIMIT, Party, Scenario

SAMPLES = 8
"""In a control period."""
ENDLESS = 1_000_000


class Step(msgspec.Struct, frozen=True):
    """One control period as it was."""

    caps: Sequence[int]
    """Per kind what was allowed in this period."""
    work: Sequence[float]
    """Per kind the work done, in seconds of undisturbed tasks per second."""
    running: Sequence[float]
    """Per kind how many were under way in the end."""
    completed: Sequence[int]
    verdicts: Sequence[Verdict | None]
    """Per kind what the controller said at the beginning of the period."""


class _Seat:
    """A party at work."""

    def __init__(self, party: Party, controller: Controller) -> None:
        self.party = party
        self.throttle = Throttle(controller)


class Play:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, make: Callable[[], Controller], seed: int) -> None:
        self.scenario = scenario
        self.random = Random(f"{scenario.name} {seed}")
        self.node = FluidNode(scenario.kinds, scenario.supplies, Random(f"tasks {scenario.name} {seed}"))
        count = len(scenario.kinds)
        self.names = [kind.name for kind in scenario.kinds]
        self.left = [scenario.amounts.get(name, ENDLESS) for name in self.names]
        self.caps = [0] * count
        self.verdicts: list[Verdict | None] = [None] * count
        self.completed = [0] * count
        parties = scenario.parties or (Party(tuple(range(count))),)
        self.seats = [_Seat(party, make()) for party in parties]
        self._seat_of = {kind: seat for seat in self.seats for kind in seat.party.kinds}
        self._before = [dict(used) for used in self.node.used]

    def execute(self) -> list[Step]:
        steps = []
        changes = dict(self.scenario.changes)
        for period in range(self.scenario.periods):
            if period in changes:
                self.node.supply(changes[period])
            for seat in self.seats:
                if period >= seat.party.begins:
                    self._decide(seat)
            steps.append(self._live(period))
        return steps

    def _decide(self, seat: _Seat) -> None:
        kinds = [kind for kind in seat.party.kinds if self.left[kind] or self.node.running[kind]]
        waiting = {self.names[kind]: self.left[kind] for kind in kinds}
        limits = {self.names[kind]: self.scenario.limits.get(self.names[kind], LIMIT) for kind in kinds}
        verdicts = seat.throttle.decide(self.node.now, waiting, limits)
        for kind in kinds:
            verdict = self.verdicts[kind] = verdicts[self.names[kind]]
            cap = verdict.cap if verdict.cap is not None else LIMIT
            self.caps[kind] = min(cap, limits[self.names[kind]])
            self._fill(kind)

    def _fill(self, kind: int) -> None:
        while self.node.running[kind] < self.caps[kind] and self.left[kind]:
            self.left[kind] -= 1
            self.node.start(kind)

    def _live(self, period: int) -> Step:
        node = self.node
        work, caps, begin = list(node.work), list(self.caps), node.now
        completed = list(self.completed)
        for number in range(SAMPLES):
            until = begin + (number + 1) * SAMPLE_SECONDS
            while True:
                ended = node.advance(until)
                if not ended:
                    break
                for one in ended:
                    self.completed[one.kind] += 1
                    self._seat_of[one.kind].throttle.ended(node.now, self.names[one.kind], one.seconds)
                    self._fill(one.kind)
            for seat in self.seats:
                if period >= seat.party.begins:
                    seat.throttle.sample(node.now, self._sense(seat.party))
            self._before = [dict(used) for used in node.used]
        seconds = node.now - begin
        done = [(after - before) / seconds for before, after in zip(work, node.work, strict=True)]
        more = [after - before for before, after in zip(completed, self.completed, strict=True)]
        return Step(caps, done, list(node.running), more, list(self.verdicts))

    def _sense(self, party: Party) -> Sample:
        seen = {}
        for name in ("cpu", "disk", "network"):
            share = 0.0
            if name in self.node.supplies and not self.node.supplies[name].outside:
                used = sum(self.node.used[kind][name] - self._before[kind][name] for kind in party.kinds)
                share = used / SAMPLE_SECONDS
            seen[name] = min(1.0, max(0.0, share + self.random.gauss(0.0, self.scenario.noise)))
        running = {self.names[kind]: self.node.running[kind] for kind in party.kinds}
        return Sample(user=seen["cpu"], disk=seen["disk"], network=seen["network"], running=running)
