"""Faults of a simulated run: which kinds exist, how often they strike, and until when.

Swarm testing: each seed switches a random half of the kinds on and draws their rates, because faults hide each other:
in a run where every worker dies, nothing ever hangs.
"""

from __future__ import annotations

from random import Random

import msgspec

from shoal.policy.retry import Outcome


class FaultMix(msgspec.Struct, frozen=True):
    """Probabilities per attempt or per result, and rates per virtual second; 0 switches a kind off."""

    fails: float = 0.0
    crashes: float = 0.0
    hangs: float = 0.0
    """A hanging attempt ends at its timeout."""
    losses: float = 0.0
    """The attempt comes back as lost, through no fault of its own."""
    stubborn: float = 0.0
    """Share of tasks whose first one or two attempts always fail."""
    duplicates: float = 0.0
    """Results that are reported twice, in the same batch or later."""
    echoes: float = 0.0
    """Attempts that ended badly, for which word of success comes later: it must change nothing."""
    slow_kills: float = 0.0
    """Kills that come too late: the attempt ends as it would have."""
    worker_losses: float = 0.0
    capacity_changes: float = 0.0
    cancels: float = 0.0
    drains: float = 0.0
    final_drain: float = 0.0
    """Chance that a drain is never ended: the disk stays full and the run stops with tasks queued."""
    until: float = 0.0
    """From this time on nothing goes wrong any more; what is left must finish."""


CALM = FaultMix()

_LARGEST = {
    "fails": 0.25,
    "crashes": 0.15,
    "hangs": 0.15,
    "losses": 0.5,
    "stubborn": 0.5,
    "duplicates": 0.5,
    "echoes": 0.5,
    "slow_kills": 0.5,
}
_MOST_PER_RUN = {"worker_losses": 20.0, "capacity_changes": 12.0, "cancels": 6.0, "drains": 3.0}


def swarm(random: Random, horizon: float) -> FaultMix:
    """A mix for a run that would take about `horizon` seconds without faults."""
    chosen = {name: random.uniform(0.02, most) if random.random() < 0.5 else 0.0 for name, most in _LARGEST.items()}
    for name, most in _MOST_PER_RUN.items():
        chosen[name] = random.uniform(0.5, most) / horizon if random.random() < 0.4 else 0.0
    chosen["final_drain"] = random.choice((0.0, 0.0, 0.5))
    return FaultMix(**chosen, until=random.uniform(0.5, 3.0) * horizon)


class Fate(msgspec.Struct, frozen=True):
    """How an attempt is going to end if nothing interferes, and after how long."""

    outcome: Outcome
    seconds: float


class Fates:
    """Draws the fate of every attempt."""

    def __init__(self, random: Random, mix: FaultMix, tasks: int) -> None:
        self.random = random
        self.mix = mix
        self.stubborn = [random.randint(1, 2) if random.random() < mix.stubborn else 0 for _ in range(tasks)]

    def draw(self, task: int, attempt: int, seconds: float, timeout: float | None) -> Fate:
        mix, random = self.mix, self.random
        if mix is CALM:
            return Fate(Outcome.OK, seconds)
        if attempt <= self.stubborn[task]:
            return Fate(Outcome.FAILED, seconds)
        ends_early = seconds * random.random()
        if random.random() < mix.fails:
            return Fate(Outcome.FAILED, ends_early)
        if random.random() < mix.crashes:
            return Fate(Outcome.CRASHED, ends_early)
        if timeout is not None and random.random() < mix.hangs:
            return Fate(Outcome.TIMEOUT, timeout)
        if random.random() < mix.losses:
            return Fate(Outcome.LOST, ends_early)
        return Fate(Outcome.OK, seconds)
