"""Faults of a simulated cluster: which kinds exist, how often they strike, and until when.

Swarm testing, as for one node (`shoal.sim.faults`): each seed switches some kinds on and draws their rates, because
faults hide each other. What a fault does to a run is left to `shoal.sim.cluster.strikes`.
"""

from __future__ import annotations

from random import Random

import msgspec

from shoal.policy.retry import Outcome


class ClusterFaults(msgspec.Struct, frozen=True):
    """Probabilities per message, attempt or result, and rates per virtual second; 0 switches a kind off."""

    loses: float = 0.0
    """Messages between brokers that never arrive."""
    doubles: float = 0.0
    """Messages that arrive twice."""
    delays: float = 0.0
    """Messages that take much longer than others, so that later ones overtake them."""
    fails: float = 0.0
    attempts_lost: float = 0.0
    """Attempts that come back as lost, through no fault of their own."""
    echoes: float = 0.0
    """Results that are reported a second time, later."""
    slow_kills: float = 0.0
    deaths: float = 0.0
    """A node dies; it is noticed after a lease."""
    suspicions: float = 0.0
    """A node is declared dead although it lives, and goes on for a while."""
    slow_nodes: float = 0.0
    outages: float = 0.0
    """The store does not answer for a while."""
    full_disks: float = 0.0
    stays_full: float = 0.0
    """Chance that a full disk stays full until the end of the run."""
    capacity_changes: float = 0.0
    cancels: float = 0.0
    policy_changes: float = 0.0
    stalls: float = 0.0
    """The loop of a node is busy for a while: what comes meanwhile is taken together, messages before timers."""
    lease: float = 0.5
    """Seconds after which a silent node is declared dead."""
    until: float = 0.0
    """From this time on nothing goes wrong any more; what is left must finish."""


CALM = ClusterFaults()
STRIKES = (
    *("deaths", "suspicions", "slow_nodes", "outages", "full_disks", "capacity_changes", "cancels"),
    *("policy_changes", "stalls"),
)
"""The kinds that strike at a moment of their own."""

_LARGEST = {
    "loses": 0.3,
    "doubles": 0.3,
    "delays": 0.3,
    "fails": 0.25,
    "attempts_lost": 0.3,
    "echoes": 0.5,
    "slow_kills": 0.5,
}
_MOST_PER_RUN = {
    "deaths": 6.0,
    "suspicions": 4.0,
    "slow_nodes": 4.0,
    "outages": 3.0,
    "full_disks": 3.0,
    "capacity_changes": 6.0,
    "cancels": 4.0,
    "policy_changes": 3.0,
}


def swarm(random: Random, horizon: float) -> ClusterFaults:
    """A mix for a run that would take about `horizon` seconds without faults."""
    chosen = {name: random.uniform(0.02, most) if random.random() < 0.5 else 0.0 for name, most in _LARGEST.items()}
    for name, most in _MOST_PER_RUN.items():
        chosen[name] = random.uniform(0.5, most) / horizon if random.random() < 0.4 else 0.0
    return ClusterFaults(
        **chosen,
        stays_full=random.choice((0.0, 0.5)),
        lease=random.uniform(0.1, 1.0),
        until=random.uniform(0.5, 3.0) * horizon,
    )


def fate(random: Random, mix: ClusterFaults) -> Outcome:
    """How an attempt ends if nothing interferes."""
    if mix.fails and random.random() < mix.fails:
        return random.choice((Outcome.FAILED, Outcome.CRASHED))
    if mix.attempts_lost and random.random() < mix.attempts_lost:
        return Outcome.LOST
    return Outcome.OK
