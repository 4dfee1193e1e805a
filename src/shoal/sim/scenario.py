"""Random scenarios for one node: a graph, a node, a queue order, task durations and a mix of faults, all from one
seed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random

import msgspec

from shoal.core.graph import Graph, ranks, upward_lengths
from shoal.core.policies.order import ORDERS, TaskColumns
from shoal.core.policies.retry import AttemptOutcome
from shoal.core.policies.sizing.adviser import SIZED, Amounts, ResourceSizer, SizeAdviser
from shoal.core.policies.sizing.undeclared import new_part, open_resources
from shoal.core.resources import FRACTION, Resources
from shoal.core.scheduler import PASSED_OVER_LIMIT, Lane
from shoal.core.task import Profile
from shoal.sim.synthetic_graphs import CATEGORIES, SHAPES, Profiles, several_lanes


class FaultMix(msgspec.Struct, frozen=True):
    """Fault probabilities per attempt or result, and fault rates per virtual second; 0 disables a kind of fault."""

    fails: float = 0.0
    crashes: float = 0.0
    hangs: float = 0.0
    """A hanging attempt ends at its timeout."""
    losses: float = 0.0
    """The attempt is lost for a reason outside the task."""
    stubborn: float = 0.0
    """Fraction of tasks whose first one or two attempts always fail."""
    duplicates: float = 0.0
    """Results that are reported twice, in the same batch or later."""
    echoes: float = 0.0
    """Failed attempts for which a late success report follows: it must have no effect."""
    slow_kills: float = 0.0
    """Kills that come too late: the attempt ends as it would have without."""
    worker_losses: float = 0.0
    capacity_changes: float = 0.0
    cancels: float = 0.0
    drains: float = 0.0
    final_drain: float = 0.0
    """Probability that a drain never ends: the disk stays full and the run stops with queued tasks."""
    until: float = 0.0
    """No faults occur after this time, and all remaining tasks must finish."""


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
    """Draws a fault mix for a run of about `horizon` seconds without faults. Each kind of fault is left out at random,
    so that rare combinations occur (swarm testing)."""
    chosen = {name: random.uniform(0.02, most) if random.random() < 0.5 else 0.0 for name, most in _LARGEST.items()}
    for name, most in _MOST_PER_RUN.items():
        chosen[name] = random.uniform(0.5, most) / horizon if random.random() < 0.4 else 0.0
    chosen["final_drain"] = random.choice((0.0, 0.0, 0.5))
    return FaultMix(**chosen, until=random.uniform(0.5, 3.0) * horizon)


class PlannedOutcome(msgspec.Struct, frozen=True):
    """Planned outcome and duration of an attempt, unless it is killed before."""

    outcome: AttemptOutcome
    seconds: float


class OutcomeSampler:
    """Draws the planned outcome of every attempt."""

    def __init__(self, random: Random, mix: FaultMix, tasks: int) -> None:
        self.random = random
        self.mix = mix
        self.stubborn = [random.randint(1, 2) if random.random() < mix.stubborn else 0 for _ in range(tasks)]

    def draw(self, task: int, attempt: int, seconds: float, timeout: float | None) -> PlannedOutcome:
        mix, random = self.mix, self.random
        if mix is CALM:
            return PlannedOutcome(AttemptOutcome.OK, seconds)
        if attempt <= self.stubborn[task]:
            return PlannedOutcome(AttemptOutcome.FAILED, seconds)
        ends_early = seconds * random.random()
        if random.random() < mix.fails:
            return PlannedOutcome(AttemptOutcome.FAILED, ends_early)
        if random.random() < mix.crashes:
            return PlannedOutcome(AttemptOutcome.CRASHED, ends_early)
        if timeout is not None and random.random() < mix.hangs:
            return PlannedOutcome(AttemptOutcome.TIMEOUT, timeout)
        if random.random() < mix.losses:
            return PlannedOutcome(AttemptOutcome.LOST, ends_early)
        return PlannedOutcome(AttemptOutcome.OK, seconds)


ONE_IN_THROTTLED = 4
"""One in this number of seeds has a throttle that limits concurrency."""


class SimulationScenario(msgspec.Struct):
    """The complete input of a simulated run."""

    seed: int
    graph: Graph
    node: Resources
    durations: list[float]
    order: str = "fifo"
    faults: FaultMix = CALM
    bundled: bool = False
    """Tasks are calls: several short ones may start as one batch."""
    announces: bool = True
    """The driver reports ready tasks together with the results, as the live engine does; otherwise a little later."""
    input_bytes: list[int] = []
    patience: int = PASSED_OVER_LIMIT
    peaks: list[Amounts] = []
    """Peak use of each resource in `SIZED`, by task. It is not declared, so the scheduler learns it. Empty: no
    learning."""
    throttled: bool = False
    """The limits of categories change at random as long as there are faults."""

    def columns(self) -> TaskColumns:
        graph = self.graph
        lanes = array("i", graph.profile)  # a copy: tasks that exceed their size change lanes
        return TaskColumns(lanes, ranks(graph), self.input_bytes, upward_lengths(graph, self.durations))

    def lanes(self) -> list[Lane]:
        return [
            Lane(
                profile.resources,
                profile.retries,
                self.bundled,
                adviser=self._adviser(profile),
                cap=profile.category if self.throttled else "",
            )
            for profile in self.graph.profiles
        ]

    def learned(self) -> list[tuple[str, ...]]:
        """The resources of each profile that are not declared and therefore learned."""
        if not self.peaks:
            return [()] * len(self.graph.profiles)
        return [tuple(open_resources(profile, self.node)) for profile in self.graph.profiles]

    def _adviser(self, profile: Profile) -> SizeAdviser | None:
        names = open_resources(profile, self.node) if self.peaks else []
        parts: dict[str, ResourceSizer] = {name: new_part(name, self.node.get(name)) for name in names}
        return SizeAdviser(self.node, profile.resources.get("cores"), parts) if parts else None


def draw_scenario(seed: int) -> SimulationScenario:
    """Draws the scenario of a seed. Scenarios are small, so that thousands of them can be simulated."""
    random = Random(2 * seed)
    node = _draw_node(random)
    bundled = random.random() < 0.25
    draw_seconds = _draw_durations(random, bundled)
    graph = SHAPES[random.choice(list(SHAPES))](random, random.randint(5, 60), _draw_profiles(random, node, bundled))
    durations = [draw_seconds() for _ in range(len(graph))]
    work = sum(durations) / (node.get("cores") / FRACTION)
    node, peaks = _draw_peaks(Random(3 * seed), node, len(graph)) if not bundled else (node, [])
    order = random.choice(list(ORDERS))
    faults = swarm(random, work) if random.random() < 0.95 else CALM
    return SimulationScenario(
        seed,
        graph,
        node,
        durations,
        order=order,
        faults=faults,
        bundled=bundled,
        announces=random.random() < 0.7,
        input_bytes=[random.randrange(1000) for _ in range(len(graph))],
        patience=random.choice((2, 5, PASSED_OVER_LIMIT)),
        peaks=peaks,
        throttled=seed % ONE_IN_THROTTLED == 2,
    )


def _draw_peaks(random: Random, node: Resources, tasks: int) -> tuple[Resources, list[Amounts]]:
    """Draws heavy-tailed peaks, some above the node's capacity; the returned node may have a disk for them."""
    if random.random() < 0.5:
        return node, []
    if random.random() < 0.5:
        node = Resources.of({**dict(node.amounts), "disk": random.randint(1, 64) << 30})
    columns = []
    for name in SIZED:
        typical, whole = random.uniform(-5.0, -1.0), node.get(name)
        columns.append([int(whole * min(1.2, random.lognormvariate(typical, 1.0))) for _ in range(tasks)])
    return node, list(zip(*columns, strict=True))


def _draw_node(random: Random) -> Resources:
    amounts = {"cores": random.randint(1, 8) * FRACTION}
    if random.random() < 0.5:
        amounts["memory"] = random.randint(1, 64) << 30
    if random.random() < 0.3:
        amounts["gpus"] = random.randint(1, 2) * FRACTION
    if random.random() < 0.2:
        amounts["licence"] = FRACTION
    return Resources.of(amounts)


def _draw_durations(random: Random, bundled: bool) -> Callable[[], float]:
    """Durations in whole seconds cause many simultaneous ends; calls are short enough to be batched."""
    if bundled:
        return lambda: random.uniform(0.00005, 0.002)
    if random.random() < 0.5:
        return lambda: float(random.randint(1, 4))
    return lambda: random.lognormvariate(0.0, 1.0)


def _draw_profiles(random: Random, node: Resources, bundled: bool) -> Profiles:
    timeout = random.choice((None, 0.05 if bundled else 10.0))
    retries = random.choice((0, 1, 3, 5))
    if random.random() < 0.6:
        return several_lanes(random, node, retries, timeout)
    return {category: Profile(category, retries=retries, timeout=timeout) for category in CATEGORIES}
