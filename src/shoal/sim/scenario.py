"""What is simulated: a graph, a node, an order, durations and a mix of faults, all drawn from one seed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random

import msgspec

from shoal.broker.broker import PASSED_OVER_LIMIT, Lane
from shoal.model.generate import CATEGORIES, SHAPES, Profiles, several_lanes
from shoal.model.graph import Graph
from shoal.model.rank import ranks, upward_lengths
from shoal.model.resources import FRACTION, Resources
from shoal.model.task import Profile
from shoal.policy.order import ORDERS, TaskColumns
from shoal.policy.sizing.sizer import Sizer
from shoal.sim.faults import CALM, FaultMix, swarm


class Scenario(msgspec.Struct):
    """Everything a simulated run depends on besides the code."""

    seed: int
    graph: Graph
    node: Resources
    durations: list[float]
    order: str = "fifo"
    faults: FaultMix = CALM
    bundled: bool = False
    """Tasks are calls: several short ones may be started together."""
    announces: bool = True
    """The driver promises ready tasks with the results, as the engine does; otherwise they come a little later."""
    input_bytes: list[int] = []
    patience: int = PASSED_OVER_LIMIT
    peaks: list[int] = []
    """Bytes of memory that each task needs; nobody declared them, so they are learned. Empty: memory is no matter."""

    def columns(self) -> TaskColumns:
        graph = self.graph
        lanes = array("i", graph.profile)  # its own: tasks that exceed their size change lanes
        return TaskColumns(lanes, ranks(graph), self.input_bytes, upward_lengths(graph, self.durations))

    def lanes(self) -> list[Lane]:
        return [
            Lane(profile.resources, profile.retries, self.bundled, adviser=self._adviser(profile))
            for profile in self.graph.profiles
        ]

    def _adviser(self, profile: Profile) -> Sizer | None:
        if not self.peaks or profile.resources.get("memory"):
            return None
        places = self.node.get("cores") // max(1, profile.resources.get("cores"))
        return Sizer(self.node.get("memory"), unit=1 << 20, places=max(1, places))


def draw_scenario(seed: int) -> Scenario:
    """The scenario of a seed: small on purpose, so that thousands can be run."""
    random = Random(2 * seed)
    node = _draw_node(random)
    bundled = random.random() < 0.25
    draw_seconds = _draw_durations(random, bundled)
    graph = SHAPES[random.choice(list(SHAPES))](random, random.randint(5, 60), _draw_profiles(random, node, bundled))
    durations = [draw_seconds() for _ in range(len(graph))]
    work = sum(durations) / (node.get("cores") / FRACTION)
    peaks = _draw_peaks(Random(3 * seed), node, len(graph)) if not bundled else []
    order = random.choice(list(ORDERS))
    faults = swarm(random, work) if random.random() < 0.95 else CALM
    if peaks:
        faults = msgspec.structs.replace(faults, capacity_changes=0.0)  # an adviser is told the node's size once
    return Scenario(
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
    )


def _draw_peaks(random: Random, node: Resources, tasks: int) -> list[int]:
    """Peaks of a heavy-tailed kind, some above what the node has; for some of the nodes that have memory at all."""
    memory = node.get("memory")
    if not memory or random.random() < 0.5:
        return []
    typical = random.uniform(-5.0, -1.0)
    return [max(1, int(memory * min(1.2, random.lognormvariate(typical, 1.0)))) for _ in range(tasks)]


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
    """Whole seconds make many ends fall together; calls are so short that they are bundled."""
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
